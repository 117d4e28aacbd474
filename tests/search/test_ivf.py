from __future__ import annotations

import numpy as np
import pytest

from longtail.errors import ModelError
from longtail.shortlists.lists import Lists


def rows(count: int = 600, dim: int = 12) -> np.ndarray:
    """Twenty heaps, some of them far longer than others."""
    draw = np.random.default_rng(3)
    heaps = draw.normal(size=(20, dim))[draw.integers(20, size=count)] + 0.2 * draw.normal(size=(count, dim))
    return (heaps * draw.uniform(0.5, 2, size=(count, 1))).astype(np.float32)


def test_every_label_is_in_one_cluster_and_all_are_found_where_all_clusters_are_looked_into():
    lists = Lists.build(rows())
    assert sorted(lists.clusters.members.tolist()) == list(range(600))
    every = lists.reaching(len(lists.clusters)).labels(rows()[0], 1)
    assert every.tolist() == list(range(600))


def test_the_nearest_labels_are_in_the_nearest_clusters():
    held = rows()
    lists = Lists.build(held)
    exact = np.argsort(-(held @ held.T), axis=1)[:, :5]
    found = [
        np.mean([np.isin(exact[row], lists.reaching(reach).labels(held[row], 5)).mean() for row in range(0, 600, 7)])
        for reach in (1, 4, 16)
    ]
    assert found[0] < found[1] < found[2] and found[2] > 0.9


def test_as_many_as_are_asked_for():
    lists = Lists.build(rows())
    for n in (1, 50, 599, 600, 700):
        found = lists.labels(rows()[5], n)
        assert min(n, 600) <= len(found) <= 600 and (np.diff(found) > 0).all()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_labels(count):
    lists = Lists.build(rows()[:count])
    assert lists.labels(rows()[0], count).tolist() == list(range(count))


def test_arrays_make_the_same_lists_and_damaged_ones_none():
    lists = Lists.build(rows()).reaching(3)
    held = lists.arrays()
    again = Lists.of_arrays(held)
    assert again.labels(rows()[9], 4).tolist() == lists.labels(rows()[9], 4).tolist()
    assert Lists.of_arrays({}) is None
    of, middles = held["lists.of"], held["lists.middles"]
    for name, wrong in (
        ("of", of[:0]), ("of", np.where(of == 0, -1, of)), ("of", of + np.int32(1)), ("of", of.astype(np.int64)),
        ("reach", np.array([0])), ("reach", np.array([10**6])),
        ("middles", middles[0]), ("middles", np.where(middles > 0, np.nan, middles)), ("middles", middles[1:]),
    ):  # fmt: skip
        with pytest.raises(ModelError, match="make the index again"):
            Lists.of_arrays(held | {f"lists.{name}": wrong})
