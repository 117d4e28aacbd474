"""Labels of other files get the numbers of a model, by name or raw id."""

from __future__ import annotations

import numpy as np
import pytest

from longtail.data.dataset import Labels, Split, from_rows
from longtail.errors import DataError
from longtail.labels.matching import match_labels, padded
from longtail.types import Texts, label_matrix, no_pairs

MODEL = Labels(3, Texts(["cat", "dog", "fox"]), Texts(["B0", "B1", "B2"]))


def split(rows: list[list[int]], labels: Labels, excluded: list[tuple[int, int]] = ()) -> Split:  # type: ignore[assignment]
    starts = np.cumsum([0, *map(len, rows)])
    shape = (len(rows), len(labels))
    targets = label_matrix(starts, np.array([label for row in rows for label in row], np.int64), shape)
    dropped = no_pairs(shape).tolil()
    for row, label in excluded:
        dropped[row, label] = 1
    return Split("test", labels, targets, dropped.tocsr().astype(np.float32), Texts(["a"] * len(rows)))


def test_points_of_the_model_stay_as_they_are() -> None:
    for labels in (MODEL, Labels(3), Labels(3, ids=MODEL.ids), Labels(4, Texts(["cat", "dog", "fox", "owl"]))):
        points = split([[0, 2]], labels)
        assert match_labels(points, MODEL).split is points


def test_names_and_raw_ids() -> None:
    points = split([[0, 1], [2], [3]], Labels(5, Texts(["B2", "cat", "owl", "dog", "unused"])), [(0, 3), (1, 2)])
    matched = match_labels(points, MODEL)
    assert matched.split.targets.toarray().tolist() == [[1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    assert matched.unknown == ("owl",) and matched.describe().startswith("1 label of the data unknown")
    assert matched.split.excluded.toarray().tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert match_labels(matched.split, MODEL).split is matched.split  # a second time changes nothing
    assert padded(np.array([5, 6, 7]), matched.split.labels).tolist() == [5, 6, 7, 0]


def test_numbers_are_positions_only_where_no_name_is_known() -> None:
    assert match_labels(split([[0, 1]], Labels(2, Texts(["2", "9"]))), MODEL).split.targets.indices.tolist() == [2, 3]
    years = Labels(2, Texts(["2", "2020"]))
    assert match_labels(split([[0]], Labels(2, Texts(["2020", "2"]))), years).split.targets.indices.tolist() == [1]


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(DataError, match="knows none of the 1 labels"):
        match_labels(split([[0]], Labels(2, Texts(["owl", "bee"]))), MODEL)
    with pytest.raises(DataError, match="the data has 2 labels, the model 3"):
        match_labels(split([[0]], Labels(2)), MODEL)
    empty = from_rows({"test": (["a"], [[]])}, label_texts=["owl"]).test
    assert match_labels(empty, MODEL).split.targets.nnz == 0
