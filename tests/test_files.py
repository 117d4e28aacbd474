from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import DataError, ModelError
from longtail.files import (
    read_arrays,
    read_json,
    read_texts,
    whole_file,
    whole_folder,
    write_arrays,
    write_json,
    write_texts,
)
from longtail.types import Texts


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    with whole_file(target) as partial:
        partial.write_text("new")
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "run"
    with pytest.raises(ZeroDivisionError), whole_folder(target) as partial:
        (partial / "a").write_text("half")
        raise ZeroDivisionError
    assert not target.exists()
    with whole_folder(target) as partial:
        (partial / "a").write_text("1")
    with pytest.raises(DataError, match="force=True"), whole_folder(target):
        pass
    (target / "a").rename(target / "trn.jsonl")
    with whole_folder(target, force=True) as partial:
        (partial / "b").write_text("2")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_force_never_replaces_what_longtail_did_not_write(tmp_path, monkeypatch):
    target = tmp_path / "project"
    target.mkdir()
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="other things"), whole_folder(target, force=True):
        pass
    assert (target / "thesis.tex").read_text() == "years of work"
    monkeypatch.chdir(target)
    with pytest.raises(DataError), whole_folder(".", force=True):
        pass
    for names in (["config.json", "README.md"], ["train.py", "test.py"], ["trn.jsonl", "notes"]):
        other = tmp_path / names[0].replace(".", "-")
        other.mkdir()
        for name in names:
            (other / name).write_text("{}")
        with pytest.raises(DataError, match="other things"), whole_folder(other, force=True):
            pass
        assert len(list(other.iterdir())) == len(names)
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("trn.jsonl.gz", "lbl.jsonl.gz", "tst_filter.txt", "train_raw_ids.txt"):
        (mine / name).write_text("")
    with whole_folder(mine, force=True) as partial:
        (partial / "x").write_text("")
    assert [path.name for path in mine.iterdir()] == ["x"]


def test_a_failed_swap_puts_the_old_folder_back(tmp_path, monkeypatch):
    target = tmp_path / "run"
    target.mkdir()
    (target / "trn.jsonl").write_text("old")
    real = Path.replace

    def fails(self, other):
        if Path(other) == target and not self.name.endswith(".old"):
            raise OSError("no")
        return real(self, other)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="no"), whole_folder(target, force=True) as partial:
        (partial / "trn.jsonl").write_text("new")
    assert (target / "trn.jsonl").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1"])
def test_arrays_come_back_by_memory_map(tmp_path, dtype):
    arrays = {"a": np.arange(6).astype(dtype).reshape(2, 3), "empty": np.zeros((0, 4), dtype)}
    write_arrays(tmp_path / "x.safetensors", arrays)
    loaded = read_arrays(tmp_path / "x.safetensors")
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    with pytest.raises(ValueError):
        loaded["a"][0, 0] = 1


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_array_file_is_refused_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    write_arrays(path, {"a": np.arange(10.0), "b": np.arange(3, dtype=np.int32)})
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        loaded = read_arrays(path)
    except ModelError as error:
        assert "damaged" in str(error)
    else:
        assert sum(array.nbytes for array in loaded.values()) <= 2 * len(raw)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
        {"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}},
        [],
    ],
)
def test_a_hostile_header_is_refused(tmp_path, header):
    raw = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"1234")
    with pytest.raises(ModelError, match="damaged"):
        read_arrays(path)


def test_a_huge_header_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(ModelError, match="damaged"):
        read_arrays(path)
    with pytest.raises(ModelError, match="not found"):
        read_arrays(tmp_path / "absent")


def test_json_objects_only(tmp_path):
    write_json(tmp_path / "a.json", {"é": 1})
    assert read_json(tmp_path / "a.json") == {"é": 1}
    for content in (b"[1]", b"{", b"\xff", b"[" * 100_000):
        (tmp_path / "b.json").write_bytes(content)
        with pytest.raises(ModelError):
            read_json(tmp_path / "b.json")


def test_texts_come_back_and_a_damaged_file_is_refused(tmp_path):
    write_texts(tmp_path / "t.arrow", {"text": Texts(["a", "ü", ""])})
    assert read_texts(tmp_path / "t.arrow")["text"].tolist() == ["a", "ü", ""]
    (tmp_path / "t.arrow").write_bytes((tmp_path / "t.arrow").read_bytes()[:-40])
    with pytest.raises(ModelError, match="damaged"):
        read_texts(tmp_path / "t.arrow")
