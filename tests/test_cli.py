"""The commands as a user runs them: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

import pytest
from conftest import ROOT
from typer.main import get_command

from longtail.cli import app, main
from longtail.recipe import RECIPES, summary

FLAGS = json.loads((ROOT / "tests" / "golden" / "flags.json").read_text())


def apart(*args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which takes a second before it begins."""
    command = [sys.executable, "-m", "longtail", *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def run(*args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as `python -m longtail` does, in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, code = signal.getsignal(signal.SIGTERM), 0
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    try:
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            patch.multiple(sys, argv=["longtail", *map(str, args)], stdin=given),
        ):
            main()
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def tree(command, name="longtail"):
    if hasattr(command, "commands"):
        return {
            key: value for sub, inner in command.commands.items() for key, value in tree(inner, f"{name} {sub}").items()
        }
    return {name: sorted(option for parameter in command.params for option in parameter.opts)}


def test_flags_change_only_on_purpose():
    assert tree(get_command(app)) == FLAGS


@pytest.fixture(scope="module", name="folder")
def a_folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    rows = [
        {"text": f"{colour} {animal}", "labels": [index]}
        for colour in ("red", "old", "wild", "small")
        for index, animal in enumerate(("cat", "dog", "fox"))
    ]
    (place / "d").mkdir()
    (place / "d" / "trn.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "d" / "tst.jsonl").write_text('{"text": "blue cat", "labels": [0]}\n')
    (place / "d" / "lbl.jsonl").write_text('{"text": "cat"}\n{"text": "dog"}\n{"text": "fox"}\n')
    return place


def test_train_predict_evaluate(folder):
    data, out = folder / "d", folder / "run"
    done = apart("train", "knn", "--data", data, "--out", out, "--set", "lexical.neighbours=3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    refused = apart("train", "knn", "--data", data, "--out", out)
    assert refused.returncode == 3 and "Traceback" not in refused.stderr
    assert "--force" in refused.stderr
    assert run("train", "knn", "--data", data, "--out", out, "--force").returncode == 0
    answer = apart("predict", out, "-", "--k", 2, stdin='a cat\n{"id": "q", "text": "the dog"}\n\n')
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["id"] for line in lines] == [1, "q", 3]
    assert lines[0]["labels"][0]["text"] == "cat"
    assert set(lines[1]["labels"][0]) == {"id", "text", "score"}
    assert lines[2]["labels"] == []
    measured = json.loads(run("evaluate", out, "--data", data, "--json").stdout)
    assert measured["P@1"] == 100
    assert [entry["name"] for entry in measured["bins"]] == ["head", "torso", "tail"]
    assert "P" in run("evaluate", out, "--data", data, "--split", "train").stdout


def test_a_text_that_is_a_label_is_not_predicted_itself(folder):
    place = folder / "items"
    place.mkdir()
    rows = [{"text": f"{colour} {name}", "labels": [0, 1, 2]} for colour in ("red", "old") for name in ("cat", "cats")]
    (place / "trn.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = enumerate(("cat", "cats", "kitten"))
    (place / "lbl.jsonl").write_text("".join(f'{{"text": "{name}", "id": "B{n}"}}\n' for n, name in names))
    assert run("train", "knn", "--data", place, "--out", folder / "own").returncode == 0
    queries = '{"text": "cat"}\n{"text": "cat", "own": 0}\n{"text": "cat", "own": "B2"}\ncat\n'
    (place / "q.jsonl").write_text(queries)
    lines = run("predict", folder / "own", place / "q.jsonl", "--exclude-own", "--k", 3).stdout.splitlines()
    predicted = [{label["raw_id"] for label in json.loads(line)["labels"]} for line in lines]
    assert predicted == [{"B0", "B1", "B2"}, {"B1", "B2"}, {"B0", "B1"}, {"B0", "B1", "B2"}]
    plain = run("predict", folder / "own", place / "q.jsonl", "--k", 2).stdout.splitlines()
    assert json.loads(plain[0])["labels"] == json.loads(plain[1])["labels"]
    (place / "q.jsonl").write_text(queries + '{"text": "cat", "own": "B9"}\n')
    done = run("predict", folder / "own", place / "q.jsonl", "--exclude-own")
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 4
    assert "q.jsonl:5: there is no label 'B9'" in done.stderr


def test_tables_on_standard_input_and_files_of_answers(folder):
    assert run("train", "knn", "--data", folder / "d", "--out", folder / "tables").returncode == 0
    table = "sku,title,tags\n7,red cat,SECRET\n8,the dog,SECRET\n"
    lines = [json.loads(line) for line in run("predict", folder / "tables", "-k", 1, stdin=table).stdout.splitlines()]
    assert [line["title"] for line in lines] == ["red cat", "the dog"]
    assert [line["labels"][0]["text"] for line in lines] == ["cat", "dog"]
    done = run("predict", folder / "tables", "-", "-k", 1, "--text", "name", stdin='{"name": "my fox", "n": [1]}\n')
    assert json.loads(done.stdout)["labels"][0]["text"] == "fox"
    refused = run("predict", folder / "tables", "-", stdin="PAR1")
    assert refused.returncode == 3 and "give the path of the file" in refused.stderr
    (folder / "q.csv").write_text(table)
    done = run("predict", folder / "tables", folder / "q.csv", "-k", 1, "--out", folder / "a.csv")
    assert done.returncode == 0 and done.stdout == "" and "2 rows" in done.stderr and "text: title" in done.stderr
    assert (folder / "a.csv").read_text().splitlines()[1] == "1,7,red cat,SECRET,cat,0,1"
    for flags, code in (([], 3), (["--force"], 0), (["--format", "parquet"], 3)):
        line = ("predict", folder / "tables", folder / "q.csv", "--out", folder / "a.csv", *flags)
        assert run(*line).returncode == code
    assert run("predict", folder / "tables", folder / "d", "--out", folder / "shards").returncode == 0
    assert [file.name for file in (folder / "shards").iterdir()] == ["part-00000.jsonl"]
    assert run("predict", folder / "tables", folder / "none.csv").returncode == 3


def test_labels_are_added_from_a_table(folder):
    assert run("train", "knn", "--data", folder / "d", "--out", folder / "added").returncode == 0
    (folder / "new.csv").write_text("name;note\ngrey wolf;a b c d\nbrown bear;e f\n")
    done = run("labels", "add", folder / "added", folder / "new.csv", "--text", "name")
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["grey wolf", "brown bear"]


def test_models_side_by_side(folder):
    data = folder / "d"
    for name, setting in (("one", "lexical.share=1"), ("two", "lexical.share=0")):
        assert run("train", "knn", "--data", data, "--out", folder / name, "--set", setting).returncode == 0
    done = run("compare", folder / "one", folder / "two", "--data", data, "--split", "train", "--json")
    report = json.loads(done.stdout)
    assert [entry["run"] for entry in report["models"]] == [str(folder / "one"), str(folder / "two")]
    assert all(entry["P@1"] == 100 and entry["bytes"] > 0 for entry in report["models"])
    difference = report["differences"][0]
    assert [entry["metric"] for entry in difference["metrics"]] == ["P@1", "PSP@5"]
    assert difference["metrics"][0]["difference"] == 0
    assert difference["worse_labels"] == difference["better_points"] == []
    shown = run("compare", folder / "one", folder / "two", "--data", data).stdout
    assert "test, 1 point" in shown
    assert "95 %" in shown
    assert "kept with the models" in run("compare", folder / "one").stdout
    (folder / "later.csv").write_text("title,tags\nmy fox,fox\nan owl,owl\n")
    done = run("compare", folder / "one", folder / "two", "--data", folder / "later.csv", "--json")
    assert [entry["P@1"] for entry in json.loads(done.stdout)["models"]] == [50, 50]
    assert "1 label of the data unknown to the model" in done.stderr
    (folder / "other.csv").write_text("title,tags\nmy fox,fox\nan owl,owl\n")
    assert run("train", "knn", "--data", folder / "other.csv", "--out", folder / "three").returncode == 0
    done = run("compare", folder / "one", folder / "three", "--data", folder / "later.csv")
    assert done.returncode == 3 and "are not those of" in done.stderr
    assert run("compare", folder / "none").returncode == 3


def test_the_seed_is_taken_from_either_place(folder):
    for flags, seed in ((["--set", "seed=5"], 5), (["--set", "seed=5", "--seed", "6"], 6), ([], 0)):
        out = folder / f"seed{seed}"
        assert run("train", "knn", "--data", folder / "d", "--out", out, *flags).returncode == 0
        assert json.loads((out / "config.json").read_text())["recipe"]["seed"] == seed


def test_settings_and_scores_of_the_papers(folder):
    line = ("train", "astec", "--data", folder / "d", "--out", folder / "x", "--dry-run", "--json", "--published")
    plain, large = run(*line[:-1]), run(*line, "LF-Amazon-131K")
    assert json.loads(plain.stdout)["disk_bytes"] < json.loads(large.stdout)["disk_bytes"]  # 512 dimensions
    refused = run(*line, "LF-AmazonTitles-131k")
    assert refused.returncode == 4 and "LF-AmazonTitles-131K" in refused.stderr
    scores = json.loads(run("recipes", "--published", "--json").stdout)
    assert {"model", "data", "source", "P@1"} <= set(scores[0])
    assert any(one["model"] == "astec" and one["data"] == "LF-AmazonTitles-131K" for one in scores)


def test_an_empty_folder_is_a_fine_place_for_a_model(folder):
    (folder / "empty").mkdir()
    assert run("train", "knn", "--data", folder / "d", "--out", folder / "empty").returncode == 0


def test_names_are_never_read_as_markup(tmp_path):
    odd = tmp_path / "b[red]"
    odd.mkdir()
    (odd / "trn.jsonl").write_text('{"text": "a", "labels": ["array[/b] x", "uniform[1234][fi][v]()"]}\n')
    done = run("data", "info", odd)
    assert done.returncode == 0, done.stderr
    assert "b[red]" in done.stdout


def test_version():
    assert run("--version").stdout.startswith("longtail 0.")


def test_dry_run_writes_nothing(folder):
    done = run("train", "knn", "--data", folder / "d", "--out", folder / "dry", "--dry-run")
    assert done.stdout.startswith("about ") and "on disk" in done.stdout and "second" in done.stdout
    done = run("train", "knn", "--data", folder / "d", "--out", folder / "dry", "--dry-run", "--json")
    several = {"processes", "enough_processes", "sent_bytes_per_step", "free_bytes"}
    assert set(json.loads(done.stdout)) == {"memory_bytes", "disk_bytes", "seconds"} | several
    assert not (folder / "dry").exists()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("train", "nkn", "--data", "{d}", "--out", "{x}"), 4, "did you mean 'knn'"),
        (("train", "knn", "--data", "{d}", "--out", "{x}", "--set", "lexical.shar=1"), 4, "did you mean 'share'"),
        (("train", "knn", "--data", "{d}", "--out", "{x}", "--set", "lexical"), 4, "no '='"),
        (("train", "astec", "--data", "{d}", "--out", "{x}", "--set", "shortlist.keep=9"), 4, "now called sampler"),
        (("train", "frugal", "--data", "{d}", "--out", "{x}", "--set", "training.rate=1"), 4, "called learning_rate"),
        (("train", "frugal", "--data", "{d}", "--out", "{x}", "--set", "sampler=everything"), 4, "called 'all_labels'"),
        (("train", "knn", "--data", "{x}/absent", "--out", "{x}"), 3, "absent"),
        (("predict", "{d}"), 3, "config.json"),
        (("evaluate", "{d}", "--data", "{d}"), 3, "config.json"),
        (("data", "info", "{x}"), 3, ""),
        (("data", "split", "{d}", "{x}", "--to", "train"), 2, "'train' is not one of"),
        (("data", "split", "{d}", "{x}", "--to", "validation", "--seed", "-1"), 2, "--seed"),
        (("data", "split", "{d}", "{x}", "--share", "0"), 2, "not more than 0"),
        (("data", "split", "{d}", "{x}", "--share", "nan"), 2, "not more than 0"),
        (("data", "split", "{d}", "{x}", "--format", "nosuch"), 2, "is not a format"),
        (("data", "convert", "{d}", "{x}", "--format", "jsnl"), 2, "did you mean"),
        (("data", "info", "{d}", "--from", "nosuch"), 2, "is not a format"),
        (("data", "check", "{d}", "--from", "nosuch"), 2, "is not a format"),
        (("train",), 2, ""),
    ],
)
def test_errors_are_one_line_with_an_exit_code(folder, args, code, message):
    done = run(*(arg.format(d=folder / "d", x=folder / "x") for arg in args))
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "x").exists()


