"""Every bad input ends in one DataError with the file, the line, what was found and what to do."""

from __future__ import annotations

import gzip
import io
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from longtail.data.formats import load
from longtail.errors import DataError

GOOD = '{"text": "a", "labels": [0]}\n'
LABELS = '{"text": "x"}\n{"text": "y"}\n'


def refused(root: Path, files: dict[str, str | bytes]) -> DataError:
    for name, content in files.items():
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        load(root)
    assert caught.value.exit_code == 3 and (caught.value.remedy or "; write" in str(caught.value))
    return caught.value


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("not json", "not JSON"),
        ("", "an empty line"),
        ("[1, 2]", "instead of an object"),
        ('"text"', "instead of an object"),
        ("[" * 100_000, "not JSON"),
        ('{"text": "a", "labels": [%s]}' % ("9" * 6000), "not JSON"),
        ('{"text": "a", "labels": [2]}', "label 2 of 2 labels"),
        ('{"text": "a", "labels": [123456789012345678901234567890]}', "labels"),
        ('{"text": "a", "labels": [-1]}', "label -1"),
        ('{"text": "a", "labels": [true]}', "of type bool"),
        ('{"text": "a", "labels": [1.5]}', "label 1.5 of type float"),
        ('{"text": "a", "labels": [null]}', "of type NoneType"),
        ('{"text": "a", "labels": ["x"]}', "of type str"),
        ('{"text": "a", "labels": {"x": 1}}', "instead of a list"),
        ('{"text": "a"}', "no labels"),
        ('{"labels": [0]}', "without text"),
        ('{"text": 7, "labels": [0]}', "of type int"),
        ('{"text": "a", "labels": [0], "id": [1]}', "id"),
        ('{"text": "a", "labels": [0], "weights": [1, 1]}', "2 weights for 1 labels"),
        ('{"text": "a", "labels": [0], "weights": 1}', "instead of a list"),
        ('{"text": "a", "labels": [0], "weights": ["1"]}', "of type str"),
        ('{"text": "a", "labels": [0], "weights": [NaN]}', "weight nan"),
        ('{"text": "a", "labels": [0], "weights": [1.5]}', "weight 1.5"),
        ('{"text": "a", "labels": [0], "weights": [-0.5]}', "weight -0.5"),
        (f'{{"text": "a", "labels": [0], "weights": [{10**400}]}}', "weight inf"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: str, words: str) -> None:
    error = refused(tmp_path, {"trn.jsonl": GOOD + row + "\n" + GOOD, "lbl.jsonl": LABELS})
    assert words in error.found
    assert (Path(error.file).name, error.line) == ("trn.jsonl", 2)


def test_bad_utf_8_is_an_error(tmp_path: Path) -> None:
    error = refused(tmp_path, {"trn.jsonl": GOOD.encode() + b'{"text": "caf\xe9", "labels": [0]}'})
    assert error.line == 2 and "not UTF-8 at byte 14" in error.found


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_damaged_gzip(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress(GOOD.encode() * 500)
    assert "truncated" in refused(tmp_path, {"trn.jsonl.gz": packed[:-cut]}).found
    flipped = packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]
    assert "damaged" in refused(tmp_path, {"trn.jsonl.gz": flipped}).found
    assert "damaged" in refused(tmp_path, {"trn.jsonl.gz": packed + b"rubbish"}).found


def test_empty_files_and_folders_in_place_of_files(tmp_path: Path) -> None:
    assert "no points" in refused(tmp_path, {"trn.jsonl": GOOD, "tst.jsonl": ""}).found
    (tmp_path / "tst.jsonl").unlink()
    (tmp_path / "tst.jsonl").mkdir()
    assert "cannot be read" in refused(tmp_path, {"trn.jsonl": GOOD}).found


