"""Suites that use what others have run, and what was trained once."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
from test_bench import SUITE, a_place, bench, one_job, suite_of  # noqa: F401

from longtail.bench import job as job_module
from longtail.bench import lines as lines_module
from longtail.bench.job import latency
from longtail.bench.lines import latest, read_lines, run_jobs, run_suite
from longtail.bench.suite import Job, read_suite, training_of
from longtail.index import Index


def test_what_another_suite_has_run_is_not_run_again(place):
    text = SUITE.replace("seeds = [0, 1]", "seeds = [0]")
    (place / "first.toml").write_text(text)
    (place / "second.toml").write_text('reuse = ["first"]\n' + text.replace('name = "knn"', 'name = "again"'))
    ran = []

    def begin(job, number, total):
        ran.append(job.name)
        return nullcontext()

    first = run_suite(read_suite(place / "first.toml"), place / "first.jsonl", begin=begin)
    second = run_suite(read_suite(place / "second.toml"), place / "second.jsonl", begin=begin)
    assert ran == ["knn"]
    assert (second[0]["suite"], second[0]["run"]) == ("second", "again")
    left_out = ("suite", "run")
    assert {k: v for k, v in first[0].items() if k not in left_out} == {
        k: v for k, v in second[0].items() if k not in left_out
    }
    assert read_lines(place / "second.jsonl") == second
    (place / "peer.toml").write_text('reuse = ["tool"]\ntitle = "x"\ndata = ["pets"]\n[[peer]]\nname = "a:b"')
    wanted = read_suite(place / "peer.toml")
    (place / "tool.jsonl").write_text(json.dumps({**wanted.jobs()[0].described(), "P@1": 7.0}) + "\n")
    (taken,) = run_suite(wanted, place / "peer.jsonl")  # the peers are not here, but what one found is
    assert taken["P@1"] == 7 and "skipped" not in taken
    job, line = read_suite(place / "second.toml").jobs()[0], first[0]
    assert job.is_answered_by(line)
    for other in ({"seed": 1}, {"data": "cats"}, {"settings": {"blend": 1}}, {"error": "boom"}, {"ensemble": 3}):
        assert not job.is_answered_by({**line, **other})
    assert not replace(job, also=("short",)).is_answered_by(line)
    assert replace(job, also=("short",)).is_answered_by({**line, "P@1 short": 3.0, "PSP@5 short": 4.0})


def test_a_peer_is_measured_by_us_with_the_original_frequencies(place, monkeypatch):
    peers = place / "peers"
    peers.mkdir()
    (peers / "run_all.sh").write_text(
        "python3 - \"$@\" <<'PY'\n"
        "import gzip, json, sys\nimport numpy as np\n"
        "folder, out, name = sys.argv[1:]\n"
        "points = sum(1 for _ in gzip.open(folder + '/tst.jsonl.gz'))\n"
        "rows = sum(1 for _ in gzip.open(folder + '/trn.jsonl.gz'))\n"
        "labels = np.tile(np.array([[0, 1, 2, -1, -1]]), (points, 1))\n"
        "np.savez(out + '.npz', indices=labels, scores=labels * 0.1)\n"
        "report = dict(pred_file=out + '.npz', train_s=2.5, train_peak_rss_mb=10, n_tst=points)\n"
        "report |= dict(model_bytes=rows * 10**6, threads=7, batch_ms_all=1, single_p50_ms=0.5, versions={})\n"
        "open(out, 'w').write(json.dumps(report if name == 'my:peer' else {'error': 'boom'}) + '\\n')\nPY\n".replace(
            "python3", sys.executable
        )
    )
    monkeypatch.setenv("LONGTAIL_PEERS", str(peers))
    text = 'title = "t"\ndata = ["pets"]\n[[peer]]\nname = "mine"\ntool = "my:peer"\naugment = "gandalf"\n'
    text += 'also = ["mistyped", "as-label", "not-as-label"]\n'
    lines = run_suite(suite_of(place, text), place / "p.jsonl")
    assert lines[0]["P@1"] == lines[0]["P@1 mistyped"] == pytest.approx(100 / 3, abs=0.001)
    assert (lines[0]["seconds"], lines[0]["threads"]) == (2.5, 7)
    assert lines[0]["model_mb"] == 24
    assert lines[0]["train_points"] == 21
    failed = run_jobs([Job(kind="peer", name="my:bad", recipe="", settings={}, data="pets")], place / "scratch")
    assert "boom" in failed[0]["error"]


HEADS = """
title = "heads"
data = ["pets"]
run = [
    { name = "both", recipe = "unidec", set = { SMALL } },
    { name = "knn", recipe = "knn" },
    { name = "texts", recipe = "unidec", set = { SMALL, "objectives.1.served" = 0.0 } },
    { name = "rows", recipe = "unidec", set = { SMALL, "objectives.0.served" = 0.0 } },
    { name = "wider", recipe = "unidec", set = { SMALL, "objectives.0.head.dim" = 8 } },
]
""".replace("SMALL", '"encoder.dim" = 16, "training.epochs" = 2')


def test_what_differs_in_serving_alone_is_trained_once(place, monkeypatch):
    suite, groups = suite_of(place, HEADS), []
    monkeypatch.setattr(job_module, "_latency_in_process", lambda folder, texts: latency(Index.load(folder), texts))

    def run_here(jobs, scratch, progress, points):
        groups.append([job.name for job in jobs])
        return job_module.run(jobs, scratch, progress)

    monkeypatch.setattr(lines_module, "run_jobs", run_here)
    lines = run_suite(suite, place / "out.jsonl")
    assert groups == [["both", "texts", "rows"], ["knn"], ["wider"]]
    assert read_lines(place / "out.jsonl") == lines and not (place / "out.unfinished").exists()
    rows = {line["run"]: line for line in lines}
    assert {"both", "texts", "rows", "knn", "wider"} == rows.keys()
    assert rows["both"]["seconds"] == rows["rows"]["seconds"] and rows["both"]["model_mb"] > rows["rows"]["model_mb"]
    assert rows["rows"]["settings"]["objectives.0.served"] == 0
    assert {job.key for job in suite.jobs()} == latest(lines).keys()
    groups.clear()
    kept = [line for line in lines if line["run"] not in ("texts", "rows")]  # killed, or other rows were run before
    (place / "out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    again = {line["run"]: line for line in run_suite(suite, place / "out.jsonl")}
    assert groups == [["texts", "rows"]]
    alone = job_module.run([job for job in suite.jobs() if job.name == "rows"], place / "scratch")[0]
    for name in ("P@1", "P@5", "PSP@5", "mflops"):
        assert rows["rows"][name] == again["rows"][name] == alone[name]
        assert rows["texts"][name] == again["texts"][name]


@pytest.mark.parametrize("more", [{"patience": 3}, {"curves": True}])
def test_a_training_that_looks_at_what_is_served_is_not_shared(more):
    settings = {f"training.{name}": value for name, value in more.items()}
    both = one_job(recipe="unidec")
    texts = replace(both, name="texts", settings={"objectives.1.served": 0.0})
    assert training_of(both) == training_of(texts) != training_of(replace(texts, seed=1))
    assert training_of(both) != training_of(replace(texts, change=("validation",)))
    one, other = (replace(job, settings=job.settings | settings) for job in (both, texts))
    assert training_of(one) != training_of(other)
    one, other = (replace(job, settings=job.settings | {"rerank": "rerank"}) for job in (both, texts))
    assert training_of(one) != training_of(other)
    one, other = (replace(job, ensemble=2) for job in (both, texts))
    assert training_of(one) != training_of(other)
