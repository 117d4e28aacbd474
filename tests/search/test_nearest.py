from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import DataError
from longtail.scorers import near as near_module
from longtail.scorers.near import centroids, fuse
from longtail.search import exact
from longtail.search import nearest as module
from longtail.search.exact import largest, top_products, unit
from longtail.search.ivf import IVF
from longtail.search.nearest import among, nearest
from longtail.types import label_matrix


def coarse(seed: int, rows: int, dim: int = 4):
    return np.round(np.random.default_rng(seed).normal(size=(rows, dim)), 0).astype(np.float32)  # equal scores happen


def grouped(seed: int, rows: int, dim: int):
    draw = np.random.default_rng(seed)
    middles = draw.normal(size=(60, dim))
    return (middles[draw.integers(0, 60, rows)] + 0.6 * draw.normal(size=(rows, dim))).astype(np.float32)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 7), st.integers(1, 60), st.integers(1, 70), st.booleans())
def test_blocks_and_groups_give_what_a_full_sort_gives(seed, count, size, k, biased):
    queries, rows = coarse(seed, count), coarse(seed + 1, size)
    bias = coarse(seed + 2, size, 1).ravel() if biased else None
    with patch.object(exact, "GROUP", 5):
        best, scores = top_products(queries, rows, k, bias, block=3, cells=20)
    full = queries @ rows.T + (bias if biased else 0)
    order = np.argsort(-full, axis=1, kind="stable")[:, :k]
    assert best.tolist() == order.tolist()
    np.testing.assert_array_equal(scores, np.take_along_axis(full, order, 1))


@pytest.mark.parametrize("k", [0, 1, 7, 400])
def test_the_largest_are_found_among_equals_and_masked_ones(k):
    scores = np.random.default_rng(0).integers(0, 9, 300).astype(np.float32)
    scores[::3] = -np.inf
    places, values = largest(scores, k)
    expected = np.argsort(-scores, kind="stable")[:k]
    assert places.tolist() == expected.tolist()
    assert values.tolist() == scores[expected].tolist()


def test_queries_that_are_not_numbers_find_nothing():
    queries, rows = coarse(0, 2), coarse(1, 500)
    queries[1] = np.nan
    best, scores = top_products(queries, rows, 3)
    assert (best[0] >= 0).all()
    assert best[1].tolist() == [-1] * 3 and (scores[1] == -np.inf).all()


def test_a_small_gamma_lets_points_add_labels_only_behind_the_centroids():
    targets = label_matrix(np.array([0, 1]), np.array([2]), (1, 3))
    near = np.array([[0, 1]], np.int32), np.array([[0.9, 0.5]], np.float32)
    points = np.array([[0]], np.int32), np.array([[0.9]], np.float32)
    assert fuse(near, points, targets, keep=2).indices.tolist() == [0, 1]
    assert fuse((near[0][:, :1], near[1][:, :1]), points, targets, keep=2).indices.tolist() == [0, 2]


def test_unit_rows_are_not_copied():
    rows = coarse(0, 20)
    rows[3] = 0
    scaled = unit(rows)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), rows.any(axis=1), atol=1e-6)
    assert unit(scaled) is scaled


def test_cosine_or_product():
    queries, rows = coarse(0, 5) + 0.5, coarse(1, 30) + 0.25
    best, scores = nearest(queries, rows, 3)
    np.testing.assert_allclose(scores, -np.sort(-unit(queries) @ unit(rows).T, axis=1)[:, :3], atol=1e-6)
    assert (best == top_products(unit(queries), unit(rows), 3)[0]).all()
    by_product = nearest(queries, rows, 3, cosine=False)
    assert (by_product[0] == top_products(queries, rows, 3)[0]).all()
    with pytest.raises(DataError, match="same dimensions"):
        nearest(queries, rows[:, :2], 3)


@pytest.mark.parametrize("cosine", [True, False])
def test_clusters_lead_to_nearly_all_and_scores_are_exact(cosine):
    queries, rows = grouped(0, 100, 24), grouped(1, 4000, 24)
    near, scores = nearest(queries, rows, 20, cosine=cosine, exact=False)
    truth, exact_scores = nearest(queries, rows, 20, cosine=cosine, exact=True)
    assert near.dtype == np.int32 and near.shape == truth.shape
    recall = np.mean([len(set(a) & set(b)) / 20 for a, b in zip(near.tolist(), truth.tolist(), strict=True)])
    assert recall >= 0.95
    assert (np.diff(scores, axis=1) <= 0).all()
    full = unit(queries) @ unit(rows).T if cosine else queries @ rows.T
    np.testing.assert_allclose(scores, np.take_along_axis(full, near.astype(np.int64), 1), rtol=1e-5, atol=1e-5)
    same = near == truth
    np.testing.assert_allclose(scores[same], exact_scores[same], rtol=1e-5, atol=1e-5)


