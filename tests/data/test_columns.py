"""Which column of a table is what, and whether its labels are names or ids."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longtail.data.check import check
from longtail.data.dataset import Dataset
from longtail.data.formats import load
from longtail.errors import DataError
from longtail.types import Texts


def folder(root: Path, **files: str) -> Path:
    """Write files; `trn__csv` stands for trn.csv."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name.replace("__", ".")).write_text(content, encoding="utf-8")
    return root


def rows(data: Dataset, split: str = "train") -> list[list[int]]:
    targets = data[split].targets
    return [targets.indices[a:b].tolist() for a, b in zip(targets.indptr[:-1], targets.indptr[1:], strict=True)]


def texts(column: Texts | None) -> list[str]:
    assert column is not None
    return column.tolist()


def test_numbers_without_a_label_file_are_names(tmp_path: Path) -> None:
    folder(tmp_path, trn__jsonl='{"text": "a", "labels": [1]}', dev__jsonl='{"text": "b", "labels": [4, 4]}')
    data = load(tmp_path)
    assert texts(data.labels.texts) == ["1", "4"] and rows(data, "validation") == [[1]]
    data = load(tmp_path, labels_are="ids")
    assert len(data.labels) == 5 and data.labels.texts is None and rows(data, "validation") == [[4]]


NUMBERS = {"years": "2020|2021|5", "ean": "4006381333931|4006381333948", "many": "123456789012345678901"}


@pytest.mark.parametrize("cell", NUMBERS.values(), ids=NUMBERS)
def test_numeric_tags_are_names_in_every_table(tmp_path: Path, cell: str) -> None:
    names = sorted(cell.split("|"))
    (tmp_path / "a.csv").write_text(f"text,labels\na,{cell}\n")
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "labels": [{cell.replace("|", ",")}]}}\n')
    tags = pa.array([[int(name) for name in names]]) if len(names) > 1 else pa.array([names])
    pq.write_table(pa.table({"text": ["a"], "labels": tags}), tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text(" ".join(f"__label__{name}" for name in names) + " a\n")
    for path in sorted(tmp_path.iterdir()):
        assert texts(load(path).labels.texts) == names, path


def test_numbers_are_ids_where_they_are_positions_of_a_label_file(tmp_path: Path) -> None:
    files = {"trn__csv": "text,labels\na,0|2\n", "lbl__csv": "id,text\n7,red\n8,blue\n9,green\n"}
    assert rows(load(folder(tmp_path / "a", **files))) == [[0, 2]]
    files["trn__csv"] = "text,labels\na,7|9\n"
    assert rows(load(folder(tmp_path / "b", **files))) == [[0, 2]]  # raw ids, as they are no positions
    with pytest.raises(DataError, match="label 7 of 3 labels"):
        load(tmp_path / "b", labels_are="ids")
    files["lbl__csv"] = "id,text\n1,red\n0,blue\n"
    folder(tmp_path / "c", **files | {"trn__csv": "text,labels\na,1\n"})
    assert rows(load(tmp_path / "c")) == [[1]] and rows(load(tmp_path / "c", labels_are="names")) == [[0]]
    digits = folder(tmp_path / "e", trn__jsonl='{"text": "a", "labels": ["2", "0"]}')
    assert texts(load(digits).labels.texts) == ["0", "2"] and len(load(digits, labels_are="ids").labels) == 3
    with pytest.raises(DataError, match="'x' is no id"):
        load(folder(tmp_path / "d", trn__csv="text,labels\na,x\n"), labels_are="ids")


def test_splits_may_have_ids_and_names(tmp_path: Path) -> None:
    trn, tst = '{"text": "a", "labels": [1]}', '{"text": "b", "labels": ["x", "U2"]}'
    lbl = '{"text": "x", "id": "U1"}\n{"text": "y", "id": "U2"}\n'
    data = load(folder(tmp_path / "a", trn__jsonl=trn, tst__jsonl=tst, lbl__jsonl=lbl))
    assert rows(data) == [[1]] and rows(data, "test") == [[0, 1]]
    assert texts(load(folder(tmp_path / "b", trn__jsonl=trn, tst__jsonl=tst)).labels.texts) == ["1", "U2", "x"]


@pytest.mark.parametrize(
    ("header", "text", "labels"),
    [
        ("Book Title,Author,Genre list,Year", "Book Title", "Genre list"),
        (",review_text,brand,product category", "review_text", "product category"),
        ("sku,description,brand,CATEGORY", "description", "CATEGORY"),
        ("name,category,subcategory,x", "name", "category"),
        ("a,b,tags,text", "text", "tags"),
    ],
)
def test_columns_are_found_by_their_names(tmp_path: Path, header: str, text: str, labels: str) -> None:
    names = header.split(",")
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n" + "".join(",".join(f"{name} {n % 2}" for name in names) + "\n" for n in range(4)))
    data = load(path)
    assert data.train.columns == (text,) and texts(data.labels.texts) == [f"{labels} 0", f"{labels} 1"]


def test_columns_are_found_by_their_content(tmp_path: Path) -> None:
    rows = [(n, f"some words {n}", "xy"[n % 2], f"2026-01-0{n + 1}", 1.5 * n) for n in range(6)]
    (tmp_path / "a.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    data = load(tmp_path / "a.csv")
    assert data.train.columns == ("2",) and texts(data.labels.texts) == ["x", "y"]
    (tmp_path / "b.tsv").write_text("x\tred old cat\ny\tsmall dog\nx\tcat\n")
    assert load(tmp_path / "b.tsv").train.columns == ("2",)
    (tmp_path / "c.csv").write_text("title|tags\nred cat|a,b\n")
    assert texts(load(tmp_path / "c.csv").labels.texts) == ["a", "b"]


def test_a_column_of_switches_is_not_taken_for_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("comment,toxic,rude\nso bad,1,0\nso nice,0,0\nso so,1,1\n")
    with pytest.raises(DataError, match="no column looks like labels"):
        load(tmp_path / "a.csv")
    assert len(load(tmp_path / "a.csv", labels="toxic").labels) == 2


def test_a_guessed_header_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("zebra,Zoo\nred cat,Cats\nold cat,Cats\n")
    assert check(tmp_path / "a.csv").notes[0] == "text: zebra, labels: Zoo (the first row was taken for a header)"
    (tmp_path / "a.csv").write_text("sku,phrase\n7,red cat\n7,old cat\n")
    assert check(tmp_path / "a.csv").notes[0] == "text: phrase, labels: sku"
