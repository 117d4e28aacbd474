"""A newcomer's ordinary files: from file to correct prediction with at most one flag, as commands and in Python."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cli import run

import longtail as lt

ROWS = [
    ("red cat on a mat", ["cat", "pet"]),
    ("small cat, asleep", ["cat", "pet"]),
    ('the "old" dog barks', ["dog", "pet"]),
    ("a dog of the house", ["dog", "pet"]),
    ("wild fox at night", ["fox"]),
    ("the fox and its den", ["fox"]),
]
QUESTION, ANSWER = "my fox", "fox"
TITLES, FIRST = [text for text, _ in ROWS], [labels[0] for _, labels in ROWS]


def table(header: list[str] | None, *columns: list[Any], delimiter: str = ",") -> str:
    """Write columns as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerows(([header] if header else []) + [list(row) for row in zip(*columns, strict=True)])
    return out.getvalue()


def tags(mark: str, names: dict[str, str] | None = None) -> list[str]:
    """Join the labels of every row."""
    return [mark.join((names or {}).get(label, label) for label in labels) for _, labels in ROWS]


def excel(path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["SKU", "Product name", "Categories"])
    for number, (text, labels) in enumerate(ROWS):
        book.active.append([4006381333931 + number, text, "; ".join(labels)])
    book.active.append([None, None, None])
    book.create_sheet("Notes").append(["nothing"])
    book.save(path)


def parquet(path: Path) -> None:
    labels = pa.array([labels for _, labels in ROWS], pa.list_(pa.string()))
    pq.write_table(pa.table({"headline": TITLES, "topics": labels, "price": [1.5] * len(ROWS)}), path)


def text_of(content: str, encoding: str = "utf-8") -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content.encode(encoding)) and None


@dataclass(frozen=True)
class Case:
    """A file, what has to be said of it, and the right answer."""

    name: str
    write: Callable[[Path], None]
    say: dict[str, str] = field(default_factory=dict)  # at most one flag
    told: str = ""  # what the one line on stderr says
    answer: str = ANSWER
    folder: bool = False


