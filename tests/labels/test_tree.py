from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import DataError
from longtail.labels import tree
from longtail.labels.tree import Clusters, clusters, pifa, smoothed
from longtail.labels.walk import normalised
from longtail.types import label_matrix, no_pairs


def sparse(seed: int, rows: int, columns: int, share: float = 0.3) -> sp.csr_array:
    draw = np.random.default_rng(seed)
    values = np.round(draw.random((rows, columns)), 1) * (draw.random((rows, columns)) < share)  # ties and empty rows
    return sp.csr_array(values.astype(np.float32))


def soft_targets(seed: int, points: int, labels: int):
    matrix = sparse(seed, points, labels)
    return label_matrix(matrix.indptr, matrix.indices, matrix.shape, matrix.data)


def unit(values):
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


def cut(values, most):
    out = np.zeros_like(values)
    for row, kept in enumerate(np.argsort(-values, axis=1, kind="stable")[:, :most]):
        out[row, kept] = values[row, kept]
    return out


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 9), st.integers(1, 8), st.integers(1, 9))
def test_pifa_is_the_slow_formula_whatever_the_blocks(seed, points, labels, words, most):
    targets, bags, names = soft_targets(seed, points, labels), sparse(seed + 1, points, words), sparse(2, labels, words)
    with patch.object(tree, "WORK", 3):
        got = pifa(targets, bags, most=most, names=names)
    sums = targets.toarray().T @ unit(bags.toarray())
    without = targets.toarray().sum(axis=0) == 0
    sums[without] = unit(names.toarray())[without]
    kept = np.diff(got.indptr)
    assert (kept == np.minimum((sums > 0).sum(axis=1), most)).all()
    np.testing.assert_allclose(got.sum(axis=1), unit(cut(sums, most)).sum(axis=1), atol=1e-5)  # equal features may swap
    if most >= words:
        np.testing.assert_allclose(got.toarray(), unit(sums), atol=1e-6)
    assert got.has_sorted_indices and got.dtype == np.float32


def test_labels_without_points_are_empty_unless_they_have_names():
    targets = label_matrix(np.array([0, 1]), np.array([1]), (1, 2))
    bags = sp.csr_array(np.array([[3, 4]], np.float32))
    np.testing.assert_allclose(pifa(targets, bags).toarray(), [[0, 0], [0.6, 0.8]])
    assert pifa(no_pairs((0, 2)), sp.csr_array((0, 5), dtype=np.float32)).shape == (2, 5)
    with pytest.raises(DataError, match="one bag a point"):
        pifa(targets, sp.csr_array((2, 2), dtype=np.float32))


@pytest.mark.parametrize("most", [2, 9])
def test_smoothing_mixes_neighbours(most):
    vectors, graph = sparse(0, 7, 5, 0.8), sparse(1, 7, 7) + sp.eye_array(7, format="csr", dtype=np.float32)
    mixed = normalised(sp.csr_array(graph)).toarray() @ vectors.toarray()
    got = smoothed(vectors, sp.csr_array(graph), most=most)
    np.testing.assert_allclose(got.toarray(), unit(cut(mixed, most)), atol=1e-6)
    with pytest.raises(DataError, match="one size"):
        smoothed(vectors, sparse(1, 6, 6))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 70), st.integers(1, 80), st.booleans(), st.booleans())
def test_clusters_are_balanced_and_repeatable(seed, labels, count, dense, equal):
    vectors = sparse(seed, labels, 6)
    if equal:
        vectors = sp.csr_array(np.ones((labels, 6), np.float32))
    rows = vectors.toarray() if dense else vectors
    of = clusters(rows, count, seed=seed)
    assert of.shape == (labels,) and of.dtype == np.int32
    sizes = np.bincount(of)
    if labels:
        assert len(sizes) == 2 ** int(np.log2(min(count, labels)))
        assert sizes.max() - sizes.min() <= 1
    assert (clusters(rows, count, seed=seed) == of).all()


@pytest.mark.parametrize("dense", [True, False])
def test_groups_that_are_far_apart_are_found(dense):
    draw = np.random.default_rng(0)
    group = draw.permutation(np.repeat(np.arange(8), 16))
    vectors = np.zeros((128, 40), np.float32)
    for row, own in enumerate(group):
        vectors[row, own * 5 : own * 5 + 5] = draw.random(5) + 0.5
    vectors[:, :5] += 0.01
    assigned = clusters(vectors if dense else sp.csr_array(vectors), 8, seed=1)

    def tightness(of):
        rows = unit(vectors)
        return sum(np.linalg.norm(rows[of == cluster].sum(axis=0)) for cluster in range(8)) / 128

    assert tightness(assigned) > 0.85 * tightness(group)
    assert tightness(assigned) > 1.5 * tightness(draw.permutation(group))


def test_sparse_and_dense_rows_give_the_same_tree():
    vectors = sparse(3, 90, 30, 0.2)
    vectors.data += np.random.default_rng(0).random(vectors.nnz, np.float32)  # no ties: sums may round differently
    assert (clusters(vectors, 16, seed=5) == clusters(vectors.toarray(), 16, seed=5)).mean() > 0.95


def test_the_seed_matters_and_bad_counts_are_refused():
    vectors = sparse(0, 64, 20)
    assert (clusters(vectors, 16, seed=0) != clusters(vectors, 16, seed=1)).any()
    with pytest.raises(DataError, match="at least 1"):
        clusters(vectors, 0, seed=0)


def test_rounds_are_capped():
    with patch.object(tree, "ROUNDS", 3), patch.object(tree, "GAIN", -np.inf):
        assert np.bincount(clusters(sparse(0, 9, 4), 4, seed=0)).tolist() == [3, 2, 2, 2]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 12), st.integers(1, 30), st.integers(1, 9))
def test_cluster_targets_are_the_largest_of_their_labels(seed, points, labels, count):
    of = np.random.default_rng(seed).integers(0, count, labels)
    clustering, targets = Clusters.build(of), soft_targets(seed, points, labels)
    got = clustering.targets(targets)
    dense = targets.toarray()
    expected = np.zeros((points, len(clustering)), np.float32)
    for cluster in range(len(clustering)):
        expected[:, cluster] = dense[:, of == cluster].max(axis=1, initial=0)
    np.testing.assert_array_equal(got.toarray(), expected)
    assert got.nnz == (expected > 0).sum()
    assert got.has_canonical_format


def test_chosen_clusters_give_their_labels():
    clustering = Clusters.build(np.array([2, 0, 2, 0, 2]))
    assert len(clustering) == 3
    assert clustering.members.tolist() == [1, 3, 0, 2, 4]
    assert clustering.labels_of(np.array([[0, 2], [1, -1]])).tolist() == [[1, 3, -1, 0, 2, 4], [-1] * 6]
    assert clustering.labels_of(np.array([2])).tolist() == [0, 2, 4]