def packed(content: bytes) -> bytes:
    """Compress without the time: the names of tests must be the same in every process."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "words", "remedy"),
    [
        ("train.csv", b"", "an empty file", "one point a line"),
        ("train.txt", b" \n", "an empty file", "one point a line"),
        ("train.jsonl.gz", packed(b""), "an empty file", "one point a line"),
        ("train.csv", "text,labels\na,0\n".encode("utf-16") + b"x", "not UTF-16", "save the file as UTF-8"),
        ("train.csv", b"red cat\nold dog\n", "no column looks like labels (columns: 1)", "--labels"),
        ("train.csv", b"a,b,c\nx y,1,2\nz u,1,2\nz v,2,1\n", "labels may stand in b, c", "--labels"),
        ("train.csv", b"sku,price\n1,2.50\n2,3.50\n", "no column looks like texts", "--text"),
        ("train.txt.gz", packed(b"a b" * 99)[:5], "the gzip file is truncated", "compress the file again"),
    ],
)
def test_a_file_like_no_format_is_explained(tmp_path: Path, name: str, content: bytes, words: str, remedy: str) -> None:
    error = refused(tmp_path, {name: content})
    assert words in error.found and remedy in error.remedy and Path(error.file).name == name
    with pytest.raises(DataError) as alone:
        load(tmp_path / name)
    assert str(alone.value) == str(error)


@pytest.mark.parametrize("format", ["csv", "tsv", "jsonl", "fasttext", "pecos", "xc"])
def test_an_empty_file_of_a_given_format(tmp_path: Path, format: str) -> None:
    (tmp_path / "train.txt").touch()
    with pytest.raises(DataError, match=r"an empty file|no points in this file"):
        load(tmp_path, format=format)


def test_advice_names_the_option_and_the_argument(tmp_path: Path) -> None:
    assert "--from (format= in Python)" in refused(tmp_path, {"train.txt": "hello"}).remedy
    error = refused(tmp_path, {"train.txt": "__label__a b", "train.jsonl": GOOD})
    assert "different formats" in error.found and "--from (format= in Python)" in error.remedy
    assert len(load(tmp_path, format="jsonl").labels) == 1  # the advice holds


def test_no_label_at_all(tmp_path: Path) -> None:
    error = refused(tmp_path, {"trn.jsonl": '{"text": "a", "labels": []}'})
    assert "no label occurs" in error.found and Path(error.file).name == "trn.jsonl"


def test_label_features_of_another_number_are_named(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"trn_X_Y.txt": "1 2\n0:1\n", "trn_X_Xf.txt": "1 2\n0:1\n", "Yf.txt": "3 2\n\n\n\n"}
    error = refused(tmp_path, files)
    assert "3 labels here, but 2 in trn_X_Y.txt" in error.found and Path(error.file).name == "Yf.txt"


@pytest.mark.parametrize(
    ("files", "words", "line"),
    [
        ({"trn_filter.txt": "0 0\n1 0\n"}, "pair 1 0 with 1 points", 2),
        ({"trn_filter.txt": "0 2\n"}, "pair 0 2 with 1 points and 2 labels", 1),
        ({"trn_filter.txt": "0 0\nx 1\n"}, "'x 1' is no pair", 2),
        ({"trn_filter.txt": "0 -1\n"}, "is no pair", 1),
        ({"train_raw_ids.txt": "a\nb\n"}, "2 lines for 1 rows", 0),
        ({"label_raw_ids.txt": "a\n"}, "1 lines for 2 rows", 0),
        ({"lbl.jsonl": '{"text": "x"}\n{"id": 3}\n'}, "a label without text", 2),
    ],
)
def test_bad_sidecars(tmp_path: Path, files: dict[str, str], words: str, line: int) -> None:
    error = refused(tmp_path, {"trn.jsonl": GOOD, "lbl.jsonl": LABELS} | files)
    assert words in error.found and error.line == line


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ("", "an empty file"),
        ("2\n0:1\n1:1\n", "header '2'"),
        ("2 2 2\n0:1\n1:1\n", "header"),
        ("3 2\n0:1\n1:1\n", "the header says 3 rows, 2 follow"),
        ("1 2\n0:1\n1:1\n", "the header says 1 rows, 2 follow"),
        ("1000000000000 2\n0:1\n1:1\n", "the header says 1,000,000,000,000 rows"),
        ("2 1000000000000\n0:1\n1:1\n", "2 in Y.txt"),
        ("2 2\n0:1\n2:1\n", "label 2 of 2 labels"),
        ("2 2\n0:1\n-1:1\n", "label -1"),
        ("2 2\n0:1\n1\n", "'1' is no entry"),
        ("2 2\n0:1\n1:x\n", "no entry"),
        ("2 2\n0:1\n1:1_0\n", "no entry"),
        ("2 2\n0:1\n1:nan\n", "weight nan"),
        ("2 2\n0:1\n1:1e999\n", "weight inf"),
        ("2 2\n0:1\n٣:1\n", "no entry"),
    ],
)
def test_bad_matrices(tmp_path: Path, targets: str, words: str) -> None:
    tracemalloc.start()
    error = refused(tmp_path, {"trn_X_Y.txt": targets, "trn_X.txt": "a\nb\n", "Y.txt": "x\ny\n"})
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert words in str(error)


def test_texts_that_do_not_fit_the_matrix(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"trn_X_Y.txt": "2 2\n0:1\n1:1\n"}
    assert "neither texts nor features" in refused(tmp_path, files).found
    assert "3 lines for 2 rows" in refused(tmp_path, files | {"trn_X.txt": "a\nb\nc\n"}).found
    assert "2 labels here, but 3" in refused(tmp_path, files | {"trn_X.txt": "a\nb\n", "Y.txt": "a\nb\nc\n"}).found
    (tmp_path / "trn_X.txt").unlink()
    assert "1 rows of features" in refused(tmp_path, files | {"trn_X_Xf.txt": "1 2\n0:1\n"}).found
    assert "entry 2:1.0" in refused(tmp_path, files | {"trn_X_Xf.txt": "2 2\n0:1\n2:1\n"}).found


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


CSR = {"format": b"csr", "shape": [1, 2], "indptr": [0, 1], "indices": [1], "data": [1.0]}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"PK\x03\x04", npz(a=[1]), npz(**CSR | {"format": b"csc"}), npz(**CSR | {"indptr": [0, 2]}),
        npz(**CSR | {"shape": [10**12, 2]}), npz(**CSR | {"data": np.array([{}], object)}),
        npz(**CSR | {"indptr": [0.0, 1.0]}), npz(**CSR)[:-30],
    ],
)  # fmt: skip
def test_damaged_npz(tmp_path: Path, content: bytes) -> None:
    assert "damaged" in refused(tmp_path, {"Y.trn.npz": content, "trn_X.txt": "a\n"}).found


def test_an_array_that_claims_more_than_it_has(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (10**12,)})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in CSR:
            archive.writestr(f"{name}.npy", header.getvalue())
    assert "damaged" in refused(tmp_path, {"Y.trn.npz": file.getvalue(), "trn_X.txt": "a\n"}).found


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"text": ["a"]}, "no column looks like labels (columns: text)"),
        ({"text": ["a"], "labels": [0.5]}, "label 0.5 of type float"),
        ({"text": ["a"], "labels": [[0.5]]}, "label 0.5 of type float"),
        ({"text": [1], "labels": [[0]]}, "column text of type int64"),
        ({"text": [None, "a"], "labels": [[0], [0]]}, "no text"),
        ({"text": ["a"], "labels": pa.array([None], pa.list_(pa.int64()))}, "no labels"),
        ({"text": ["a"], "labels": [[0, None]]}, "an empty item in labels"),
        ({"text": ["a"], "labels": [[0]], "weights": [[1.0, 1.0]]}, "2 weights for 1 labels"),
        ({"text": pa.array([], pa.string()), "labels": pa.array([], pa.list_(pa.int64()))}, "no points"),
    ],
)
def test_bad_parquet(tmp_path: Path, columns: dict[str, object], words: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "trn.parquet")
    assert words in refused(tmp_path, {}).found
    content = (tmp_path / "trn.parquet").read_bytes()
    assert "not readable" in refused(tmp_path, {"trn.parquet": content[:-9]}).found


@pytest.mark.parametrize(
    ("content", "words", "line"),
    [
        ("text,labels\na,0,1\n", "3 cells for 2 columns", 2),
        ('text,labels\na,0\n"b,0\n', "not a row", 3),
        ("text,labels\n", "no points", 0),
        ("text,labels\na,x\n", "'x' is not in lbl.csv", 2),
        ("text,labels\na,-1\n", "label -1", 2),
        ("text,labels\na,[0\n", "not a JSON list", 2),
        ('text,labels,weights\n"a\nb",0,1\nc,0,?\n', "weight '?'", 4),
        ("text,labels,weights\na,0,0.5|1\n", "2 weights for 1 labels", 2),
        ("text,labels\na,99999999999999999999\n", "of 2 labels", 2),
    ],
)
def test_bad_tables(tmp_path: Path, content: str, words: str, line: int) -> None:
    error = refused(tmp_path, {"trn.csv": content, "lbl.csv": "text\nu\nv\n"})
    assert words in error.found and error.line == line


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"train.txt": "2 3 2\n0 0:1\n"}, "the header says 2 rows, 1 follow"),
        ({"train.txt": "1 3 2\n0,x 0:1\n"}, "labels '0,x'"),
        ({"train.txt": "1 3 2\n0,2 0:1\n"}, "label 2 of 2 labels"),
        ({"train.txt": "1 3 2\n0 3:1\n"}, "entry 3:1.0"),
        ({"train.txt": "1 3 999999999999\n0 0:1\n"}, "999,999,999,999 labels"),
        ({"train.txt": "1 99999999999 2\n0 0:1\n"}, "99,999,999,999 columns"),
        ({"train.txt": "1 3 2\n0 0:1\n", "test.txt": "1 4 2\n0 0:1\n"}, "different widths: 3, 4"),
        ({"trn.txt": "0\ta\nb\n"}, "no tab in 'b'"),
        ({"trn.txt": "0\ta\nx\tb\n"}, "labels 'x'"),
        (
            {"trn.txt": "0\ta\n", "Y.trn.npz": npz(**CSR | {"shape": [2, 2], "indptr": [0, 1, 1]})},
            "2 rows for 1 points",
        ),
        ({"train.txt": "__label__ a\n"}, "a label without name"),
        ({"train.txt": "__label__9 a\n", "label_count.txt": "3"}, "label 9 of 3 labels"),
        ({"train.txt": "__label__9 a\n", "label_count.txt": "1e3"}, "b'1e3' labels"),
        ({"train_labels.txt": "a\n"}, "labels but no texts"),
        ({"train_labels.txt": "a\n", "train_texts.txt": "x\ny\n"}, "2 lines for 1 rows"),
        ({"dataset.json": "{"}, "not readable JSON"),
    ],
)
def test_other_formats(tmp_path: Path, files: dict[str, str | bytes], words: str) -> None:
    assert words in str(refused(tmp_path, files))


def test_a_column_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title,tags\na,b\n")
    with pytest.raises(DataError, match=r"no column 'titel'; did you mean 'title'\?.*--text"):
        load(tmp_path / "a.csv", text="titel")
    with pytest.raises(DataError, match=r"no column 'x'.*--labels"):
        load(tmp_path / "a.csv", labels="x")
    with pytest.raises(DataError, match="labels are 'numbers'"):
        load(tmp_path / "a.csv", labels_are="numbers")


def test_large_matrices_are_read_quickly(tmp_path: Path) -> None:
    from longtail.data.formats.sparse import read_sparse, write_sparse
    from longtail.data.problems import Problems

    matrix = sp.random_array(
        (50_000, 100_000), density=1e-4, format="csr", rng=np.random.default_rng(0), dtype=np.float32
    )
    write_sparse(tmp_path / "m.txt", matrix)
    start = time.perf_counter()
    loaded = read_sparse(tmp_path / "m.txt", Problems()).matrix(Problems())
    assert time.perf_counter() - start < 5  # about 0.3 s on an idle core
    assert (loaded != matrix).nnz == 0