YEARS = {"cat": "2020", "pet": "2021", "fox": "5", "dog": "7"}
EANS = {"cat": "4006381333931", "pet": "4006381333948", "fox": "0012345678905", "dog": "4006381333962"}
EMPTY = table(["title", "tags"], [*TITLES, "", "no labels", ""], [*tags("|"), "", "", ""])
LANGUAGES = ["der rote Kater", "katten är röd", "собака лает", "狗 在 叫", "kettu juoksee yöllä", "renard de nuit fox"]
CASES = {
    "title and tags": Case("items.csv", text_of(table(["title", "tags"], TITLES, tags(";"))), told="separated by ;"),
    "bars": Case("items.csv", text_of(table(["title", "tags"], TITLES, tags("|"))), told="separated by |"),
    "commas": Case("items.csv", text_of(table(["name", "categories"], TITLES, tags(", "))), told="labels: categories"),
    "json lists": Case("a.csv", text_of(table(["title", "tags"], TITLES, [json.dumps(row[1]) for row in ROWS]))),
    "python lists": Case("a.csv", text_of(table(["title", "tags"], TITLES, [str(row[1]) for row in ROWS]))),
    "semicolons between cells": Case("export.csv", text_of(table(["Titel", "Tags"], TITLES, tags(","), delimiter=";"))),
    "tabs": Case("my data.tsv", text_of(table(["query", "label"], TITLES, FIRST, delimiter="\t"))),
    "another name": Case("export.dat", text_of(table(["id", "title", "tags"], list(range(6)), TITLES, tags("|")))),
    "excel": Case("Products.xlsx", excel, told="text: Product name, labels: Categories, separated by ;\n"),
    "byte order mark": Case("a.csv", text_of(table(["title", "tags"], TITLES, tags("|")), "utf-8-sig")),
    "utf-16": Case("a.csv", text_of(table(["title", "tags"], TITLES, tags("|")), "utf-16")),
    "quotes and lines in cells": Case(
        "a.csv", text_of(table(["title", "tags"], [f'{text}\n"more"' for text in TITLES], tags("|")))
    ),
    "numbers as tags": Case(
        "a.csv", text_of(table(["title", "tags"], TITLES, tags("|", YEARS))), answer="5", told="labels are names"
    ),
    "eans as tags": Case("a.csv", text_of(table(["title", "ean"], TITLES, tags("|", EANS))), answer=EANS["fox"]),
    "empty rows": Case("a.csv", text_of(EMPTY + "\n\n"), told="3 points without labels"),
    "no header": Case("a.csv", text_of(table(None, TITLES, tags("|"))), told="there is no header row"),
    "odd names": Case(
        "a.csv", text_of(table(["a", "b", "c"], ["x y z"] * 6, TITLES, tags("|"))), {"text": "b"}, told="text: b"
    ),
    "odd separator": Case("a.csv", text_of(table(["title", "tags"], TITLES, tags("#"))), {"sep": "#"}),
    "two columns of text": Case(
        "a.csv", text_of(table(["title", "description", "tags"], ["item"] * 6, TITLES, tags("|"))),
        {"text": "title,description"}, told="text: title + description",
    ),
    "many languages": Case("a.csv", text_of(table(["text", "labels"], LANGUAGES, tags("|")))),
    "parquet": Case("a.parquet", parquet, told="text: headline, labels: topics"),
    "json lines with a title": Case(
        "a.jsonl", text_of("".join(json.dumps({"title": text, "tags": row}) + "\n" for text, row in ROWS)),
        told="\nlabels: tags\n",
    ),
    "json lines": Case(
        "a.jsonl", text_of("".join(json.dumps({"name": text, "tags": row}) + "\n" for text, row in ROWS))
    ),
    "a json list": Case("a.json", text_of(json.dumps([{"title": text, "tags": row} for text, row in ROWS], indent=1))),
    "a folder with one file": Case(
        "products 2026.csv", text_of(table(["title", "tags"], TITLES, tags("|"))), folder=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_from_file_to_prediction(tmp_path: Path, case: Case) -> None:
    assert len(case.say) <= 1
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / case.name
    case.write(path)
    data = path.parent if case.folder else path
    flags = [word for name, value in case.say.items() for word in (f"--{name}", value)]
    done = run("train", "knn", "--data", data, "--out", tmp_path / "run", *flags)
    assert done.returncode == 0, done.stderr
    assert case.told in done.stderr
    answered = run("predict", tmp_path / "run", "-", "-k", 1, stdin=QUESTION + "\n")
    assert json.loads(answered.stdout)["labels"][0]["text"] == case.answer
    assert_reads_its_own_file(tmp_path, data, case)
    loaded = lt.load(data, **case.say)  # type: ignore[arg-type]
    assert loaded.labels.texts is not None and len(loaded.labels) == len({*loaded.labels.texts}) == 4 - (
        case.name == "my data.tsv"
    )
    assert lt.fit("knn", loaded.train).predict([QUESTION], k=1)[0][0][1] == case.answer


def assert_reads_its_own_file(tmp_path: Path, data: Path, case: Case) -> None:
    """Predict the file that was trained on, from the same columns: as many rows, and no header among them."""
    done = run("predict", tmp_path / "run", data, "-k", 2, "--out", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert case.say.get("text", "").replace(",", " + ") in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == len(ROWS) + 3 * (case.told == "3 points without labels")
    assert case.answer in [label["text"] for label in rows[5]["labels"]]
    assert len(rows[0]) >= 4  # id, columns, labels


def test_separate_train_and_test_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(table(["title", "tags"], TITLES, tags("|")))
    questions = ["my fox", "a cat", "an owl", "one more fox"]
    (tmp_path / "later.csv").write_text(table(["title", "tags"], questions, ["fox", "pet|cat", "owl", "fox|bird"]))
    assert run("train", "knn", "--data", tmp_path / "train.csv", "--out", tmp_path / "run").returncode == 0
    done = run("evaluate", tmp_path / "run", "--data", tmp_path / "later.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert "2 labels of the data unknown to the model, counted as missed: 'bird', 'owl'" in done.stderr
    figures = json.loads(done.stdout)
    assert (figures["P@1"], figures["R@5"]) == (75.0, 62.5)  # of owl nothing, of fox|bird half
    model, test = lt.Model.load(tmp_path / "run"), lt.load(tmp_path / "later.csv")
    assert lt.evaluate(model, test.train).values["R@5"] == pytest.approx(62.5)
    (tmp_path / "other.csv").write_text(table(["title", "tags"], questions[:2], ["u", "v"]))
    refused = run("evaluate", tmp_path / "run", "--data", tmp_path / "other.csv")
    assert refused.returncode == 3 and "knows none of the 2 labels" in refused.stderr


def test_labels_are_matched_by_raw_id_too(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "trn.csv").write_text(table(["text", "labels"], TITLES, [row[1][0] for row in ROWS]))
    (tmp_path / "d" / "lbl.csv").write_text("id,text\nB1,fox\nB2,dog\nB3,cat\n")
    model = lt.fit("knn", lt.load(tmp_path / "d").train)
    (tmp_path / "test.csv").write_text("text,labels\nmy fox,B1\n")
    assert lt.evaluate(model, lt.load(tmp_path / "test.csv").test).values["P@1"] == 100
    (tmp_path / "test.csv").write_text("text,labels\nmy fox,0\n")  # a position, for want of a label file
    assert lt.evaluate(model, lt.load(tmp_path / "test.csv").test).values["P@1"] == 100


def test_a_vocabulary_beside_a_table(tmp_path: Path) -> None:
    pytest.importorskip("rdflib")
    names = {
        "cat": ("cats", "kissat"),
        "dog": ("dogs", "koirat"),
        "fox": ("foxes", "ketut"),
        "pet": ("pets", "lemmikit"),
    }
    (tmp_path / "d").mkdir()
    concepts = "".join(
        f'<http://ex.org/{key}> skos:prefLabel "{en}"@en, "{fi}"@fi .\n' for key, (en, fi) in names.items()
    )
    head = "@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n"
    (tmp_path / "d" / "vocabulary.ttl").write_text(head + concepts)
    finnish = {key: fi for key, (_, fi) in names.items()}
    (tmp_path / "d" / "items.csv").write_text(table(["title", "subjects"], TITLES, tags(";", finnish)))
    done = run("train", "knn", "--data", tmp_path / "d", "--out", tmp_path / "run", "--language", "en")
    assert done.returncode == 0, done.stderr
    assert "labels: 4 concepts of vocabulary.ttl in en" in done.stderr
    answered = json.loads(run("predict", tmp_path / "run", "-", "-k", 1, stdin="my fox\n").stdout)
    assert (answered["labels"][0]["text"], answered["labels"][0]["raw_id"]) == ("foxes", "http://ex.org/fox")
    assert lt.load(tmp_path / "d", language="fi").labels.texts.tolist()[2] == "ketut"  # type: ignore[union-attr]


def test_holdout_trains_evaluates_and_says_so(tmp_path: Path) -> None:
    texts, labels = TITLES * 4, tags("|") * 4
    (tmp_path / "a.csv").write_text(table(["title", "tags"], texts, labels))
    done = run("train", "knn", "--data", tmp_path / "a.csv", "--out", tmp_path / "run", "--holdout", 0.25)
    assert "trained on 18 points, evaluated on 6 held out: P@1 " in done.stderr
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    (figures,) = json.loads((tmp_path / "run" / "metrics.json").read_text())["evaluations"]
    assert kept["points"] == 18 and (figures["points"], figures["split"]) == (6, "validation")
    refused = run("train", "knn", "--data", tmp_path / "a.csv", "--out", tmp_path / "x", "--holdout", 1)
    assert refused.returncode == 2 and not (tmp_path / "x").exists()


def test_training_sums_up_what_is_odd_in_the_data(tmp_path: Path) -> None:
    rows = table(["title", "tags"], [*TITLES, "", "alone", TITLES[0]], [*tags("|"), "cat", "", "cat|cat"])
    (tmp_path / "a.csv").write_text(rows)
    done = run("train", "knn", "--data", tmp_path / "a.csv", "--out", tmp_path / "run")
    assert (
        "odd in the data: 1 empty text, 1 point without labels, 1 repeated label of a point, "
        "1 text that stands there before;" in done.stderr
    )
    (tmp_path / "b.csv").write_text(table(["title", "tags"], TITLES, tags("|")))
    assert "odd" not in run("train", "knn", "--data", tmp_path / "b.csv", "--out", tmp_path / "run2").stderr


def test_check_says_what_numbers_were_taken_for_and_why(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title,tags\na,2020|2021|5\n")
    said = run("data", "check", tmp_path / "a.csv").stderr
    assert "text: title, labels: tags, separated by |" in said
    assert "labels are names: no label file gives the numbers a meaning" in said
    assert "labels are ids: as you say" in run("data", "check", tmp_path / "a.csv", "--labels-are", "ids").stderr
    assert json.loads(run("data", "info", tmp_path / "a.csv", "--json").stdout)["L"] == 3
    assert json.loads(run("data", "info", tmp_path / "a.csv", "--json", "--labels-are", "ids").stdout)["L"] == 2022


def test_convert_makes_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(table(["title", "tags"], TITLES, tags(";")))
    before = lt.load(tmp_path / "a.csv")
    for ending in ("csv", "tsv", "jsonl", "jsonl.gz", "parquet"):
        out = tmp_path / f"b.{ending}"
        assert run("data", "convert", tmp_path / "a.csv", out).returncode == 0
        assert out.is_file() and lt.load(out).fingerprint == before.fingerprint
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "b.csv").returncode == 3  # it is there
    wrong = run("data", "convert", tmp_path / "a.csv", tmp_path / "c.csv", "--format", "parquet")
    assert wrong.returncode == 3 and "c.csv is not parquet" in wrong.stderr
    (tmp_path / "d").mkdir()
    for name in ("train", "test"):
        (tmp_path / "d" / f"{name}.csv").write_text('text,labels\na,"[""x, y""]"\n')
    two = run("data", "convert", tmp_path / "d", tmp_path / "c.csv")
    assert two.returncode == 3 and "choose a split" in two.stderr
    assert run("data", "convert", tmp_path / "d", tmp_path / "c.csv", "--split", "test").returncode == 0
    assert lt.load(tmp_path / "c.csv").labels.texts.tolist() == ["x, y"]  # type: ignore[union-attr]
