from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from small import Given, board, networks, short

import longtail as lt
from longtail.errors import ModelError, RecipeError
from longtail.labels.walk import normalised, random_walk
from longtail.parts import Query
from longtail.records import When
from longtail.samplers.near import BuiltNear, Near, best_entries
from longtail.scorers import near as module
from longtail.scorers.near import NearRetriever
from longtail.types import label_matrix


def retriever(seed: int, *, beta: float | None = None, **changes) -> NearRetriever:
    draw = np.random.default_rng(seed)
    targets = label_matrix(np.arange(0, 25, 2), draw.integers(0, 4, 24) + np.tile([0, 4], 12), (12, 8))
    return NearRetriever.build(draw.normal(size=(12, 5)).astype(np.float32), targets, beta=beta, **changes)


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_candidates_by_the_slow_formula(seed):
    near = retriever(seed, keep=8, neighbours=3, gamma=0.2)
    queries = np.random.default_rng(seed + 1).normal(size=(3, 5)).astype(np.float32)
    proposed = near.propose(queries, Given)
    assert proposed.has_sorted_indices
    dense = near.targets.toarray()
    for row, query in enumerate(unit(queries)):
        by_label = near.centroids @ query
        points = np.argsort(-(near.points @ query))[:3]
        by_point = np.maximum(near.points[points] @ query, 0) @ dense[points]
        by_point /= max(by_point.max(), 1e-12)
        kept = np.argsort(-by_label)[:6]  # three quarters of what is kept
        expected = 0.2 * by_point
        expected[kept] += 0.8 * by_label[kept]
        np.testing.assert_allclose(proposed.toarray()[row], expected, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_what_is_not_proposed_has_the_similarity_to_its_centroid(seed):
    near = retriever(seed, keep=3, neighbours=2, gamma=0.2)
    queries = np.random.default_rng(seed + 1).normal(size=(3, 5)).astype(np.float32)
    proposed = near.propose(queries, Given)
    assert (np.diff(proposed.indptr) <= 3).all()
    rows, labels = np.nonzero(proposed.toarray() == 0)
    expected = 0.8 * (unit(queries) @ near.centroids.T)[rows, labels]
    np.testing.assert_allclose(near.beyond(queries, Given, rows, labels), expected, atol=1e-5)


def test_centroids_are_mean_directions():
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(3, 4)).astype(np.float32)
    targets = label_matrix(np.array([0, 1, 2, 3]), np.array([0, 0, 2]), (3, 3))
    near = NearRetriever.build(vectors, targets, beta=None)
    np.testing.assert_allclose(near.centroids[0], unit(vectors[0] + vectors[1]), atol=1e-6)
    np.testing.assert_allclose(near.centroids[2], unit(vectors[2]), atol=1e-6)
    assert not near.centroids[1].any()  # nobody has it
    assert near.beta == 0.5 and near.undecided
    fixed = NearRetriever.build(vectors, targets, beta=0.1)
    assert fixed.beta == 0.1 and not fixed.undecided


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_scores_are_mixed_after_a_sigmoid_and_by_the_largest(beta):
    near = retriever(0, keep=8, beta=beta)
    proposed = near.propose(np.random.default_rng(2).normal(size=(4, 5)).astype(np.float32), Given)
    logits = np.random.default_rng(3).normal(size=proposed.nnz).astype(np.float32)
    mixed = near.combine(logits, proposed.data, proposed.indptr, np.ones(proposed.nnz, np.bool_))
    for row in range(4):
        own = slice(proposed.indptr[row], proposed.indptr[row + 1])
        one, two = 1 / (1 + np.exp(-logits[own])), 1 / (1 + np.exp(-proposed.data[own]))
        np.testing.assert_allclose(mixed[own], beta * one / one.max() + (1 - beta) * two / two.max(), rtol=1e-5)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_cosines_of_rows_become_probabilities_by_their_distance_from_one(beta):
    near = retriever(0, keep=8, beta=beta)
    proposed = near.propose(np.random.default_rng(2).normal(size=(4, 5)).astype(np.float32), Given)
    cosines = np.random.default_rng(3).uniform(-1, 1, proposed.nnz).astype(np.float32)
    mixed = near.combine(cosines, proposed.data, proposed.indptr, np.ones(proposed.nnz, np.bool_), cosine=True)
    for row in range(4):
        own = slice(proposed.indptr[row], proposed.indptr[row + 1])
        one, two = np.exp(5 * (cosines[own] - 1)), 1 / (1 + np.exp(-proposed.data[own]))
        np.testing.assert_allclose(mixed[own], beta * one / one.max() + (1 - beta) * two / two.max(), rtol=1e-5)
    assert near.additive(mixed) is mixed