def test_help_teaches():
    for args in (("--help",), ("data", "--help"), ("train", "--help")):
        assert "Usage" in run(*args).stdout
    assert "knn" in run("recipes").stdout
    assert "gandalf" in json.loads(run("recipes", "--json").stdout)["augmentations"]
    assert "jsonl" in json.loads(run("data", "formats", "--json").stdout)


def test_what_evaluate_measures_compare_shows_later_without_the_data(folder):
    out = folder / "measured"
    assert run("train", "knn", "--data", folder / "d", "--out", out).returncode == 0
    assert json.loads((out / "metrics.json").read_text()) == {"evaluations": []}
    before = run("compare", out)
    assert "not evaluated" in before.stdout and "–" in before.stdout
    done = run("evaluate", out, "--data", folder / "d", "--json")
    assert "kept with the model" in done.stderr
    measured = json.loads(done.stdout)
    shown = json.loads(run("compare", out, "--json").stdout)["models"][0]
    assert {name: shown[name] for name in measured} == measured
    after = run("compare", out).stdout
    assert "test, 1 point" in after and "100.0" in after and "–" not in after
    assert run("labels", "check", out).returncode == 0
    assert run("predict", out, "-", stdin="a cat").returncode == 0


def test_a_report_of_any_runs(folder):
    data = folder / "d"
    for name, setting in (("left", "lexical.share=1"), ("right", "lexical.share=0")):
        assert run("train", "knn", "--data", data, "--out", folder / name, "--set", setting).returncode == 0
    done = run("report", folder / "left", "--data", data, "--split", "train", "--out", folder / "one.html")
    assert done.returncode == 0 and "wrote" in done.stderr, done.stderr
    page = (folder / "one.html").read_text()
    assert "left on d, train" in page and "10 predictions" in page
    assert page.count("<svg") == 2 and "<script" not in page
    both = run(
        "report", folder / "left", folder / "right", "--data", data, "--split", "train", "-o", folder / "two.html"
    )
    assert both.returncode == 0, both.stderr
    page = (folder / "two.html").read_text()
    assert "right instead of left" in page and "95 % interval" in page
    assert run("report", folder / "none", "--data", data).returncode == 3