def test_clusters_give_equal_scores_to_the_smaller_row_and_all_rows_where_there_are_few():
    rows = np.repeat(np.eye(3, dtype=np.float32), 2, axis=0)
    find = among(rows, exact=False)
    near, scores = find(np.array([[3, 2, 1]], np.float32), 9)
    assert near.tolist() == [[0, 1, 2, 3, 4, 5]]
    np.testing.assert_allclose(scores[0] * np.sqrt(14), [3, 3, 2, 2, 1, 1], rtol=1e-6)
    assert find(np.zeros((0, 3), np.float32), 2)[0].shape == (0, 2)
    with pytest.raises(DataError, match="same dimensions"):
        find(rows[:, :2], 3)


def test_many_rows_are_put_into_clusters_and_few_are_not():
    rows = coarse(0, 12)
    with patch.object(module, "EXACT", 12), patch.object(IVF, "balanced", side_effect=AssertionError):
        assert nearest(rows, rows, 2)[0].shape == (12, 2)
    with patch.object(module, "EXACT", 11), patch.object(IVF, "balanced", wraps=IVF.balanced) as used:
        assert nearest(rows, rows, 20)[0].shape == (12, 12)
        used.assert_called_once()


def targets_of(seed: int, points: int, labels: int):
    draw = np.random.default_rng(seed)
    matrix = sp.csr_array((draw.random((points, labels)) < 0.3) * draw.integers(1, 3, (points, labels)) / 2)
    return label_matrix(matrix.indptr, matrix.indices, matrix.shape, matrix.data)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 9), st.integers(1, 12), st.integers(1, 8), st.booleans())
def test_fusion_is_the_slow_formula(seed, queries, labels, keep, several):
    draw = np.random.default_rng(seed)
    points, rows = 15, labels + 4 * several
    label_of = np.append(np.arange(labels), draw.integers(0, labels, 4)).astype(np.int32) if several else None
    targets = targets_of(seed, points, labels)

    def hits(count, wide):
        places = np.argsort(draw.random((queries, count)), axis=1)[:, :wide].astype(np.int32)
        places[draw.random(places.shape) < 0.2] = -1
        return places, (draw.random(places.shape) * 1.5 - 0.5).astype(np.float32)

    near, points_near = hits(rows, 6), hits(points, 4)
    with patch.object(near_module, "BLOCK", 2):
        shortlists = fuse(near, points_near, targets, label_of=label_of, gamma=0.3, keep=keep)
    assert shortlists.shape == (queries, labels)
    for query in range(queries):
        by_points = np.zeros(labels)
        for point, similarity in zip(points_near[0][query], points_near[1][query], strict=True):
            if point >= 0:
                by_points += max(similarity, 0) * targets.toarray()[point]
        by_points /= by_points.max() or 1
        best: dict[int, float] = {}
        for row, similarity in zip(near[0][query].tolist(), near[1][query].tolist(), strict=True):
            if row >= 0:
                label = int(label_of[row]) if several else row
                best[label] = max(best.get(label, -np.inf), similarity)
        merged = {
            label: 0.3 * by_points[label] + 0.7 * best.get(label, 0)
            for label in range(labels)
            if by_points[label] or label in best
        }
        expected = dict(sorted(merged.items(), key=lambda item: (-item[1], item[0]))[:keep])
        own = slice(shortlists.indptr[query], shortlists.indptr[query + 1])
        assert shortlists.indices[own].tolist() == sorted(expected)
        np.testing.assert_allclose(shortlists.data[own], [expected[label] for label in sorted(expected)], atol=1e-6)


def test_centroids_are_weighted_mean_directions():
    targets, vectors = targets_of(0, 20, 6), coarse(1, 20)
    targets = label_matrix(targets.indptr, targets.indices, (20, 8), targets.data)  # two labels without points
    label_of, rows = centroids(targets, vectors)
    assert label_of.tolist() == list(range(8))
    np.testing.assert_allclose(rows, unit(targets.toarray().T @ vectors), atol=1e-6)
    assert not rows[6:].any()


def test_crowded_labels_have_several_centroids():
    lists = [[0, 1]] * 3 + [[1]] * 20 + [[2]] * 4
    ends = np.append(0, np.cumsum([len(row) for row in lists]))
    targets = label_matrix(ends, np.concatenate(lists), (27, 4))
    vectors = coarse(1, 27) + 0.5
    with patch.object(near_module, "CROWD", 22):
        label_of, rows = centroids(targets, vectors, most=5)
    assert label_of.tolist() == [0, 1, 1, 1, 1, 2, 3]
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [1, 1, 1, 1, 1, 1, 0], atol=1e-6)
    own = unit(targets.toarray().T @ vectors)
    np.testing.assert_allclose(rows[[0, 5]], own[[0, 2]], atol=1e-6)
    near = (unit(vectors[:23]) @ rows[1:5].T).max(axis=1).mean()
    assert near > (unit(vectors[:23]) @ own[1]).mean() + 0.05  # several lie nearer to the points than one
