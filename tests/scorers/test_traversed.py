"""Probabilities that walk over the label graph, against the literal formula."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scorers.toys import TEXTS, vector_scorer, with_clusters

from longtail.parts import Query
from longtail.scorers.traversed import FLOOR, TraversedScorer

LABELS = 12


def traversed(seed: int, *, share: float = 0.4, depth: int = 3) -> TraversedScorer:
    draw = np.random.default_rng(seed)
    first = with_clusters(vector_scorer(seed, LABELS, layer=True, cosine=False), seed, top=2)
    near = np.where(draw.random((LABELS, LABELS)) < 0.25, draw.random((LABELS, LABELS)), 0)
    np.fill_diagonal(near, 0.5 + draw.random(LABELS))
    return TraversedScorer(first, sp.csr_array(near.astype(np.float32)), share, depth)


def literal(scorer: TraversedScorer, texts=TEXTS) -> tuple[np.ndarray, np.ndarray]:
    """Compute all scores label by label, and which labels the best ones reach."""
    first, graph = scorer.first, scorer.graph.toarray()
    scores, reached = np.zeros((len(texts), LABELS)), np.zeros((len(texts), LABELS), bool)
    for row, text in enumerate(texts):
        query = Query([text])
        own = np.exp(first.score_one(query, np.arange(LABELS)))
        best = first.top_one(query, scorer.depth)[0]
        for label in range(LABELS):
            given_to = sum(own[other] * graph[other, label] for other in best)
            reached[row, label] = any(graph[other, label] for other in best)
            both = (1 - scorer.share) * own[label] + scorer.share * given_to
            scores[row, label] = np.log(max(both, FLOOR))
    return scores, reached


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 0.9]), st.integers(1, 14), st.integers(1, 14))
def test_scores_are_those_of_the_formula_for_many_texts_and_for_one(seed, share, depth, k):
    scorer = traversed(seed, share=share, depth=depth)
    expected, reached = literal(scorer)
    labels, scores = scorer.top(Query(TEXTS), k)
    for row, text in enumerate(TEXTS):
        mask = labels[row] >= 0
        assert mask.sum() == min(k, reached[row].sum())
        assert reached[row, labels[row][mask]].all()
        best = np.sort(expected[row][reached[row]])[::-1][:k]
        np.testing.assert_allclose(scores[row][mask], best, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(scores[row][mask], expected[row, labels[row][mask]], rtol=1e-4, atol=1e-5)
        query = Query([text])
        one, values = scorer.top_one(query, k)
        np.testing.assert_allclose(values, scores[row][mask], rtol=1e-5, atol=1e-6)
        some = np.array([7, 2, 11, 0])
        np.testing.assert_allclose(scorer.score_one(query, some), expected[row, some], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(scorer.score_one(query, one), values, rtol=1e-5, atol=1e-6)
    rows, pairs = np.repeat(np.arange(len(TEXTS)), LABELS), np.tile(np.arange(LABELS), len(TEXTS))
    np.testing.assert_allclose(scorer.pairs(Query(TEXTS), rows, pairs), expected.ravel(), rtol=1e-4, atol=1e-5)


def test_texts_without_a_known_word_get_no_labels():
    scorer = traversed(0)
    assert (scorer.top(Query(["", "qwertyuiop"]), 3)[0] == -1).all()
    assert len(scorer.top_one(Query([""]), 3)[0]) == 0


def test_a_neighbour_comes_up_that_was_not_proposed():
    scorer = traversed(3, share=0.9, depth=1)
    query = Query(TEXTS[:1])
    best = int(scorer.first.top_one(query, 1)[0][0])
    proposed = scorer.first.retriever.propose(query, scorer.first.tower).indices
    hidden = int(np.setdiff1d(np.arange(LABELS), proposed)[0])
    graph = np.eye(LABELS, dtype=np.float32)
    graph[best, hidden] = 5
    scorer = TraversedScorer(scorer.first, sp.csr_array(graph), 0.9, 1)
    assert scorer.top_one(query, 2)[0].tolist() == [hidden, best]


def test_what_is_served_knows_what_it_is():
    scorer = traversed(0)
    assert not scorer.searchable and scorer.retriever is scorer.first.retriever and len(scorer) == LABELS
    np.testing.assert_allclose(scorer.additive(np.log(np.array([0.2, 0.5], np.float32))), [0.2, 0.5], rtol=1e-6)
    assert scorer.operations() > scorer.first.operations()
    assert {"traverse.graph.indptr", "traverse.share", "labels"} <= set(scorer.arrays())
    new = scorer.rows_for(["red cat"])
    np.testing.assert_array_equal(new, scorer.first.rows_for(["red cat"]))
    query = Query(["old dog"])
    best = float(scorer.top_one(query, 1)[1][0])
    assert scorer.score_rows(query, new, 0.0, best)[0] <= best


@pytest.mark.parametrize("labels", [[], [3]])
def test_few_pairs_are_no_trouble(labels):
    scorer = traversed(1)
    rows = np.zeros(len(labels), np.int64)
    assert scorer.pairs(Query(TEXTS[:1]), rows, np.array(labels, np.int64)).shape == (len(labels),)
    assert scorer.score_one(Query(TEXTS[:1]), np.array(labels, np.int64)).shape == (len(labels),)