def test_every_recipe_has_a_line_of_its_own(folder):
    lines = [summary(name) for name in RECIPES]
    assert len(set(lines)) == len(lines) and all(len(line) > 20 for line in lines)
    assert "all of which are scored" in summary("inceptionxml")
    assert "best clusters" in summary("inceptionxml_plus")


@pytest.mark.parametrize("stage", ["before", "after"])
def test_who_stops_a_training_is_told_how_to_go_on(folder, monkeypatch, stage):
    out = folder / f"stopped-{stage}"

    def stop(*_, scratch, **__):
        if stage == "after":
            (scratch / "training.safetensors").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("longtail.pipeline.fit", stop)
    done = run("train", "knn", "--data", folder / "d", "--out", out)
    assert done.returncode == 130
    told = "goes on where it was" if stage == "after" else "begins again"
    assert told in done.stderr and f"longtail train knn --data {folder / 'd'} --out {out}" in done.stderr
    assert "Traceback" not in done.stderr and "Aborted" not in done.stderr


def test_one_thing_is_named_in_the_singular(folder):
    out = folder / "singular"
    trained = run("train", "knn", "--data", folder / "d", "--out", out, "--licence", "CC0-1.0", "--json")
    assert json.loads(trained.stdout) == {"run": str(out), "points": 12, "labels": 3, "done": []}
    assert 'license: "CC0-1.0"' in (out / "README.md").read_text()
    added = run("labels", "add", out, "-", stdin="bird\n")
    assert "added 1 label;" in added.stderr
    assert "took 1 label away" in run("labels", "undo", out).stderr
    assert "evaluating on 1 point\n" in run("evaluate", out, "--data", folder / "d").stderr


