from __future__ import annotations

import numpy as np
import pytest

from longtail.errors import ModelError
from longtail.search.ivf import IVF


def vectors(count: int = 600, dim: int = 12) -> np.ndarray:
    """Twenty heaps, some of them far longer than others."""
    draw = np.random.default_rng(3)
    heaps = draw.normal(size=(20, dim))[draw.integers(20, size=count)] + 0.2 * draw.normal(size=(count, dim))
    return (heaps * draw.uniform(0.5, 2, size=(count, 1))).astype(np.float32)


def test_every_row_is_in_one_cluster_and_all_are_listed_where_all_clusters_are_looked_into():
    ivf = IVF.build(vectors())
    assert sorted(ivf.clusters.members.tolist()) == list(range(600))
    every = ivf.searching(len(ivf.clusters)).rows(vectors()[0], 1)
    assert every.tolist() == list(range(600))


def test_the_nearest_rows_are_in_the_nearest_clusters():
    rows = vectors()
    ivf = IVF.build(rows)
    exact = np.argsort(-(rows @ rows.T), axis=1)[:, :5]
    recall = [
        np.mean([np.isin(exact[row], ivf.searching(nprobe).rows(rows[row], 5)).mean() for row in range(0, 600, 7)])
        for nprobe in (1, 4, 16)
    ]
    assert recall[0] < recall[1] < recall[2] and recall[2] > 0.9


def test_rows_are_listed_cluster_by_cluster():
    rows = vectors()
    ivf = IVF.build(rows).searching(3)
    for query in rows[:20]:
        best = np.argsort(-(ivf.centroids @ query), kind="stable")[:3]
        listed = ivf.rows(query, 1)
        assert listed.tolist() == np.flatnonzero(np.isin(ivf.clusters.of, best)).tolist()
        assert len(set(ivf.clusters.of[ivf.rows(query, 10)].tolist())) >= 6  # twice the results, twice the clusters


def test_as_many_as_are_wanted():
    ivf = IVF.build(vectors())
    for n in (1, 50, 599, 600, 700):
        listed = ivf.rows(vectors()[5], n)
        assert min(n, 600) <= len(listed) <= 600 and (np.diff(listed) > 0).all()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_rows(count):
    ivf = IVF.build(vectors()[:count])
    assert ivf.rows(vectors()[0], count).tolist() == list(range(count))


def test_balanced_clusters_lead_to_most_of_the_nearest_rows():
    rows = vectors()
    ivf = IVF.balanced(rows)
    assert np.ptp(np.diff(ivf.clusters.starts)) <= 1
    exact = np.argsort(-(rows @ rows.T), axis=1)[:, :5]
    looked = ivf.searching(16).nearest(rows, 5)
    assert looked.shape == (600, 16)
    assert np.mean([np.isin(ivf.clusters.of[exact[row]], looked[row]).mean() for row in range(600)]) > 0.9


def test_progress_is_told():
    steps = []
    IVF.build(vectors(50), progress=lambda what, done, total: steps.append((what, done, total)))
    assert steps[0] == ("clustering", 0, len(steps))


def test_arrays_make_the_same_clusters_and_damaged_ones_none():
    ivf = IVF.build(vectors()).searching(3)
    arrays = ivf.arrays()
    opened = IVF.of_arrays(arrays, *vectors().shape)
    assert opened.nprobe == 3
    assert opened.rows(vectors()[9], 4).tolist() == ivf.rows(vectors()[9], 4).tolist()
    assert IVF.of_arrays({}, *vectors().shape) is None
    of, centroids = arrays["ivf.of"], arrays["ivf.centroids"]
    for name, wrong in (
        ("of", of[:0]), ("of", np.where(of == 0, -1, of)), ("of", of + np.int32(1)), ("of", of.astype(np.int64)),
        ("nprobe", np.array([0])), ("nprobe", np.array([10**6])),
        ("centroids", centroids[0]), ("centroids", np.where(centroids > 0, np.nan, centroids)),
        ("centroids", centroids[1:]), ("centroids", centroids.astype(np.float64)),
    ):  # fmt: skip
        with pytest.raises(ModelError, match="make the index again"):
            IVF.of_arrays(arrays | {f"ivf.{name}": wrong}, *vectors().shape)
