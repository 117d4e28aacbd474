"""The ending of a name says what is written; what cannot be written is refused, and errors fit Python and the shell."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from conftest import ROOT
from test_cli import run

import longtail as lt
from longtail.cli.report import Report
from longtail.data.formats.single import ENDINGS
from longtail.errors import Occupied

ROWS = {"train": (["red cat", "old dog"], [["cat"], ["dog"]])}


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.csv").write_text("title,tags\nred cat,cat\nold dog,dog\n")
    return tmp_path


@pytest.mark.parametrize("name", ["conv.xlsx", "conv.XLS", "conv.json", "conv.txt", "conv.csv.gz"])
def test_an_ending_that_is_not_written_is_no_folder(shop, name):
    done = run("data", "convert", shop / "shop.csv", shop / name)
    assert done.returncode == 3 and "is not written; end the name with .jsonl, .jsonl.gz, .csv, .tsv" in done.stderr
    with pytest.raises(lt.DataError, match="is not written"):
        lt.write(lt.from_rows(ROWS), shop / name)
    assert not (shop / name).exists()


@pytest.mark.parametrize("ending", ENDINGS)
def test_write_goes_by_the_ending(tmp_path, ending):
    data, path = lt.from_rows(ROWS), tmp_path / f"x{ending}"
    lt.write(data, path)
    assert path.is_file() and lt.load(path).fingerprint == data.fingerprint
    lt.write(data, path, ending[1:].removesuffix(".gz"), force=True)
    with pytest.raises(Occupied, match="force=True"):
        lt.write(data, path)
    with pytest.raises(lt.DataError, match="is not arrow"):
        lt.write(data, path, "arrow")


def test_a_name_without_an_ending_is_a_folder(tmp_path):
    lt.write(lt.from_rows(ROWS), tmp_path / "runs.v2")
    assert (tmp_path / "runs.v2").is_dir()


def test_one_file_has_one_split(tmp_path):
    data = lt.from_rows(ROWS | {"test": (["my cat"], [["cat"]])})
    with pytest.raises(lt.DataError, match="one file holds one split, and there are train, test; choose a split"):
        lt.write(data, tmp_path / "x.csv")
    lt.write(data, tmp_path / "x.csv", split="test")
    assert (tmp_path / "x.csv").read_text() == "text,labels\nmy cat,cat\n"
    with pytest.raises(lt.DataError, match="how points were made"):
        lt.write(data, tmp_path / "y.jsonl", split="test", augmentation={"by": "gandalf"})


def test_predictions_go_by_the_ending_too(shop):
    assert run("train", "knn", "--data", shop / "shop.csv", "--out", shop / "run").returncode == 0
    refused = run("predict", shop / "run", shop / "shop.csv", "--out", shop / "o.xlsx")
    assert refused.returncode == 3 and "o.xlsx: .xlsx is not written" in refused.stderr
    done = run("predict", shop / "run", shop / "shop.csv", "--out", shop / "o.tsv", "-k", 1)
    assert done.returncode == 0, done.stderr
    with (shop / "o.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [(row["title"], row["labels"]) for row in rows] == [("red cat", "cat"), ("old dog", "dog")]
    again = run("predict", shop / "run", shop / "shop.csv", "--out", shop / "o.tsv")
    assert again.returncode == 3 and "pass --force" in again.stderr
    for content in ("title,tags\n", ""):
        (shop / "empty.csv").write_text(content)
        printed = run("predict", shop / "run", shop / "empty.csv")
        written = run("predict", shop / "run", shop / "empty.csv", "--out", shop / "e.csv")
        assert printed.returncode == written.returncode == 3
        for done in (printed, written):
            assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
                f"error: {shop / 'empty.csv'}: no texts in the input; give at least one row"
            ]


def test_one_thing_is_one(shop):
    (shop / "one.csv").write_text("title,tags\nred cat,cat\n")
    assert "1 point of train" in run("data", "convert", shop / "one.csv", shop / "one.jsonl").stderr
    done = run("data", "split", shop / "one.csv", shop / "parts")
    assert done.returncode == 3
    assert "a share of 0.1 of 1 training point leaves a split without points; give more points" in done.stderr
    assert "not repaired: 1 thing wrong" in run("doctor", shop / "no_model").stderr


def test_a_bin_of_one_label_is_drawn_so(shop):
    data = lt.from_rows({"train": (["red cat", "old dog", "my fox"], [["cat"], ["dog"], ["fox"]])})
    model = lt.fit("knn", data)
    report = Report("a", "b", lt.compare({"one": model}, data), model.frequencies, ("one",))
    drawing = next(iter(report._drawings().values()))
    assert [name.partition("\n")[2] for name in drawing.args[0]] == ["1 label"] * 3


def test_errors_outside_the_command_line_name_no_flags():
    modules = ("answers.py", "training/scratch.py", "data/formats/single.py", "engines/batches.py", "engines/graphs.py")
    for name in modules:
        assert not re.findall(r"remedy=.*--(?:force|out)\b", Path(ROOT, "src", "longtail", name).read_text()), name
