"""Small files that stand for gigabytes, and files that never end: refused before they take the memory."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import board, short

import longtail as lt
from longtail.data.formats.sparse import read_npz
from longtail.data.problems import Problems
from longtail.data.queries import read_queries
from longtail.errors import DataError, LongtailError, ModelError
from longtail.files import read_arrays, read_json, read_texts
from longtail.model import Model, checksum, read_config, write_config
from longtail.packed import VARIABLE

LARGE = 100 * 2**20


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("swollen") / "run"
    lt.fit(short("knn"), board(80)).save(path)
    return path


@pytest.fixture
def run(good, tmp_path):
    return shutil.copytree(good, tmp_path / "run")


def sealed(folder: Path) -> None:
    config = read_config(folder)
    write_config(folder, config | {"files": {name: checksum(folder / name) for name in config["files"]}})


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Lower the caps, so that what is made here is quick to make."""
    monkeypatch.setattr("longtail.packed.SMALL", 2**20)


def zeros(path: Path, size: int) -> None:
    """Write a gzip file of so many zeros without ever having them."""
    engine, block = zlib.compressobj(1, wbits=31), bytes(2**20)
    with path.open("wb") as file:
        file.write(engine.compress(b'{"text": "a", "labels": [0]}\n'))
        for _ in range(size // len(block)):
            file.write(engine.compress(block))
        file.write(engine.flush())


def test_a_gzip_file_of_zeros_is_refused(tmp_path, monkeypatch):
    zeros(tmp_path / "trn.jsonl.gz", LARGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=f"unpack to more than .*{VARIABLE}"):
        lt.load(tmp_path / "trn.jsonl.gz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LARGE // 2**10
    monkeypatch.setenv(VARIABLE, "lots")
    with pytest.raises(DataError, match="whole number"):
        lt.load(tmp_path / "trn.jsonl.gz")


def test_the_cap_can_be_raised(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.packed.SMALL", 1000)
    lines = "".join(f'{{"text": "one and the same line", "labels": [{n % 2}]}}\n' for n in range(9999))
    (tmp_path / "trn.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with pytest.raises(DataError, match="unpack it first"):
        lt.load(tmp_path)
    monkeypatch.setenv(VARIABLE, "1000")
    assert len(lt.load(tmp_path).train) == 9999


def test_a_packed_line_that_never_ends_is_refused(tmp_path):
    zeros(tmp_path / "texts.gz", LARGE)
    with (tmp_path / "texts.gz").open("rb") as file, pytest.raises(DataError, match="a line of more than 64 MB"):
        list(read_queries(file, "texts.gz"))


def test_a_matrix_of_zeros_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "Xf.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", bytes(2**23))
    with pytest.raises(DataError, match=VARIABLE):
        read_npz(tmp_path / "Xf.npz", Problems())


def test_labels_that_are_one_long_text_are_refused(run):
    text = "x" * 10**6
    table = pq.ParquetFile(run / "labels.parquet").read()
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array([text]))
    pq.write_table(table.set_column(1, "text", texts.cast(pa.dictionary(pa.int32(), pa.string()))),
                   run / "labels.parquet", store_schema=False)  # fmt: skip
    sealed(run)
    with pytest.raises(ModelError, match=f"unpack to .*{VARIABLE}"):
        Model.load(run)


def test_labels_as_config_promises(run):
    table = pa.table({"frequency": pa.array(np.zeros(10**5, np.int64)), "text": pa.array([""] * 10**5)})
    pq.write_table(table, run / "labels.parquet")
    sealed(run)
    with pytest.raises(ModelError, match="100,000 rows, not 30"):
        Model.load(run)
    pq.write_table(table.slice(0, 30), run / "labels.parquet", compression="zstd")
    sealed(run)
    with pytest.raises(ModelError, match="compressed by ZSTD"):
        Model.load(run)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_texts_are_refused(tmp_path, codec):
    table = pa.table({"text": pa.array(["x" * 10**7], pa.large_string())})
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=options) as file,
    ):
        file.write_table(table)
    with pytest.raises(ModelError, match="compressed batch"):
        read_texts(tmp_path / "a.arrow")


@pytest.mark.parametrize("name", ["config.json", "words.arrow", "words.safetensors", "labels.parquet", "metrics.json"])
@pytest.mark.parametrize("kind", ["device", "pipe", "outside", "folder", "nowhere"])
def test_only_regular_files_of_the_folder_are_opened(run, tmp_path, name, kind):
    original = run / name
    shutil.move(original, tmp_path / name)
    if kind == "pipe":
        os.mkfifo(original)
    elif kind == "folder":
        original.mkdir()
    else:
        original.symlink_to({"device": "/dev/zero", "outside": tmp_path / name, "nowhere": tmp_path / "nothing"}[kind])
    for load in (Model.load, lt.Index.load):
        with pytest.raises(LongtailError, match=name):
            load(run)


def test_a_link_inside_of_the_folder_is_followed(run):
    (run / "words.arrow").rename(run / "same.arrow")
    (run / "words.arrow").symlink_to("same.arrow")
    assert len(Model.load(run).labels) == 30


def test_readers_of_single_files_open_nothing_else(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (read_json, read_arrays, read_texts):
        with pytest.raises(ModelError, match="not a regular file"):
            read(tmp_path / "pipe")
    os.mkfifo(tmp_path / "trn.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        lt.load(tmp_path / "trn.jsonl")


def test_the_command_line_says_so_in_one_line(run, tmp_path):
    (run / "config.json").unlink()
    (run / "config.json").symlink_to("/dev/zero")
    command = [sys.executable, "-m", "longtail", "predict", str(run)]
    done = subprocess.run(command, input="a\n", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert json.dumps("leads out of its folder")[1:-1] in done.stderr
