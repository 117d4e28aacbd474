"""Formats are found by content, labels may be ids or texts, and what a format cannot hold is refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from conftest import shared_data

from longtail.data.dataset import Dataset, Labels, Split, from_rows
from longtail.data.formats import FORMATS, load, write
from longtail.data.formats.survey import role
from longtail.errors import DataError
from longtail.types import Texts, label_matrix, no_pairs


def folder(root: Path, **files: str) -> Path:
    """Write files; `trn__txt` stands for trn.txt."""
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


SIZES = {
    "CVELibraries-4K": (6133, 1272, 4236),
    "LF-MDNSeeAlso-6K": (7458, 1767, 5671),
    "LF-MDNSeeAlsoTitles-6K": (7458, 1767, 5671),
    "LF-MSDocsSeeAlsoTitles-87K": (128438, 29760, 87028),
    "YSOFinnaTitles-24K": (266136, 46963, 24126),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_shared_data_sets_load(name: str) -> None:
    data = load(shared_data(name))
    assert (len(data.train), len(data.test), len(data.labels)) == SIZES[name]
    assert data.name == name
    assert (data.train.targets.data == 1).all()


def test_filters_of_a_shared_data_set() -> None:
    data = load(shared_data("LF-MDNSeeAlsoTitles-6K"))
    assert data.train.excluded[[1], [770]] == 1 and data.test.excluded[[1], [5136]] == 1
    assert not data.train.targets.multiply(data.train.excluded).nnz


def test_formats_describe_themselves() -> None:
    assert list(FORMATS) == [
        "jsonl", "csv", "tsv", "parquet", "excel", "arrow", "xmc", "xmc-json", "xc", "attentionxml", "pecos",
        "fasttext",
    ]  # fmt: skip
    assert str(FORMATS["fasttext"]).endswith("(hard labels only)")
    assert {name for name, kind in FORMATS.items() if not kind.soft} == {"xc", "attentionxml", "fasttext"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trn.jsonl.gz", ("points", "train")), ("valid.csv", ("points", "validation")),
        ("dev.txt", ("points", "validation")),
        ("tst_filter_labels.txt", ("filter", "test")), ("filter_labels_train.txt", ("filter", "train")),
        ("trn_X_Y.txt", ("targets", "train")), ("Y.tst.npz", ("targets", "test")),
        ("lbl_X_Xf.txt", ("label_features", "")),
        ("test_raw_ids.txt", ("ids", "test")), ("train_texts.txt", ("texts", "train")), ("Z.all.txt", ("labels", "")),
        ("train_v1.txt", None), ("emb_init.npy", None), ("README.md", None), ("latest.txt", None),
    ],
)  # fmt: skip
def test_roles(name: str, expected: tuple[str, str] | None) -> None:
    assert role(name) == expected


# labels as ids and as texts


def test_label_texts_without_a_label_file_are_sorted(tmp_path: Path) -> None:
    folder(
        tmp_path,
        trn__jsonl='{"text": "a", "labels": ["pear", "apple"]}\n',
        tst__jsonl='{"text": "b", "labels": ["fig"]}',
    )
    data = load(tmp_path)
    assert texts(data.labels.texts) == ["apple", "fig", "pear"]
    assert rows(data) == [[0, 2]] and rows(data, "test") == [[1]]


def test_label_texts_are_found_in_the_label_file(tmp_path: Path) -> None:
    folder(
        tmp_path,
        trn__jsonl='{"text": "a", "labels": ["7", " pear\\n"]}',
        lbl__jsonl='{"text": "pear"}\n{"text": "7"}\n\n',
    )
    data = load(tmp_path)
    assert rows(data) == [[0, 1]] and len(data.labels) == 2


def test_an_ambiguous_label_text_matters_only_when_used(tmp_path: Path) -> None:
    labels = '{"text": "a"}\n{"text": "b"}\n{"text": "a"}\n'
    assert rows(load(folder(tmp_path / "x", trn__jsonl='{"text": "t", "labels": ["b"]}', lbl__jsonl=labels))) == [[1]]
    with pytest.raises(DataError, match="lines 1 and 3 of lbl"):
        load(folder(tmp_path / "y", trn__jsonl='{"text": "t", "labels": ["a"]}', lbl__jsonl=labels))


def test_digits_as_json_strings_are_texts(tmp_path: Path) -> None:
    data = load(folder(tmp_path, trn__jsonl='{"text": "a", "labels": ["9", "10"]}'))
    assert texts(data.labels.texts) == ["10", "9"]


def test_weights_are_merged_dropped_and_kept(tmp_path: Path) -> None:
    folder(tmp_path, trn__jsonl='{"text": "a", "labels": [2, 0, 2, 1], "weights": [0.25, 1, 0.5, 0]}')
    targets = load(tmp_path).train.targets
    assert targets.indices.tolist() == [0, 2] and targets.data.tolist() == [1.0, 0.5]


# spellings


def test_jsonl_variants(tmp_path: Path) -> None:
    first = '\ufeff{"title": "a ", "content": " b", "labels": [], "uid": 7, "extra": {}}\r\n'
    data = load(folder(tmp_path, train__json=first + '{"text": "c\\u0000d", "labels": [0]}'))
    assert texts(data.train.texts) == ["a b", "c d"] and texts(data.train.ids) == ["7", ""]


def test_a_single_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "a", "labels": ["x"]}')
    data = load(path, name="other")
    assert list(data.splits) == ["train"] and data.name == "other" and load(path).name == "mine"


def test_several_gzip_members_and_zero_padding(tmp_path: Path) -> None:
    one, two = (gzip.compress(f'{{"text": "{word}", "labels": [0]}}\n'.encode()) for word in ("a", "b"))
    (tmp_path / "trn.jsonl.gz").write_bytes(one + two + bytes(100))
    assert texts(load(tmp_path).train.texts) == ["a", "b"]


@pytest.mark.parametrize(
    ("cells", "expected", "names"),
    [
        (["0|2", "1"], [[0, 2], [1]], ["0", "1", "2"]),
        (["0;2", ""], [[0, 1], []], ["0", "2"]),
        (['"0, 2"', "1"], [[0, 2], [1]], ["0", "1", "2"]),
        (["0 2", "1"], [[0, 2], [1]], ["0", "1", "2"]),
        (['"[0, 2]"', "[]"], [[0, 1], []], ["0", "2"]),
        (["\"['b', 'a, c']\"", "[]"], [[0, 1], []], ["a, c", "b"]),
        (['"b\na"', "a"], [[0, 1], [0]], ["a", "b"]),
        (['"[""b"", ""a, c""]"', '"[""a, c""]"'], [[0, 1], [0]], ["a, c", "b"]),
        (["b c|a", "a"], [[0, 1], [0]], ["a", "b c"]),
        (["b c", "a"], [[1], [0]], ["a", "b c"]),
    ],
)
def test_label_cells_of_tables(
    tmp_path: Path, cells: list[str], expected: list[list[int]], names: list[str] | None
) -> None:
    lines = "".join(f"t{n},{cell}\n" for n, cell in enumerate(cells))
    data = load(folder(tmp_path, train__csv=f"Text,Labels\n{lines}"))
    assert rows(data) == expected
    assert (None if data.labels.texts is None else texts(data.labels.texts)) == names


def test_a_table_with_weights_ids_and_lines_in_cells(tmp_path: Path) -> None:
    content = 'id,labels,text,weights\n"x\ny",0|1,"a\n\n""b""",0.5 1\n\nz,1,c,\n'
    data = load(folder(tmp_path, train__csv=content))
    assert texts(data.train.texts) == ['a "b"', "c"] and texts(data.train.ids) == ["x y", "z"]
    assert data.train.targets.data.tolist() == [0.5, 1, 1]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_the_header_tells_what_separates_the_cells(tmp_path: Path, mark: str, suffix: str) -> None:
    with (tmp_path / f"train.{suffix}").open("w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows([["Text", "labels", "id"], ["a, b", "0|1", "x"], ["c;", "1", "y"]])
    (tmp_path / f"lbl.{suffix}").write_text("id;text\nu;red\nv;blue\n".replace(";", mark))
    data = load(tmp_path)
    assert texts(data.train.texts) == ["a, b", "c;"] and texts(data.train.ids) == ["x", "y"]
    assert rows(data) == [[0, 1], [1]] and texts(data.labels.texts) == ["red", "blue"]
    assert load(tmp_path, format=suffix).fingerprint == data.fingerprint


def test_parquet_variants(tmp_path: Path) -> None:
    table = {
        "title": pa.array(["a", "b"]).dictionary_encode(),
        "labels": pa.array([["x", "y"], []], pa.list_(pa.string())),
        "weights": pa.array([[0.5, 1.0], []]),
        "id": pa.array([1, 2]),
    }
    pq.write_table(pa.table(table), tmp_path / "train.parquet")
    data = load(tmp_path)
    assert texts(data.train.ids) == ["1", "2"] and texts(data.labels.texts) == ["x", "y"]
    assert data.train.targets.toarray().tolist() == [[0.5, 1], [0, 0]]
    pq.write_table(pa.table({"name": ["a", "b"], "tags": ["x;y", None]}), tmp_path / "train.parquet")
    assert rows(load(tmp_path)) == [[0, 1], []]
    pq.write_table(pa.table({"name": ["a", "b"], "tags": [7, 5]}), tmp_path / "train.parquet")
    assert texts(load(tmp_path).labels.texts) == ["5", "7"]


def test_xmc_with_npz_targets_and_an_empty_filter(tmp_path: Path) -> None:
    folder(tmp_path, trn_X__txt="a\n\n", Y__txt="x\ny\nz\n", filter_labels_train__txt="")
    sp.save_npz(tmp_path / "Y.trn.npz", sp.csr_matrix(np.array([[0, 1, 0.5], [0, 0, 0]])))
    data = load(tmp_path)
    assert data.train.targets.toarray().tolist() == [[0, 1, 0.5], [0, 0, 0]] and texts(data.train.texts) == ["a", ""]


def test_xmc_features_without_texts(tmp_path: Path) -> None:
    folder(
        tmp_path,
        trn_X_Y__txt="2 3\n0:1.00000 2:1\n\n",
        trn_X_Xf__txt="2 2\n\n1:.5 1:2e-1 \n\n",
        lbl_X_Xf__txt="3 2\n\n0:-1\n\n",
    )
    data = load(tmp_path)
    assert rows(data) == [[0, 2], []] and data.train.texts is None and data.train.features is not None
    assert data.train.features.toarray().tolist() == [[0, 0], [0, np.float32(0.7)]]
    with pytest.raises(DataError, match="needs texts"):
        data.train.need_texts("this")


def test_xmc_json_reads_latin_1(tmp_path: Path) -> None:
    (tmp_path / "trn.json").write_bytes(b'{"uid": "u", "title": "caf\xe9", "target_ind": [1], "target_rel": [1.0]}\n')
    (tmp_path / "lbl.json").write_bytes(b'{"uid": "0", "title": "x"}\n{"uid": "1", "title": "y"}\n')
    data = load(tmp_path)
    assert texts(data.train.texts) == ["café"] and texts(data.labels.ids) == ["0", "1"]


def test_one_file_sparse_with_a_point_without_labels(tmp_path: Path) -> None:
    folder(tmp_path, eurlex_train__txt="4 3 2\n0,1 0:0.5 2:1\n 1:1\n1\n2:1\n")
    data = load(tmp_path)
    assert rows(data) == [[0, 1], [], [1], []] and len(data.labels) == 2
    assert data.train.features is not None and data.train.features.nnz == 4


def test_attentionxml_sorts_its_labels(tmp_path: Path) -> None:
    folder(
        tmp_path,
        train_texts__txt="a\nb\n",
        train_labels__txt="10 9\n\n",
        test_texts__txt="c\n",
        test_labels__txt="x_y\n",
    )
    data = load(tmp_path)
    assert texts(data.labels.texts) == ["10", "9", "x_y"] and rows(data) == [[0, 1], []]


def test_pecos_without_matrices(tmp_path: Path) -> None:
    data = load(folder(tmp_path, trn__txt="0,2\ta b\n\tc\n", Z__all__txt="x\ny\nz\n"))
    assert rows(data) == [[0, 2], []] and texts(data.train.texts) == ["a b", "c"]


def test_fasttext_names_and_ids(tmp_path: Path) -> None:
    line = "__label__sauce __label__cheese How much? __label__sauce\n"
    named = load(folder(tmp_path / "names", train__txt=line))
    assert texts(named.labels.texts) == ["cheese", "sauce"] and texts(named.train.texts) == ["How much?"]
    looked_up = load(folder(tmp_path / "file", train__txt=line, labels__txt="sauce\nbread\ncheese\n"))
    assert rows(looked_up) == [[0, 2]]
    numbered = load(folder(tmp_path / "ids", train__txt="__label__3 a\n", labels__txt="a\nb\nc\nd\n"))
    assert rows(numbered) == [[3]]


# folders that are not clear


def test_nothing_recognised_says_what_is_there(tmp_path: Path) -> None:
    folder(tmp_path, train__txt="hello\n", notes__md="x")
    with pytest.raises(DataError, match=r"train.txt \(begins b'hello.n'\).*recognises"):
        load(tmp_path)
    with pytest.raises(DataError, match="an empty folder"):
        load(folder(tmp_path / "empty"))
    with pytest.raises(DataError, match="not found"):
        load(tmp_path / "absent")


def test_two_files_for_one_purpose(tmp_path: Path) -> None:
    row = '{"text": "a", "labels": [0]}\n'
    with pytest.raises(DataError, match="2 files for the points of train"):
        load(folder(tmp_path / "a", trn__jsonl=row, train__jsonl=row))
    with pytest.raises(DataError, match=r"trn.jsonl is jsonl, tst.txt is fasttext"):
        load(folder(tmp_path / "b", trn__jsonl=row, tst__txt="__label__a b"))


def test_a_given_format_is_obeyed(tmp_path: Path) -> None:
    folder(tmp_path, train__txt="no label here\n__label__a b\n")
    assert len(load(tmp_path, format="fasttext").train) == 2
    with pytest.raises(DataError, match="did you mean 'jsonl'"):
        load(tmp_path, format="jsnl")
    with pytest.raises(DataError, match="no file with points"):
        load(tmp_path, format="xmc")


# writing


def soft_data() -> Dataset:
    labels = Labels(2)
    targets = label_matrix(np.array([0, 1]), np.array([1]), (1, 2), np.array([0.1]))
    return Dataset(labels, {"train": Split("train", labels, targets, no_pairs((1, 2)), Texts(["a"]))})


@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if not kind.soft])
def test_soft_values_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot hold soft label values"):
        write(soft_data(), tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


def test_missing_texts_are_refused(tmp_path: Path) -> None:
    data = soft_data()
    bare = Split("train", data.labels, data.train.excluded, data.train.excluded)
    for name in FORMATS:
        if name not in ("arrow", "excel"):
            with pytest.raises(DataError, match=r"needs texts|neither texts nor features"):
                write(Dataset(data.labels, {"train": bare}), tmp_path / "out", name)
    with pytest.raises(DataError, match="splits named rest"):
        write(Dataset(data.labels, {"rest": data.train}), tmp_path / "out", "jsonl")
    with pytest.raises(DataError, match="has no points"):
        write(Dataset(data.labels, {"train": data.train.take(np.zeros(0, np.int64))}), tmp_path / "out", "jsonl")


def test_words_that_look_like_labels_are_refused_by_fasttext(tmp_path: Path) -> None:
    data = from_rows({"train": (["a __label__b"], [[0]])}, label_texts=["x"])
    with pytest.raises(DataError, match="point 0 of train"):
        write(data, tmp_path / "out", "fasttext")
    taken = from_rows({"train": (["text,labels", "a"], [[], []])}, label_texts=["x"])
    with pytest.raises(DataError, match="taken for csv"):
        write(taken, tmp_path / "out", "fasttext")


def test_writing_is_whole_and_careful(tmp_path: Path) -> None:
    data = from_rows({"train": (["a"], [[0]])}, label_texts=["x"])
    write(data, tmp_path / "out", "jsonl")
    with pytest.raises(DataError, match="exists already"):
        write(data, tmp_path / "out", "csv")
    write(data, tmp_path / "out", "csv", force=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["lbl.csv", "trn.csv"]
    with pytest.raises(DataError, match="unknown format"):
        write(data, tmp_path / "new", "xml")


def test_jsonl_is_written_as_documented(tmp_path: Path) -> None:
    data = soft_data()
    write(data, tmp_path / "out", "jsonl")
    row = json.loads(gzip.decompress((tmp_path / "out" / "trn.jsonl.gz").read_bytes()))
    assert row == {"text": "a", "labels": [1], "weights": [0.1]}
    second = tmp_path / "again"
    write(data, second, "jsonl")
    assert (second / "trn.jsonl.gz").read_bytes() == (tmp_path / "out" / "trn.jsonl.gz").read_bytes()


def test_pecos_keeps_soft_values_in_the_matrix(tmp_path: Path) -> None:
    write(soft_data(), tmp_path / "out", "pecos")
    assert (tmp_path / "out" / "trn.txt").read_text() == "1\ta\n"
    assert load(tmp_path / "out").train.targets.data.tolist() == [np.float32(0.1)]
    assert "soft values in Y.trn.npz" in FORMATS["pecos"].description


def test_features_are_written_beside_texts(tmp_path: Path) -> None:
    data = from_rows({"train": (["red cat", "dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    write(data, tmp_path / "xmc", "xmc")
    assert (tmp_path / "xmc" / "trn_X_Xf.txt").read_text().startswith("2 3\n0:")
    assert (tmp_path / "xmc" / "Xf.txt").read_text() == "cat\ndog\nred\n"
    write(data, tmp_path / "pecos", "pecos")
    assert sp.load_npz(tmp_path / "pecos" / "X.trn.npz").shape == (2, 3)
    write(data, tmp_path / "xc", "xc")
    lines = (tmp_path / "xc" / "train.txt").read_text().splitlines()
    assert lines[0] == "2 3 2" and lines[2] == "1 1:1.0"
