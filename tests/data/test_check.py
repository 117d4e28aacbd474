"""The check lists every problem of every kind with its place, and keeps reading."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from conftest import shared_data

from longtail.data.check import check
from longtail.data.dataset import from_rows
from longtail.data.formats import FORMATS, load, write

WRITABLE = [name for name, kind in FORMATS.items() if kind.writable]
ROWS = [
    '{"text": "a", "labels": [0]}',
    '{"text": "b", "labels": [0, 9]}',
    "not json",
    '{"text": "c", "labels": [-1, 1]}',
    '{"text": "", "labels": [1, 1]}',
    '{"text": "a", "labels": [0], "weights": [2]}',
    '{"text": "d", "labels": [0], "weights": [1, 1]}',
    '{"text": "e", "labels": [true, "x"]}',
    '{"text": "f\\ud800", "labels": [1]}',
    '{"text": "g", "labels": [9]}',
]


def spoiled(root: Path) -> Path:
    (root / "trn.jsonl").write_bytes("\n".join(ROWS).encode() + b'\n{"text": "caf\xe9", "labels": [1]}\n')
    (root / "lbl.jsonl").write_text('{"text": "x"}\n{"text": ""}\n{"text": "x"}\n')
    (root / "trn_filter.txt").write_text("0 0\n99 0\n1 2\n")
    return root


def test_every_problem_is_listed_with_its_line(tmp_path: Path) -> None:
    report = check(spoiled(tmp_path))
    errors = {(problem.kind, Path(problem.file).name, problem.line) for problem in report.errors}
    assert errors == {
        ("not JSON", "trn.jsonl", 3),
        ("weights of another length", "trn.jsonl", 7),
        ("wrong type", "trn.jsonl", 8),
        ("bad UTF-8", "trn.jsonl", 11),
        ("label id out of range", "trn.jsonl", 2),
        ("label id out of range", "trn.jsonl", 10),
        ("negative label id", "trn.jsonl", 4),
        ("weight out of range", "trn.jsonl", 6),
        ("filter out of range", "trn_filter.txt", 2),
    }
    warnings = {(problem.kind, Path(problem.file).name, problem.line) for problem in report.warnings}
    assert warnings == {
        ("duplicate label of a point", "trn.jsonl", 5),
        ("empty text", "trn.jsonl", 5),
        ("lone surrogate", "trn.jsonl", 9),
        ("blank label text", "lbl.jsonl", 2),
        ("duplicate label text", "lbl.jsonl", 3),
        ("filtered target", "trn_filter.txt", 0),
    }
    assert all(problem.remedy and problem.found for problem in report.problems)
    assert not report.ok and report.counts["wrong type"] == 2


def test_rows_keep_their_places_while_checking(tmp_path: Path) -> None:
    data = check(spoiled(tmp_path)).data
    assert data is not None and len(data.train) == 11
    texts = data.train.need_texts("this")
    assert texts[2] == "" and texts[3] == "c" and texts[8] == "f\ufffd"
    assert data.train.excluded.nnz == 2


def test_listing_is_capped_but_the_count_is_full(tmp_path: Path) -> None:
    (tmp_path / "trn.jsonl").write_text('{"text": "a", "labels": [7]}\n' * 50)
    (tmp_path / "lbl.jsonl").write_text('{"text": "x"}\n')
    report = check(tmp_path, most=3)
    assert len(report.errors) == 3 and report.counts["label id out of range"] == 50
    assert len(report.warnings) == 0  # lines with an error are not also warned of


def test_duplicate_texts_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "trn.jsonl").write_text('{"text": "a", "labels": [0]}\n{"text": " a", "labels": [0]}\n')
    report = check(tmp_path)
    assert report.ok and [str(problem) for problem in report.problems] == [
        f"warning: {tmp_path}/trn.jsonl:2: the text of line 1 again: 'a'; this is allowed; drop one if it was not meant"
    ]


def test_labels_that_were_split_at_commas_are_warned_of_once(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('text,labels\na,"Paris, France"\nb,"x,y"\n')
    report = check(path)
    assert report.ok and [(problem.kind, problem.line) for problem in report.problems] == [
        ("labels split at commas", 1)
    ]
    assert "commas" in report.problems[0].found and "|" in report.problems[0].remedy
    for cells in ('"0, 2"', "x|y", "x;y", "x", '"[""x, y"", ""z""]"'):
        path.write_text(f"text,labels\na,{cells}\n")
        assert check(path).problems == ()


def test_a_blank_label_text_is_placed_without_a_label_file(tmp_path: Path) -> None:
    (tmp_path / "trn.jsonl").write_text('{"text": "a", "labels": ["x"]}\n{"text": "b", "labels": ["", "x"]}\n')
    (problem,) = check(tmp_path).problems
    assert (problem.kind, Path(problem.file).name, problem.line) == ("blank label text", "trn.jsonl", 2)


def test_the_files_of_an_arrow_folder_are_named(tmp_path: Path) -> None:
    data = from_rows({"train": (["a", "a"], [[0], [1]])}, label_texts=["x", "x"])
    write(data, tmp_path / "data", "arrow")
    problems = {(problem.kind, Path(problem.file).name, problem.line) for problem in check(tmp_path / "data").problems}
    assert problems == {("duplicate text", "train.arrow", 2), ("duplicate label text", "labels.arrow", 2)}


def test_a_truncated_gzip_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    rows = "".join(f'{{"text": "text {n}", "labels": [{n % 7}]}}\n' for n in range(4000))
    (tmp_path / "trn.jsonl.gz").write_bytes(gzip.compress(rows.encode())[:-2000])
    report = check(tmp_path)
    assert report.errors[0].kind == "damaged gzip" and report.data is not None
    assert 1000 < len(report.data.train) < 4000


def test_what_cannot_be_read_at_all(tmp_path: Path) -> None:
    report = check(tmp_path / "absent")
    assert report.data is None and [problem.kind for problem in report.errors] == ["unreadable"]
    assert check(tmp_path, format="nonsense").errors[0].found == "unknown format 'nonsense'"
    (tmp_path / "trn.jsonl").write_text("")
    (tmp_path / "tst.jsonl").write_text('{"text": "a", "labels": [0]}')
    assert check(tmp_path).counts == {"no points": 1}


def test_latin_1_is_a_warning_in_the_repository_format(tmp_path: Path) -> None:
    (tmp_path / "trn.json").write_bytes(b'{"title": "caf\xe9", "target_ind": [0], "target_rel": [1]}\n')
    report = check(tmp_path)
    assert report.ok and report.warnings[0].kind == "bad UTF-8" and report.warnings[0].line == 1


@pytest.mark.parametrize("name", WRITABLE)
def test_a_sound_data_set_has_no_errors(tmp_path: Path, name: str) -> None:
    data = from_rows({"train": (["a", "b"], [[0], [1]]), "test": (["c"], [[]])}, label_texts=["x", "y"])
    write(data, tmp_path / "data", name)
    report = check(tmp_path / "data")
    assert report.problems == () and report.data is not None
    assert report.data.fingerprint == data.fingerprint == load(tmp_path / "data").fingerprint


def test_a_changed_arrow_folder_is_noticed(tmp_path: Path) -> None:
    write(from_rows({"train": (["abc"], [[0]])}, label_texts=["x"]), tmp_path / "data", "arrow")
    path = tmp_path / "data" / "train.arrow"
    path.write_bytes(path.read_bytes().replace(b"abc", b"abd"))
    assert "fingerprint" in check(tmp_path / "data").errors[0].found


def test_a_shared_data_set_is_sound() -> None:
    report = check(shared_data("LF-MDNSeeAlsoTitles-6K"))
    assert report.ok and set(report.counts) <= {"duplicate text", "duplicate label text"}
