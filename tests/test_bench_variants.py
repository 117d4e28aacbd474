"""Test points in other words."""

from __future__ import annotations

import numpy as np
import pytest

from longtail.bench.variants import check_way, columns, slipped, stacked, variant
from longtail.data.dataset import from_rows
from longtail.errors import RecipeError

TEXTS = ["Array prototype sort", "Red", "a b", "how to sort an array in place", ""]


def points():
    labels = [[0], [1], [0, 1], [2], [0]]
    return from_rows({"train": (TEXTS, labels), "test": (TEXTS, labels)}, label_texts=["red", "A b ", "blue"]).test


def edits(one: str, other: str) -> int:
    """Count the edits between two words, two exchanged letters as one."""
    table = np.add.outer(np.arange(len(one) + 1), np.arange(len(other) + 1))
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            ways = [table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (one[i - 1] != other[j - 1])]
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                ways.append(table[i - 2, j - 2] + 1)
            table[i, j] = min(ways)
    return int(table[-1, -1])


@pytest.mark.parametrize("word", ["array", "a", "ab", "Wörter"])
def test_a_slip_is_one_edit(word):
    draw = np.random.default_rng(0)
    slips = {slipped(word, draw) for _ in range(200)}
    assert len(slips) > 20 and all(edits(word, slip) == 1 for slip in slips)


def test_one_word_of_every_text_is_changed():
    test = points()
    for way in ("mistyped", "unknown"):
        other = variant(test, way, seed=1)
        assert other.texts != variant(test, way, seed=2).texts
        assert variant(test, way, seed=1).texts == other.texts
        for before, after in zip(test.texts, other.texts, strict=True):
            pairs = list(zip(before.split(), after.split(), strict=True)) if before else []
            assert sum(one != two for one, two in pairs) == (1 if before else 0)
            assert all(len(one) >= 3 for one, two in pairs if one != two) or before in ("a b", "")
        assert (other.targets != test.targets).nnz == 0


def test_some_points_are_kept():
    test = points()
    assert variant(test, "short", 0).texts.tolist() == ["Array prototype sort", "Red", "a b", ""]
    assert variant(test, "as-label", 0).texts.tolist() == ["Red", "a b"]
    both = stacked([variant(test, "as-label", 0), variant(test, "not-as-label", 0)])
    assert sorted(both.texts) == sorted(TEXTS)
    assert both.targets.toarray().tolist() == test.targets[[1, 2, 0, 3, 4]].toarray().tolist()
    assert len(variant(test, "mistyped short", 0)) == 4
    assert len(variant(test, "not-as-label short as-label", 0)) == 0


def test_ways_that_there_are_not():
    for way in ("", "mistypd", "mistyped brief"):
        with pytest.raises(RecipeError, match="there is no way"):
            check_way(way)
    check_way("mistyped short")
    assert columns("short") == ("P@1 short", "PSP@5 short")
