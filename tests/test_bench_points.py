"""How sure it is that a recipe is ahead of the peers: what each point adds, resampled, in lines and in the table."""

from __future__ import annotations

import numpy as np
from test_bench import a_place, suite_of  # noqa: F401

from longtail.bench import lines as lines_module
from longtail.bench.changes import job_data
from longtail.bench.job import run
from longtail.bench.lines import latest, read_lines, run_suite
from longtail.bench.peers import with_pairs
from longtail.bench.points import keep
from longtail.bench.table import table
from longtail.types import Texts, TopK

SUITE = """
title = "Recipes beside peers"
data = ["pets"]
seeds = [0, 1]
columns = ["P@1"]
intervals = true
[[peer]]
name = "wrong:one"
[[peer]]
name = "right:one"
[[peer]]
name = "wrong with points"
tool = "wrong:one"
augment = "gandalf"
[[run]]
name = "knn"
recipe = "knn"
"""


def test_recipes_are_compared_with_the_best_peers(place, monkeypatch):
    suite, out = suite_of(place, SUITE), place / "other.jsonl"

    def run_jobs(jobs, scratch, progress=None, points=None):
        if jobs[0].kind == "recipe":
            return run(jobs, scratch, points=points)
        data = job_data(jobs[0])
        right = data.test.targets.indices[:, None]  # every point has one label
        labels = right if jobs[0].name == "right:one" else (right + 1) % 3
        keep(points, jobs[0], TopK(labels, np.ones(labels.shape, np.float32)), data)
        return [{"P@1": 100.0 * (jobs[0].name == "right:one"), "seconds": 1.0, "time": "2026-01-01"}]

    monkeypatch.setattr(lines_module, "run_jobs", run_jobs)
    monkeypatch.setattr(lines_module, "absent", lambda job: "")
    run_suite(suite, out)
    known = latest(read_lines(out))
    plain, augmented = (line for line in known.values() if line["kind"] == "difference")
    assert (plain["beside"], augmented["beside"]) == ("right:one", "wrong with points")
    assert plain["P@1"] == plain["PSP@5"] == [0, 0, 0] and augmented["P@1"] == [100, 100, 100]
    assert len(plain["of"]) == 3  # two seeds and the peer
    count = len(read_lines(out))
    run_suite(suite, out)
    assert len(read_lines(out)) == count, "what was compared already is not compared again"

    for line in known.values():
        line.setdefault("machine", {"cores": 2, "memory_gb": 4, "cpu": "x", "python": "3", "torch": "2"})
        line.setdefault("threads", 1)
        line.setdefault("commit", "abc")
    page = table(suite, known.values(), "longtail bench other.toml")
    assert "| knn | right:one | +0.00 [+0.00, +0.00] |" in page
    assert "| knn | wrong with points (the best on augmented points) | **+100.00** [+100.00, +100.00] |" in page
    key = next(key for key, line in known.items() if line["run"] == "right:one")
    known[key]["time"] = "2026-02-02"
    assert "| knn | right:one |" not in table(suite, known.values(), ""), "a newer line of the peer is another peer"


def test_pairs_of_words_are_words_for_a_peer(place, monkeypatch):
    assert with_pairs(Texts(["Red cat's", "", "a"])).tolist() == ["Red cat's red_cat cat_s", "", "a"]
    plain = suite_of(place, SUITE).jobs()[0]
    pairs = suite_of(place, SUITE.replace('name = "wrong:one"', 'name = "wrong:one"\npairs = true')).jobs()[0]
    assert pairs.key != plain.key and "pairs" not in plain.key