def with_texts(seed: int) -> tuple[NearRetriever, np.ndarray, np.ndarray]:
    """Make a retriever with texts, a query, and the sums of its similarities to points and to texts."""
    draw = np.random.default_rng(seed)
    vectors, texts = draw.normal(size=(12, 5)).astype(np.float32), unit(draw.normal(size=(8, 5))).astype(np.float32)
    targets = label_matrix(np.arange(0, 25, 2), draw.integers(0, 4, 24) + np.tile([0, 4], 12), (12, 8))
    query = draw.normal(size=(1, 5)).astype(np.float32)
    means = unit(targets.toarray().T @ vectors)
    both = NearRetriever.build(vectors, targets, texts=texts, beta=0.5, gamma=0.0, keep=99)
    return both, query, (means + texts) @ unit(query)[0]


def test_similarities_to_points_and_to_texts_add_up():
    both, query, expected = with_texts(0)
    found = both.beyond(query, Given, np.zeros(8, np.int64), np.arange(8))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_similarities_to_points_and_to_texts_add_up_where_labels_are_proposed():
    both, query, expected = with_texts(0)
    kept = np.argsort(-expected)[:6]  # three quarters of what is kept
    np.testing.assert_allclose(both.propose(query, Given).toarray()[0, kept], expected[kept], rtol=1e-4, atol=1e-5)


def test_labels_are_near_by_texts_and_by_those_of_their_neighbours():
    recipe = short("siamesexml", sampler__num_candidates=30, sampler__beta=0.5)
    network = networks(recipe, board(200), run=True)["training"]
    sampler, train = network.terms[0].sampler, network.fit.train
    means = unit(train.targets.toarray().T @ network.vectors(network.points.inputs))
    names = unit(network.vectors(network.points.names))
    walked = unit(normalised(random_walk(train.targets, seed=0)) @ names)
    np.testing.assert_allclose(sampler.first.centroids, means + walked, rtol=1e-3, atol=1e-4)
    assert sampler.freeze(network) is sampler.first  # the encoder is frozen
    plain = networks(recipe.override("sampler.texts", False), board(200), run=True)["training"].terms[0].sampler
    np.testing.assert_allclose(plain.first.centroids, means, rtol=1e-3, atol=1e-4)


