from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.data.dataset import Dataset, Labels, Split, from_rows, open_dataset
from longtail.data.holding import label_groups
from longtail.errors import DataError
from longtail.types import Texts, no_pairs


def small(**changes) -> Dataset:
    data = from_rows(
        {"train": (["red cat", "old dog", ""], [[0], [1, 2], []]), "test": (["cat"], [[0]])},
        label_texts=["cat", "dog", "é"],
    )
    return replace(data, **changes)


def test_splits_by_name_and_what_is_missing():
    data = small()
    assert data.train.targets.toarray().tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert data.test.dataset == "data"
    with pytest.raises(DataError, match="no validation split"):
        _ = data.validation


def test_save_and_open(tmp_path):
    data = small()
    excluded = sp.csr_array(np.array([[0, 1, 0]] * 3, np.float32))
    train = replace(data.train, excluded=excluded, ids=Texts(["x", "y", "z"]))
    data = data.with_splits(train, data.test)
    data.save(tmp_path / "d")
    opened = open_dataset(tmp_path / "d")
    assert opened.fingerprint == data.fingerprint
    assert opened.train.texts == data.train.texts
    assert opened.train.ids == train.ids
    assert (opened.train.excluded != excluded).nnz == 0
    with pytest.raises(DataError, match="force=True"):
        data.save(tmp_path / "d")


def test_the_fingerprint_sees_content_not_names():
    base = small()
    assert small(name="other").fingerprint == base.fingerprint
    changed = [
        base.with_splits(replace(base.train, texts=Texts(["red cat", "old dog", " "])), base.test),
        base.with_splits(replace(base.train, targets=base.train.targets * np.float32(0.5)), base.test),
        base.with_splits(replace(base.train, ids=Texts(["1", "2", "3"])), base.test),
        base.with_splits(base.train),
        replace(base, labels=replace(base.labels, texts=Texts(["cat", "do", "gé"]))),
    ]
    prints = {data.fingerprint for data in changed} | {base.fingerprint}
    assert len(prints) == len(changed) + 1


def test_the_fingerprint_does_not_depend_on_how_texts_lie_in_memory():
    data = small()
    sliced = replace(data.train, texts=Texts(["x", *data.train.texts.tolist()])[1:])
    assert data.with_splits(sliced, data.test).fingerprint == data.fingerprint


def test_a_validation_split_is_seeded_and_apart():
    data = from_rows(
        {"train": ([str(i) for i in range(50)], [[i % 3] for i in range(50)])}, label_texts=["a", "b", "c"]
    )
    one, two = data.divided(0.2, seed=1), data.divided(0.2, seed=1)
    assert one.fingerprint == two.fingerprint != data.divided(0.2, seed=2).fingerprint
    assert len(one.validation) == 10
    assert sorted(one.train.texts.tolist() + one.validation.texts.tolist()) == sorted(data.train.texts.tolist())
    assert one.divided().fingerprint == one.fingerprint


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_folder_is_refused_with_a_data_error(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "damaged"
    small().save(folder, force=True)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        opened = open_dataset(folder)
    except DataError as error:
        assert str(folder) in str(error)
    else:
        assert opened.train.targets.toarray().shape[1] == len(opened.labels)


def test_labels_out_of_range_are_refused_at_open(tmp_path):
    data = small()
    bad = sp.csr_array((np.ones(1, np.float32), np.array([2], np.int32), np.array([0, 1, 1, 1])), shape=(3, 3))
    bad.indices[0] = 77
    Dataset(data.labels, {"train": replace(data.train, targets=bad)}).save(tmp_path / "d")
    with pytest.raises(DataError, match="77 to 77, not 0 to 2"):
        open_dataset(tmp_path / "d")


def test_millions_of_points_open_without_being_read(tmp_path):
    points, labels = 200_000, 100_000
    indices = np.random.default_rng(0).integers(0, labels, (points, 22), dtype=np.int32)
    indices.sort(axis=1)
    shape = (points, labels)
    ones = np.ones(indices.size, np.float32)
    targets = sp.csr_array((ones, indices.ravel(), np.arange(0, indices.size + 1, 22, dtype=np.int32)), shape=shape)
    known = Labels(labels, Texts([f"label {i}" for i in range(labels)]))
    split = Split("train", known, targets, no_pairs(shape), Texts([f"point {i}" for i in range(points)]))
    Dataset(known, {"train": split}).save(tmp_path / "big")
    opened = open_dataset(tmp_path / "big")
    assert not opened.train.targets.indices.flags.owndata
    assert not opened.train.targets.data.flags.owndata
    assert opened.train.texts[points - 1] == f"point {points - 1}"


def test_points_that_share_all_their_labels_go_to_one_side_together():
    rows = [[group, group + 1, group + 2] for group in range(40) for _ in range(5)]
    train = from_rows({"train": ([f"text {row}" for row in range(200)], rows)}, label_texts=["x"] * 42).train
    rest, validation = train.divide(0.1, seed=3, leave=True)
    assert len(validation) == 20 and len(rest) == 180

    def sets(split):
        return {tuple(split.targets.indices[start : start + 3]) for start in split.targets.indptr[:-1]}

    assert not sets(rest) & sets(validation)
    again = train.divide(0.1, seed=3)[1]
    assert again.fingerprint == validation.fingerprint != train.divide(0.1, seed=4)[1].fingerprint
    one = from_rows({"train": (["a", "b", "c"], [[0, 1, 2]] * 3)}, label_texts=["x"] * 3).train
    assert len(one.divide(0.4)[1]) == 1  # one group is no group
    own = [[group, group + 1, *([99] if group == 7 else []), 100] for group in range(40) for _ in range(5)]
    own[35:40] = [[97, 98, 99]] * 5  # a group of labels that no other has
    train = from_rows({"train": (["text"] * 200, own)}, label_texts=["x"] * 101).train
    seen = set()
    for seed in range(8):
        rest, validation = train.divide(0.4, seed=seed, leave=True)
        assert len(rest) + len(validation) == 200 and validation.targets.has_sorted_indices
        assert set(validation.targets.indices) <= set(rest.targets.indices)
        assert (np.diff(validation.targets.indptr) > 0).all() and 99 not in validation.targets.indices
        seen |= set(np.diff(validation.targets.indptr))
    apart = [[3 * group, 3 * group + 1, 3 * group + 2] for group in range(20) for _ in range(5)]
    train = from_rows({"train": (["text"] * 100, apart)}, label_texts=["x"] * 60).train
    rest, validation = train.divide(0.2, seed=0, leave=True)  # each group has labels of its own
    assert len(rest) == 80 and validation.targets.nnz == 60
    assert seen >= {2, 3}  # some have lost a label that was theirs alone
    rows = [[0]] * 150 + [[3 + point, 4 + point, *range(100, 120)] for point in range(50)]  # many labels, others shared
    mixed = from_rows({"train": (["text"] * 200, rows)}, label_texts=["x"] * 120).train
    assert label_groups(mixed.targets, np.arange(200)) is None
