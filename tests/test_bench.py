"""Suites: what is refused, what a line says, and that a killed suite continues where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from longtail.bench import job as job_module
from longtail.bench.changes import job_data, permuted
from longtail.bench.job import latency
from longtail.bench.lines import latest, read_lines, run_jobs, run_suite, scratch_of, without_folders
from longtail.bench.suite import Job, changes, read_suite, recipe_for
from longtail.bench.table import spread, table, verdict
from longtail.bench.variants import variant
from longtail.data.formats import load
from longtail.errors import DataError, RecipeError
from longtail.index import Index
from longtail.pipeline import fit

SUITE = """
title = "small"
data = ["pets"]
seeds = [0, 1]
columns = ["P@1", "tail", "seconds"]
[[run]]
name = "knn"
recipe = "knn"
"""


@pytest.fixture(name="place")
def a_place(tmp_path, monkeypatch):
    """A folder with a tiny data set and a suite, which is also where commands are run."""
    rows = [
        {"text": f"{colour} {animal}", "labels": [index]}
        for colour in ("red", "old", "wild", "small", "big", "mad", "sad")
        for index, animal in enumerate(("cat", "dog", "fox"))
    ]
    (tmp_path / "data" / "pets").mkdir(parents=True)
    for name, some in (("trn", rows), ("tst", rows[:6])):
        (tmp_path / "data" / "pets" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    (tmp_path / "data" / "pets" / "lbl.jsonl").write_text('{"text": "cat"}\n{"text": "dog"}\n{"text": "fox"}\n')
    (tmp_path / "results" / "suites").mkdir(parents=True)
    (tmp_path / "results" / "suites" / "small.toml").write_text(SUITE)
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LONGTAIL_PEERS", str(tmp_path / "no-peers"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def suite_of(place: Path, text: str):
    path = place / "other.toml"
    path.write_text(text)
    return read_suite(path)


def bench(*args: object, **more):
    command = [sys.executable, "-c", "from longtail.cli import main; main()", "bench", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def one_job(**more):
    return Job(**({"kind": "recipe", "name": "knn", "recipe": "knn", "settings": {}, "data": "pets"} | more))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('titel = "x"', "did you mean 'title'"),
        (SUITE + 'recip = "x"', "did you mean 'recipe'"),
        (SUITE.replace('recipe = "knn"', 'recipe = "knm"'), "did you mean 'knn'"),
        (SUITE.replace('recipe = "knn"', 'recipe = "knn"\nset = { "lexical.neighbour" = 3 }'), "'neighbours'"),
        (SUITE + 'change = "permute-label-text"', "'permute-label-texts'"),
        (SUITE + 'change = "permute-label-texts:2"', "at most 1"),
        (SUITE + 'change = "first-words"', "first-words:32"),
        (SUITE + 'change = "first-words:0.5"', "first-words:32"),
        (SUITE + "ensemble = 0", "ensemble"),
        (SUITE + "budget = 9", "a budget, which is for auto"),
        (SUITE.replace('"tail"', '"tial"'), "did you mean 'tail'"),
        ('ratio_to = "omikuji"\n' + SUITE, "ratio_to"),
        (SUITE + '[[peer]]\nname = "omikuji"', "omikuji:bonsai"),
        (SUITE + '[[peer]]\nname = "a:b"\naugment = "gandolf"', "did you mean 'gandalf'"),
        (SUITE + '[[run]]\nname = "knn"\nrecipe = "knn"', "twice"),
        (SUITE + "seeds = 3", "seeds"),
        (SUITE + '[[claim]]\nsays = "x"\nhigher = "knm"\nlower = "knn"', "did you mean 'knn'"),
        (SUITE + '[[claim]]\nsays = "x"\nhigher = "knn"\nlower = "knn"\nmetric = "P@2"', "a claim about 'P@2'"),
        ('title = "x"\nrun = 3', "[[run]]"),
        ('title = "x"', "nothing to run"),
        ('data = ["pets"]', "other.toml: has no title; add a line: title = …"),
        ('title = "x"\n[[run]]\nrecipe = "knn"', "other.toml: run 1: has no name; add a line: name = …"),
    ],
)
def test_a_wrong_suite_is_refused_with_the_remedy(place, text, complaint):
    with pytest.raises(RecipeError) as error:
        suite_of(place, text)
    assert complaint in str(error.value)


def test_a_file_that_is_no_suite(place):
    with pytest.raises(DataError, match="not TOML"):
        suite_of(place, "a = = 3")
    for damage in ("a = " + "9" * 5000, "a = " + "[" * 5000):
        with pytest.raises(DataError, match="not TOML"):
            suite_of(place, damage)
    with pytest.raises(DataError, match="not found"):
        read_suite(place / "none.toml")


def test_jobs_are_a_grid_in_which_a_run_may_differ(place):
    text = 'title = "t"\ndata = ["a", "b"]\nseeds = [0, 1]\n[[run]]\nname = "x"\nrecipe = "knn"\n'
    text += '[[run]]\nname = "y"\nrecipe = "knn+gandalf"\ndata = ["b"]\nseeds = [7]\nset.augment.0.calibrate = true\n'
    suite = suite_of(place, text + '[[peer]]\nname = "omikuji:bonsai"\n')
    assert [(job.name, job.data, job.seed) for job in suite.jobs()] == [
        ("omikuji:bonsai", "a", 0), ("x", "a", 0), ("x", "a", 1),
        ("omikuji:bonsai", "b", 0), ("x", "b", 0), ("x", "b", 1), ("y", "b", 7),
    ]  # fmt: skip
    job = suite.jobs(["y"])[0]
    assert recipe_for(job).augment[0].calibrate and recipe_for(job).seed == 7
    with pytest.raises(RecipeError, match="did you mean"):
        suite.jobs(["omikuji:bonzai"])


def test_the_command_writes_lines_and_a_table_and_does_nothing_twice(place):
    done = bench("results/suites/small.toml")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "2 of 2: knn on pets, seed 1" in done.stderr
    lines = read_lines(place / "results" / "small.jsonl")
    assert [line["seed"] for line in lines] == [0, 1]
    first = lines[0]
    assert first["P@1"] == 100 and first["suite"] == "small" and first["continued"] == 0
    assert len(first["fingerprint"]) == 32 and first["done"] == []
    assert {"fingerprint", "bins", "seconds", "cpu_seconds", "commit", "threads", "machine", "time"} <= first.keys()
    assert all(first[cost] > 0 for cost in ("seconds", "peak_mb", "model_mb", "latency_ms", "batch_seconds"))
    page = (place / "results" / "small.md").read_text()
    assert "| knn | 100.00 <small>[100.00–100.00]</small>" in page
    assert "longtail bench results/suites/small.toml" in page
    assert str(place) not in page + (place / "results" / "small.jsonl").read_text()
    assert "nothing was run" in bench("results/suites/small.toml").stderr
    assert len(read_lines(place / "results" / "small.jsonl")) == 2
    listed = bench("results/suites/small.toml", "--list").stdout
    assert listed.count("done") == 2
    assert sorted(path.name for path in (place / "results").iterdir()) == ["small.jsonl", "small.md", "suites"]


@pytest.mark.slow
def test_failures_are_noted_and_tried_again_and_absent_peers_are_skipped(place):
    text = SUITE.replace("seeds = [0, 1]", "seeds = [0]") + '[[run]]\nname = "lost"\nrecipe = "knn"\ndata = ["none"]\n'
    (place / "bad.toml").write_text(text + '[[peer]]\nname = "omikuji:bonsai"\n')
    done = bench("bad.toml")
    assert done.returncode == 1
    assert "skipped omikuji:bonsai on pets: the peers are not here" in done.stderr
    lines = read_lines(place / "bad.jsonl")
    assert [("error" in line, line["run"]) for line in lines] == [(False, "knn"), (True, "lost")]
    assert "there is no data set none" in lines[1]["error"]
    page = (place / "bad.md").read_text()
    assert "failed: there is no data set none" in page
    assert "Not run yet: 1 of 3" in page
    assert bench("bad.toml", "--only", "lost").returncode == 1
    assert len(read_lines(place / "bad.jsonl")) == 3


@pytest.mark.slow
def test_a_killed_suite_goes_on_where_it_was(place):
    (place / "long.toml").write_text(SUITE.replace("[0, 1]", "[0, 1, 2]"))
    out = place / "long.jsonl"
    command = [sys.executable, "-c", "from longtail.cli import main; main()", "bench", "long.toml"]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while running.poll() is None and not (out.exists() and out.read_bytes()):
        time.sleep(0.02)
    time.sleep(0.3)  # into the second job
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert children
    for _ in range(250):
        if not any(_alive(child) for child in children):
            break
        time.sleep(0.02)
    assert not any(_alive(child) for child in children), "a job outlived its suite"
    finished = out.read_bytes()
    out.write_bytes(finished + b'{"suite": "long", "run')
    assert bench("long.toml").returncode == 0
    assert out.read_bytes().startswith(finished)
    assert [line["seed"] for line in read_lines(out)] == [0, 1, 2]


def _alive(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_fit_continues_in_the_scratch_folder_of_its_job(place, monkeypatch):
    folders = []

    def interrupted(recipe, train, *, scratch, progress):
        folders.append(scratch)
        progress("epoch 1", 1, 2)
        if len(folders) == 1:
            raise KeyboardInterrupt
        return fit(recipe, train)

    monkeypatch.setattr(job_module, "fit", interrupted)
    job = one_job()
    scratch = scratch_of(place / "out.jsonl", job)
    with pytest.raises(KeyboardInterrupt):
        job_module.run([job], scratch)
    before = json.loads((scratch / "spent.json").read_text())
    (scratch / "spent.json").write_text(json.dumps(before | {"seconds": 100.0}))
    (line,) = job_module.run([job], scratch)
    assert folders[0] == folders[1] and folders[0].is_relative_to(scratch)
    assert line["continued"] == 1 and line["seconds"] > 100
    assert not scratch.exists()
    assert scratch_of(place / "out.jsonl", one_job(seed=1)) != scratch


def test_two_suites_never_write_to_one_file(place):
    suite = read_suite("results/suites/small.toml")

    def begin(job, number, total):
        run_suite(suite, place / "out.jsonl")

    with pytest.raises(DataError, match="another bench"):
        run_suite(suite, place / "out.jsonl", begin=begin)


def test_lines_of_other_settings_do_not_get_into_the_table(place):
    suite = read_suite("results/suites/small.toml")
    wanted, *_ = suite.jobs()
    facts = {"P@1": 50.0, "bins": [], "seconds": 1.0, "commit": "abc", "threads": 2, "time": "2030-01-01T00:00"}
    facts["machine"] = {"cores": 2, "memory_gb": 8, "cpu": "x", "python": "3", "torch": "2"}
    lines = [{**one_job(settings={"seed": 9}).described(), **facts, "P@1": 99.0}, {**wanted.described(), **facts}]
    page = table(suite, lines, "longtail bench small.toml")
    assert "50.00" in page and "99.00" not in page
    assert "Commit abc, 2030-01-01." in page
    assert len(latest([lines[1], {**lines[1], "P@1": 51.0}])) == 1


def test_times_are_shown_as_ratios(place):
    suite = suite_of(place, 'ratio_to = "knn"\n' + SUITE + '[[run]]\nname = "slow"\nrecipe = "knn"\n')
    facts = {"P@1": 1.0, "bins": [], "commit": "abc", "threads": 1, "time": "2030-01-01T00:00"}
    facts["machine"] = {"cores": 2, "memory_gb": 8, "cpu": "x", "python": "3", "torch": "2"}
    seconds = {"knn": 2.0, "slow": 5.0}
    page = table(suite, [{**job.described(), **facts, "seconds": seconds[job.name]} for job in suite.jobs()], "c")
    assert "| slow | 1.00 <small>[1.00–1.00]</small> | – | 5.0 <small>[5.0–5.0]</small> | 2.5 <" in page
    assert spread([None], "P@1") == "–"


def test_claims_of_papers_are_judged_by_all_seeds(place):
    text = SUITE + '[[run]]\nname = "other"\nrecipe = "knn"\n'
    text += '[[claim]]\nsays = "one beats the other"\nhigher = "knn"\nlower = "other"\nmetric = "P@1"\n'
    text += '[[claim]]\nsays = "never here"\nhigher = "knn"\nlower = "other"\nmetric = "P@1"\ndata = ["cats"]\n'
    suite = suite_of(place, text)
    facts = {"bins": [], "seconds": 1.0, "commit": "abc", "threads": 2, "time": "2030-01-01T00:00"}
    facts["machine"] = {"cores": 2, "memory_gb": 8, "cpu": "x", "python": "3", "torch": "2"}

    def page(**values):
        jobs = [job for job in suite.jobs() if job.name in values]
        return table(suite, [{**job.described(), **facts, "P@1": values[job.name][job.seed]} for job in jobs], "c")

    assert "- **Confirmed here:** one beats the other (P@1 4.00, not 2.50)." in page(knn=[3.5, 4.5], other=[3.0, 2.0])
    assert "but within the range of seeds:** one beats" in page(knn=[2.5, 4.5], other=[3.0, 2.0])
    assert "- **Not here:** one beats the other (P@1 2.00 beside 2.50)." in page(knn=[2.0, 2.0], other=[3.0, 2.0])
    assert "What the papers say" not in page(knn=[2.0, 2.0])  # the other has not run
    assert "never here" not in page(knn=[3.5, 4.5], other=[3.0, 2.0])
    claim = suite.claim[0]
    assert "Not here" in verdict(replace(claim, times=2.0), [3.9], [2.0])
    assert "Confirmed here:** one beats the other (P@1 4.10, beside 2.00)" in verdict(
        replace(claim, times=2.0), [4.1], [2.0]
    )
    assert "Confirmed" in verdict(replace(claim, level=0.5), [1.6], [2.0])
    assert "Not here" in verdict(replace(claim, level=0.5), [1.4], [2.0])


def test_a_broken_line_is_named(tmp_path):
    for damage in ("not json", "[" * 5000, '{"a":' * 5000):
        (tmp_path / "a.jsonl").write_text(f'{{"a": 1}}\n{damage}\n')
        with pytest.raises(DataError, match=r"a\.jsonl:2"):
            read_lines(tmp_path / "a.jsonl")
    assert without_folders("see /a/b/c.txt; and/or d/e") == "see c.txt; and/or d/e"


def test_a_crash_is_a_line_too(place, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "never")  # the interpreter itself refuses to start
    assert "exit code 1" in run_jobs([one_job()], place / "scratch")[0]["error"]


def test_changes_of_the_data(place):
    whole = load("data/pets")
    divided = job_data(one_job(change=changes("validation"), seed=5))
    assert len(divided.train) + len(divided.test) == len(whole.train)
    assert divided.fingerprint == job_data(one_job(change=("validation",))).fingerprint
    short = job_data(one_job(change=changes("first-words:1")))
    assert all(len(text.split()) <= 1 for part in (short.train, short.test) for text in part.texts)
    assert short.labels.texts == whole.labels.texts
    moved = job_data(one_job(change=changes("permute-label-texts"), seed=1))
    assert moved.test.labels.texts == moved.train.labels.texts != whole.labels.texts
    assert sorted(moved.labels.texts) == sorted(whole.labels.texts)
    assert permuted(whole.train, 0.01, 0).labels.texts == whole.labels.texts
    mixed = job_data(one_job(change=changes("shuffle-test-words"), seed=3)).test
    assert mixed.texts != whole.test.texts == variant(whole.test, "", 3).texts
    assert [sorted(text.split()) for text in mixed.texts] == [sorted(text.split()) for text in whole.test.texts]


def test_an_ensemble_is_one_model_of_several_seeds(place, monkeypatch):
    folders = []

    def measured(folder, texts):
        folders.append(folder)
        return latency(Index.load(folder), texts)

    monkeypatch.setattr(job_module, "_latency_in_process", measured)  # without a process of its own
    small = {"encoder.dim": 1024, "training.min_steps": 0, "training.epochs": 2, "augment": [], "lexical": None}
    lines = []
    for ensemble in (1, 2):
        job = one_job(name="frugal", recipe="frugal", settings=small, ensemble=ensemble, seed=1)
        assert [member.seed for member in recipe_for(job).members()] == ([1] if ensemble == 1 else [2, 3])
        lines += job_module.run([job], place / "scratch")
    one, two = lines
    assert [folder.name for folder in folders] == ["model", "model"]
    assert two["mflops"] == pytest.approx(2 * one["mflops"], abs=0.001)
    assert two["model_mb"] > 1.5 * one["model_mb"] and two["latency_ms"] > 0
    with pytest.raises(RecipeError, match="weights that chance decides"):
        recipe_for(one_job(ensemble=2)).check()


def test_auto_has_a_budget_and_the_table_says_what_it_chose(place, monkeypatch):
    monkeypatch.setattr(job_module, "_latency_in_process", lambda *_: 1.0)
    text = SUITE.replace("seeds = [0, 1]", "seeds = [2]").replace('"tail"', '"P@1 + PSP@5"')
    suite = suite_of(place, text + '[[run]]\nname = "auto, 1 min"\nrecipe = "auto"\nbudget = 60')
    with pytest.raises(DataError, match="has no budget"):
        suite_of(place, text.replace('recipe = "knn"', 'recipe = "auto"'))
    lines = [job.described() | job_module.run([job], place / "scratch")[0] for job in suite.jobs()]
    knn, auto = lines
    assert (auto["budget"], auto["trials"]["chosen"]) == (60, "knn")  # 21 points
    assert auto["P@1"] == knn["P@1"]
    page = table(suite, lines, "")
    assert "- auto, 1 min: chose knn. 21 points are too few" in page
    assert f"| auto, 1 min | {auto['P@1']:.2f} | {auto['P@1'] + auto['PSP@5']:.2f} |" in page


def test_the_time_of_a_query_is_the_median_of_many(place):
    fit("knn", load("data/pets").train).save("runs/pets")
    assert latency(Index.load("runs/pets"), ["red cat"]) > 0
    assert latency(Index.load("runs/pets"), []) == 0