def test_decisions_leave_out_what_held_out_points_say_is_too_low(folder):
    many = folder / "many"
    many.mkdir()
    rows = [{"text": f"word{n % 9} fog{n % 7}", "labels": [n % 9]} for n in range(400)]
    (many / "trn.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (many / "lbl.jsonl").write_text("".join(f'{{"text": "label{n}"}}\n' for n in range(9)))
    wide = ("--set", "lexical.neighbours=100", "--set", "lexical.power=1")
    assert run("train", "knn", "--data", many, "--out", folder / "decided", *wide).returncode == 0
    every = json.loads(run("predict", folder / "decided", "-", stdin="word3 fog1").stdout)["labels"]
    sure = json.loads(run("predict", folder / "decided", "-", "--decide", "bins", stdin="word3 fog1").stdout)["labels"]
    assert [label["text"] for label in sure] == ["label3"] and len(every) > 1
    for wrong in (("--decide", "bin"), ("--decide", "bins", "--threshold", "0.5")):
        assert run("predict", folder / "decided", "-", *wrong, stdin="word3").returncode == 3


def test_a_table_from_training_to_a_report(folder, monkeypatch):
    table, out, answers = folder / "shop.csv", folder / "shop", folder / "answers.jsonl"
    rows = [
        f"{colour} {animal},x{n},{animal}"
        for n, colour in enumerate(("red", "old", "wild"))
        for animal in ("cat", "dog")
    ]
    table.write_text("\n".join(["headline,note,topic", *rows]) + "\n")
    columns = ("--text", "headline,note", "--labels", "topic")
    done = run("train", "knn", "--data", table, "--out", out, "--holdout", "0.3", *columns)
    assert "evaluated on 2 held out" in done.stderr, done.stderr
    kept = json.loads((out / "metrics.json").read_text())["evaluations"]
    assert [one["split"] for one in kept] == ["validation"]
    with monkeypatch.context() as patched:
        patched.setattr("longtail.answers._finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        stopped = run("predict", out, table, "--out", answers, "-k", 1)
    assert stopped.returncode == 130 and "goes on where it was" in stopped.stderr
    (folder / "new.csv").write_text("headline,note,topic\nmy cat,y,cat\nan owl,y,owl\n")
    assert "1 label of the data unknown" in run("evaluate", out, "--data", folder / "new.csv", *columns).stderr
    done = run("predict", out, table, "--out", answers, "-k", 1)  # figures that came meanwhile do not matter
    assert done.returncode == 0 and "headline + note" in done.stderr and "6 rows" in done.stderr, done.stderr
    page = folder / "shop.html"
    assert run("report", out, "--data", folder / "new.csv", "--out", page, *columns).returncode == 0
    assert "shop on new, test" in page.read_text() and "owl" in page.read_text()