def test_a_crowded_label_is_near_if_one_of_its_centroids_is(monkeypatch):
    monkeypatch.setattr(module, "CROWD", 4)
    draw = np.random.default_rng(0)
    centres = unit(draw.normal(size=(4, 6)))
    vectors = np.concatenate([c + 0.05 * draw.normal(size=(5, 6)) for c in centres]).astype(np.float32)
    # The first label has the points around three centres, the second the five around the fourth, the third two of them.
    rows = [[0]] * 15 + [[1]] * 3 + [[1, 2]] * 2
    targets = label_matrix(np.cumsum([0, *map(len, rows)]), np.concatenate(rows), (20, 3))
    near = NearRetriever.build(vectors, targets, beta=0.5, most=2, gamma=0.0, keep=3)
    assert near.label_of.tolist() == [0, 0, 1, 1, 2]
    queries = draw.normal(size=(4, 6)).astype(np.float32)
    every, labels = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    expected = np.array(
        [[max(near.centroids[near.label_of == label] @ query) for label in range(3)] for query in unit(queries)]
    )
    np.testing.assert_allclose(near.beyond(queries, Given, every, labels), expected.ravel(), rtol=1e-4, atol=1e-5)
    assert near.beyond(queries, Given, every[:0], labels[:0]).shape == (0,)
    proposed = near.propose(queries, Given).toarray()
    for row in range(4):
        best = np.argmax(expected[row])
        assert proposed[row, best] == pytest.approx(expected[row, best], rel=1e-4)
    single = NearRetriever.build(vectors, targets, beta=0.5, gamma=0.0)
    assert single.label_of.tolist() == [0, 1, 2]
    assert expected[0, 0] >= single.beyond(queries[:1], Given, np.zeros(1, int), np.zeros(1, int))[0] - 0.2
    opened = Near(gamma=0.0, num_candidates=3).open(near.arrays(), 6)
    np.testing.assert_array_equal(opened.propose(queries, Given).toarray(), proposed)
    for wrong in (near.label_of[::-1], near.label_of[:-1], np.zeros(5, np.int32), np.array([0, 0, 1, 1, 1], np.int32)):
        with pytest.raises(ModelError, match=r"array near\.labels"):
            Near().open(near.arrays() | {"near.labels": wrong}, 6)


def test_texts_are_added_to_every_centroid_of_a_crowded_label(monkeypatch):
    monkeypatch.setattr(module, "CROWD", 4)
    draw = np.random.default_rng(1)
    vectors, texts = draw.normal(size=(10, 4)).astype(np.float32), np.eye(2, 4, dtype=np.float32)
    targets = label_matrix(np.arange(11), np.array([0] * 8 + [1] * 2), (10, 2))
    plain, both = (NearRetriever.build(vectors, targets, beta=0.5, most=2, texts=t) for t in (None, texts))
    assert both.label_of.tolist() == [0, 0, 1]
    np.testing.assert_allclose(both.centroids, plain.centroids + texts[[0, 0, 1]], rtol=1e-6)


def test_rows_without_candidates_are_no_trouble():
    near = retriever(0, keep=8)
    nothing = np.zeros(0, np.float32)
    assert near.combine(nothing, nothing, np.zeros(3, np.int64), np.zeros(0, np.bool_)).shape == (0,)
    proposed = near.propose(np.ones((1, 5), np.float32), Given)
    starts = np.array([0, 0, proposed.nnz, proposed.nnz])  # the first and the last text have none
    logits = np.ones(proposed.nnz, np.float32)
    expected = near.combine(logits, proposed.data, proposed.indptr, np.ones(proposed.nnz, np.bool_))
    np.testing.assert_array_equal(
        near.combine(logits, proposed.data, starts, np.ones(proposed.nnz, np.bool_)), expected
    )


def test_a_retriever_comes_back():
    settings_of = Near(num_candidates=5, num_neighbours=4, gamma=0.3)
    near = retriever(1, keep=5, neighbours=4, gamma=0.3, beta=0.7)
    opened = settings_of.open(near.arrays(), 5)
    queries = np.eye(5, dtype=np.float32)
    assert np.array_equal(opened.propose(queries, Given).toarray(), near.propose(queries, Given).toarray())
    assert opened.beta == 0.7 and not opened.undecided


def test_beta_is_the_first_of_the_best():
    class Scorer:
        def led(self, chosen):
            return chosen

    near = retriever(0)
    assert near.choose(Scorer(), lambda trial: -abs(trial.beta - 0.31)).beta == pytest.approx(0.3)
    fixed = retriever(0, beta=0.45)
    assert fixed.choose(Scorer(), lambda trial: trial.beta) is fixed


