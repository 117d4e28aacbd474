"""Every format gives back what was written, or refuses it: hypothesis on small data sets, and one real data set."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import shared_data
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from longtail.data.dataset import Dataset, Labels, Split, from_rows
from longtail.data.formats import FORMATS, load, write
from longtail.data.formats.lines import clean
from longtail.errors import DataError
from longtail.types import Texts, label_matrix, no_pairs

WRITABLE = [name for name, kind in FORMATS.items() if kind.writable]
ODD = [
    "", "7", "-1", "0", "3 4 5", "1,2", "1:0.5", '{"text": "a", "labels": [0]}', "[1, 2]", '"', '""', "'", "a,b;c|d",
    "|", ";", ",", '"quoted"', 'a "b" c', "null", "NaN", "true", "text,labels", "text labels", "text", "__labels", "\\",
    "\\n", "\\ud800", "=1+1", "é", "日本語", "😀 ok", "e\u0301", "\u200d", "PAR1", "\ufffd", "a\u00adb", "//", "0001",
]  # fmt: skip
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=12), st.text("ab01 ,;|\"'{}[]:\t_", max_size=10)).map(clean)


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    """Draw a small data set with any of: ids, soft values, filters, empty rows, label texts, a validation split."""
    count = draw(st.integers(1, 5))
    texts = draw(st.none() | st.lists(TEXTS, min_size=count, max_size=count))
    ids = draw(st.none() | st.lists(TEXTS, min_size=count, max_size=count))
    labels = Labels(count, None if texts is None else Texts(texts), None if ids is None else Texts(ids))
    names = draw(st.sampled_from([("train", "test"), ("train",), ("train", "validation", "test"), ("test",)]))
    soft, filtered = draw(st.booleans()), draw(st.booleans())
    splits = {}
    for name in names:
        size = draw(st.integers(1, 4))
        identified = draw(st.booleans())
        splits[name] = Split(
            name, labels, draw(_matrices(size, count, soft)),
            draw(_matrices(size, count, False)) if filtered else no_pairs((size, count)),
            Texts(draw(st.lists(TEXTS, min_size=size, max_size=size))),
            Texts(draw(st.lists(TEXTS, min_size=size, max_size=size))) if identified else None,
        )  # fmt: skip
    return Dataset(labels, splits)


@st.composite
def _matrices(draw: st.DrawFn, size: int, count: int, soft: bool) -> sp.csr_array:
    rows = draw(st.lists(st.sets(st.integers(0, count - 1)), min_size=size, max_size=size))
    flat = [label for row in rows for label in sorted(row)]
    values = None
    if soft:
        value = st.floats(2.0**-20, 1, width=32)
        values = np.array(draw(st.lists(value, min_size=len(flat), max_size=len(flat))), np.float32)
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return label_matrix(indptr, np.array(flat, np.int64), (size, count), values)


def round_trip(data: Dataset, name: str) -> Dataset:
    with tempfile.TemporaryDirectory() as folder:
        write(data, Path(folder) / "data", name)
        loaded = load(Path(folder) / "data")
        assert loaded.fingerprint == data.fingerprint  # before the folder goes: arrow texts are mapped
        return loaded


def may_refuse(data: Dataset, name: str, reason: DataError) -> bool:
    """Return whether a refusal is one of the documented ones."""
    soft = any((split.targets.data != 1).any() for split in data.splits.values())
    if soft and not FORMATS[name].soft:
        return "soft" in reason.found
    texts = [text for split in data.splits.values() for text in split.texts or ()]
    if name == "fasttext":
        marked = any(word.startswith("__label__") for text in texts for word in text.split())
        bare = any(split.targets[[0]].nnz == 0 for split in data.splits.values())
        return marked or bare  # a file that does not begin with a label may look like another format
    return False


@pytest.mark.parametrize("name", WRITABLE)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=datasets())
@example(data=from_rows({"train": (["a"], [[]])}, label_texts=["x"]))
@example(data=from_rows({"train": (["", ""], [[], [0, 1]])}, label_texts=["same", "same"]))
def test_round_trip_keeps_the_fingerprint(data: Dataset, name: str) -> None:
    try:
        round_trip(data, name)
    except DataError as reason:
        if not may_refuse(data, name, reason):
            raise


@pytest.mark.parametrize("name", WRITABLE)
def test_round_trip_of_a_real_data_set(name: str) -> None:
    data = load(shared_data("LF-MDNSeeAlsoTitles-6K"))
    assert repr(round_trip(data, name)).endswith("train 7,458, test 1,767; 5,671 labels)")


@pytest.mark.parametrize("name", ["xmc", "xc", "arrow"])
@pytest.mark.parametrize("texts", [False, True])
def test_round_trip_of_features(name: str, texts: bool) -> None:
    rng = np.random.default_rng(0)

    def features(rows: int) -> sp.csr_array:
        return sp.random_array((rows, 9), density=0.4, format="csr", rng=rng, dtype=np.float32)

    labels = Labels(3, Texts(["a", "", "b b"]) if texts else None, None, features(3))
    targets = label_matrix(np.array([0, 2, 2]), np.array([0, 2]), (2, 3))
    splits = {name: Split(name, labels, targets, no_pairs((2, 3)), features=features(2)) for name in ("train", "test")}
    words = Texts([f"w{n}" for n in range(9)])
    loaded = round_trip(Dataset(labels, splits, vocabulary=words), name)
    assert loaded.train.texts is None
    assert loaded.train.features is not None and loaded.train.features.dtype == np.float32


@settings(max_examples=300, deadline=None)
@given(value=st.floats(0, 1, width=32, exclude_min=True))
def test_float32_values_read_back_equal(value: float) -> None:
    from longtail.data.formats.values import shortest

    written = shortest(np.array([value, 0.5], np.float32))[0]
    assert np.float32(float(written)) == np.float32(value)


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_clean_text_is_one_line_and_stays_clean(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned == " ".join(cleaned.split())
    assert len(f"{cleaned}\n".splitlines()) == 1
    cleaned.encode()


def test_texts_are_cleaned_when_written(tmp_path: Path) -> None:
    data = from_rows({"train": (["  a\n b\x00c "], [[0]])}, label_texts=["x\ty"])
    for name in WRITABLE:
        write(data, tmp_path / name, name)
        loaded = load(tmp_path / name)
        assert (loaded.train.texts or [])[0] == "a b c"
        assert (loaded.labels.texts or [])[0] == "x y"
