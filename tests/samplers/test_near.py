from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import board, networks, short

import longtail as lt
from longtail.shortlists.near import Near, NearGuide
from longtail.training import stages
from longtail.types import label_matrix


def guide(seed: int, **changes) -> NearGuide:
    draw = np.random.default_rng(seed)
    targets = label_matrix(np.arange(0, 25, 2), draw.integers(0, 4, 24) + np.tile([0, 4], 12), (12, 8))
    return NearGuide.build(Near(**changes), draw.normal(size=(12, 5)).astype(np.float32), targets)


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_candidates_by_the_slow_formula(seed):
    made = guide(seed, keep=8, points=3, gamma=0.2)
    queries = np.random.default_rng(seed + 1).normal(size=(3, 5)).astype(np.float32)
    found = made.candidates(queries).toarray()
    dense = made.targets.toarray()
    for row, query in enumerate(unit(queries)):
        by_label = made.centroids @ query
        near = np.argsort(-(made.points @ query))[:3]
        by_point = np.maximum(made.points[near] @ query, 0) @ dense[near]
        by_point /= max(by_point.max(), 1e-12)
        kept = np.argsort(-by_label)[:6]  # three quarters of what is kept
        expected = 0.2 * by_point
        expected[kept] += 0.8 * by_label[kept]
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_centroids_are_mean_directions():
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(3, 4)).astype(np.float32)
    targets = label_matrix(np.array([0, 1, 2, 3]), np.array([0, 0, 2]), (3, 3))
    made = NearGuide.build(Near(), vectors, targets)
    np.testing.assert_allclose(made.centroids[0], unit(vectors[0] + vectors[1]), atol=1e-6)
    np.testing.assert_allclose(made.centroids[2], unit(vectors[2]), atol=1e-6)
    assert not made.centroids[1].any()  # nobody has it
    assert made.beta == 0.5
    assert NearGuide.build(Near(beta=0.1), vectors, targets).beta == 0.1


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_scores_are_mixed_after_a_sigmoid_and_by_the_largest(beta):
    made = replace(guide(0, keep=8), beta=beta)
    found = made.candidates(np.random.default_rng(2).normal(size=(4, 5)).astype(np.float32))
    logits = np.random.default_rng(3).normal(size=found.nnz).astype(np.float32)
    mixed = made.combined(logits, found)
    for row in range(4):
        part = slice(found.indptr[row], found.indptr[row + 1])
        one, two = 1 / (1 + np.exp(-logits[part])), 1 / (1 + np.exp(-found.data[part]))
        np.testing.assert_allclose(mixed[part], beta * one / one.max() + (1 - beta) * two / two.max(), rtol=1e-5)


def test_rows_without_candidates_are_no_trouble():
    made = guide(0, keep=8)
    found = made.candidates(np.ones((2, 5), np.float32))
    empty = type(found)(found.shape, dtype=np.float32)
    assert made.combined(np.zeros(0, np.float32), empty).shape == (0,)


def test_a_guide_comes_back():
    made = guide(1, keep=5)
    again = NearGuide.of_arrays(made.arrays(), made.settings)
    queries = np.eye(5, dtype=np.float32)
    assert np.array_equal(again.candidates(queries).toarray(), made.candidates(queries).toarray())
    assert again.beta == made.beta


def test_mined_labels_are_near_and_wrong():
    train = board(200)
    network = networks(short("astec", shortlist__mined=3, surrogate__training__epochs=1), train)["training"]
    mined, targets = network.mined, network.points.targets
    assert np.diff(mined.indptr).max() <= 3
    assert mined.nnz > 0
    assert mined.multiply(targets > 0).nnz == 0
    assert (np.diff(mined.indptr) > 0).mean() > 0.9


def test_the_best_entries_of_rows():
    draw = np.random.default_rng(0)
    matrix = stages.sp.csr_array(np.where(draw.random((6, 9)) < 0.6, draw.random((6, 9)), 0))
    kept = stages._best_entries(matrix, 2).toarray()
    for row, own in zip(matrix.toarray(), kept, strict=True):
        assert sorted(own[own > 0]) == sorted(row[row > 0])[-2:]
        assert (row[own > 0] == own[own > 0]).all()


def test_beta_is_chosen_on_held_out_points_and_kept(tmp_path):
    model = lt.fit(short("astec", training__epochs=4), board())
    assert 0.1 <= model.vectors.guide.beta <= 0.9
    fixed = lt.fit(short("astec", shortlist__beta=0.25), board())
    assert fixed.vectors.guide.beta == 0.25


def test_a_reranker_is_saved_and_used(tmp_path):
    recipe = short("astec", rerank="rerank").override("rerank.training.epochs", 2).override("rerank.top", 10)
    model = lt.fit(recipe, board())
    assert model.vectors.second is not None
    model.save(tmp_path / "run")
    again = type(model).load(tmp_path / "run")
    texts = board().texts.tolist()[:20]
    one, two = model.predict(texts, 4), again.predict(texts, 4)
    assert np.array_equal(one.labels, two.labels)
    assert np.array_equal(one.scores, two.scores)
    second = model.vectors.second
    encoded = second.encode(second.encoding.inputs(texts))
    first = replace(model, vectors=replace(model.vectors, second=None, again=0)).predict(texts, 10)
    for row in range(len(texts)):
        labels = first.labels[row][first.labels[row] >= 0]
        added = second.pairs(encoded[row : row + 1], np.zeros(len(labels), int), labels)
        expected = first.scores[row, : len(labels)] + 1 / (1 + np.exp(-added))
        np.testing.assert_allclose(one.scores[row], np.sort(expected)[::-1][:4], rtol=1e-5)