def test_validation_points_are_needed_where_beta_is_open_and_a_surrogate_always():
    assert Near().undecided() == When.WHILE and Near(beta=0.5).undecided() == When.NEVER
    with pytest.raises(RecipeError, match="needs a surrogate stage"):
        short("astec").override("surrogate", None).check()
    with pytest.raises(RecipeError, match=r"near\.keep is now called num_candidates"):
        short("astec", sampler__keep=3)


def test_mined_labels_are_near_and_wrong():
    train = board(200)
    network = networks(short("astec", sampler__mined=3, surrogate__training__epochs=1), train)["training"]
    sampler = network.terms[0].sampler
    assert isinstance(sampler, BuiltNear)
    mined, targets = sampler.mined, network.points.targets
    assert np.diff(mined.indptr).max() <= 3
    assert mined.nnz > 0
    assert mined.multiply(targets > 0).nnz == 0
    assert (np.diff(mined.indptr) > 0).mean() > 0.9
    proposed = sampler.first.propose(network.vectors(network.points.inputs), Given)
    wrong = np.where(targets.toarray() > 0, -np.inf, np.where(proposed.toarray() != 0, proposed.toarray(), -np.inf))
    for row in range(0, mined.shape[0], 9):
        own = mined.indices[mined.indptr[row] : mined.indptr[row + 1]]
        assert wrong[row, own].min() >= np.sort(wrong[row])[-3]  # the three nearest of them


@pytest.mark.parametrize("freeze", [True, False])
def test_what_is_near_is_asked_again_unless_the_encoder_is_frozen(freeze):
    recipe = short("astec", surrogate__freeze=freeze)
    network = networks(recipe, board(200), run=True)["training"]
    sampler = network.terms[0].sampler
    served = sampler.freeze(network)
    assert (served is sampler.first) == freeze
    vectors = network.vectors(network.points.inputs)
    np.testing.assert_allclose(served.points, unit(vectors), atol=1e-5)


def test_the_best_entries_of_rows():
    draw = np.random.default_rng(0)
    matrix = sp.csr_array(np.where(draw.random((6, 9)) < 0.6, draw.random((6, 9)), 0))
    kept = best_entries(matrix, 2).toarray()
    for row, own in zip(matrix.toarray(), kept, strict=True):
        assert sorted(own[own > 0]) == sorted(row[row > 0])[-2:]
        assert (row[own > 0] == own[own > 0]).all()


def test_beta_is_chosen_on_validation_points_and_kept(tmp_path):
    model = lt.fit(short("astec", training__epochs=4), board())
    assert 0.1 <= model.vectors.retriever.beta <= 0.9
    fixed = lt.fit(short("astec", sampler__beta=0.25), board())
    assert fixed.vectors.retriever.beta == 0.25
    for trained in (model, fixed):
        trained.save(tmp_path / "run", force=True)
        assert type(trained).load(tmp_path / "run").vectors.retriever.beta == trained.vectors.retriever.beta


def test_a_reranker_is_saved_and_used(tmp_path):
    recipe = short("astec", rerank="rerank").override("rerank.training.epochs", 2).override("rerank.top", 10)
    model = lt.fit(recipe, board())
    assert model.vectors.depth == 10
    model.save(tmp_path / "run")
    loaded = type(model).load(tmp_path / "run")
    texts = board().texts.tolist()[:20]
    one, two = model.predict(texts, 4), loaded.predict(texts, 4)
    assert np.array_equal(one.labels, two.labels)
    assert np.array_equal(one.scores, two.scores)
    second = model.vectors.second
    assert second.retriever is None and loaded.vectors.second.retriever is None
    first = replace(model, vectors=model.vectors.first).predict(texts, 10)
    for row, text in enumerate(texts):
        labels = first.labels[row][first.labels[row] >= 0]
        logits = second.pairs(Query([text]), np.zeros(len(labels), int), labels)
        expected = first.scores[row, : len(labels)] + 1 / (1 + np.exp(-logits))
        np.testing.assert_allclose(one.scores[row], np.sort(expected)[::-1][:4], rtol=1e-5)
