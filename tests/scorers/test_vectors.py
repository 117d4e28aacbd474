from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scorers.toys import TEXTS, product, vector_scorer, with_clusters, with_near

from longtail.classifiers.rows import Rows
from longtail.data.dataset import from_rows
from longtail.encoders.bag import Bag
from longtail.encoders.heads import FrozenGated, Residual
from longtail.errors import ModelError
from longtail.files import read_arrays, write_arrays
from longtail.losses.bce import Bce
from longtail.model import open_scorer
from longtail.parts import Objective, Query
from longtail.recipe import Recipe
from longtail.samplers.all_labels import AllLabels
from longtail.scorers import vectors as module
from longtail.scorers.fused import WEIGHTS, Judge, choose_weights, union
from longtail.scorers.lexical import Lexical
from longtail.scorers.reranked import RerankedScorer
from longtail.scorers.vectors import JoinedScorer, Projection, VectorScorer
from longtail.search.exact import unit


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 8), st.booleans(), st.booleans())
def test_blocks_give_the_same_as_all_at_once(seed, labels, k, layer, cosine):
    scorer = vector_scorer(seed, labels, layer=layer, cosine=cosine)
    with patch.object(module, "BLOCK", 2):
        best_labels, scores = scorer.top(Query(TEXTS), k)
    exact = product(scorer)
    known = scorer.tower.words.bag(TEXTS).sum(axis=1) > 0
    assert known.any() and not known.all()
    assert (best_labels[~known] == -1).all() and np.isneginf(scores[~known]).all()  # nothing to go by or to say
    for row in np.flatnonzero(known):
        best = np.sort(exact[row])[::-1][: min(k, labels)]
        np.testing.assert_allclose(scores[row], best, atol=1e-5)
        np.testing.assert_allclose(exact[row][best_labels[row]], best, atol=1e-5)
        assert len(set(best_labels[row].tolist())) == len(best_labels[row])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 8), st.booleans(), st.booleans(), st.booleans())
def test_one_text_and_a_batch_get_the_same_scores(seed, labels, k, layer, cosine, led):
    scorer = vector_scorer(seed, labels, layer=layer, cosine=cosine)
    scorer = with_near(scorer, seed) if led else scorer
    batch_labels, batch_scores = scorer.top(Query(TEXTS), k)
    for row, text in enumerate(TEXTS):
        query = Query([text])
        best, scores = scorer.top_one(query, k)
        mask = batch_labels[row] >= 0
        np.testing.assert_allclose(scores, batch_scores[row][mask], atol=1e-5)
        np.testing.assert_allclose(scorer.score_one(query, best), scores, atol=1e-5)
        rows = np.full(len(best), row)
        np.testing.assert_allclose(
            scorer.pairs(Query(TEXTS), rows, np.sort(best)), scorer.score_one(query, np.sort(best)), atol=1e-5
        )


def test_no_texts_have_no_labels_of_clusters():
    scorer = with_clusters(vector_scorer(0, 9, layer=False, cosine=False), 0)
    assert [part.shape for part in scorer.top(Query([]), 3)] == [(0, 3), (0, 3)]


@pytest.mark.parametrize("led", [False, True])
def test_a_known_text_of_which_the_head_leaves_nothing_is_answered_as_among_others(led):
    scorer = vector_scorer(0, 9, layer=False, cosine=False)
    nothing = FrozenGated(
        np.zeros((4, 4), np.float32), *np.zeros((3, 4), np.float32), activation="relu", last=True
    )  # as a relu behind the last layer may
    scorer = VectorScorer(scorer.tower, Projection(nothing, False), scorer.store)
    scorer = with_clusters(scorer, 0) if led else scorer
    labels, scores = scorer.top(Query(TEXTS[:1]), 2)
    assert (labels >= 0).all()  # its words are known: the biases of labels decide
    one, values = scorer.top_one(Query(TEXTS[:1]), 2)
    assert one.tolist() == labels[0].tolist() and values.tolist() == scores[0].tolist()


def test_pairs_are_entries_of_the_whole_product():
    scorer = vector_scorer(0, 7, layer=True, cosine=True)
    rows, labels = np.array([0, 0, 1, 3, 3, 3]), np.array([6, 2, 0, 5, 5, 1])  # the third text has none
    np.testing.assert_allclose(scorer.pairs(Query(TEXTS), rows, labels), product(scorer)[rows, labels], atol=1e-5)
    unknown = scorer.pairs(Query(TEXTS), np.array([4]), np.array([3]))  # the text has no word: the bias alone
    np.testing.assert_allclose(unknown, scorer.store.bias[[3]], atol=1e-6)
    assert scorer.pairs(Query(TEXTS), rows[:0], labels[:0]).shape == (0,)
    assert [part.shape for part in scorer.top(Query([]), 3)] == [(0, 3), (0, 3)]


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_a_retriever_proposes_and_has_a_say_in_the_scores(beta):
    scorer = with_near(vector_scorer(3, 9, layer=True, cosine=False), 1, keep=4, beta=beta)
    texts = TEXTS[:4]
    own = scorer.retriever.propose(Query(texts), scorer.tower)
    expected = np.full(own.shape, -np.inf)
    for row, by_rows in enumerate(product(scorer, texts)):
        labels = own.indices[own.indptr[row] : own.indptr[row + 1]]
        logits, near = by_rows[labels], own.data[own.indptr[row] : own.indptr[row + 1]]
        one, two = 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-near))
        expected[row, labels] = beta * one / one.max() + (1 - beta) * two / two.max()
    best, scores = scorer.top(Query(texts), 9)
    for row in range(len(texts)):
        mask = best[row] >= 0
        assert sorted(best[row][mask].tolist()) == np.flatnonzero(np.isfinite(expected[row])).tolist()
        np.testing.assert_allclose(scores[row][mask], expected[row][best[row][mask]], rtol=1e-5)
        pairs = scorer.pairs(Query(texts), np.full(mask.sum(), row), np.sort(best[row][mask]))
        np.testing.assert_allclose(pairs, expected[row][np.sort(best[row][mask])], rtol=1e-5)


def test_pairs_that_are_not_proposed_are_scored_by_their_centroids():
    scorer = with_near(vector_scorer(3, 9, layer=False, cosine=False), 1, keep=3, beta=0.0)
    query = Query(TEXTS[:1])
    vectors = scorer.tower.encode(query)
    own = scorer.retriever.propose(query, scorer.tower)
    others = np.setdiff1d(np.arange(9), own.indices)
    scores = scorer.pairs(query, np.zeros(9, np.int64), np.arange(9))
    near = np.empty(9)
    near[own.indices] = own.data
    near[others] = 0.8 * scorer.retriever.centroids[others] @ unit(vectors)[0]
    chance = 1 / (1 + np.exp(-near))
    np.testing.assert_allclose(scores, chance / chance[own.indices].max(), rtol=1e-5)


def test_the_encoder_by_hand():
    scorer = vector_scorer(0, 3, layer=True, cosine=False)
    head = scorer.project.head
    summed = scorer.tower.words.bag(["red cat"]).toarray()[0] @ scorer.tower.vectors
    expected = np.maximum(head.weight @ summed + head.bias, 0) + summed
    np.testing.assert_allclose(scorer.encoded(Query(["red cat"]))[0], expected, rtol=1e-5)
    np.testing.assert_allclose(scorer.encoded_one(Query(["red cat"])), expected, rtol=1e-5)
    assert not scorer.encoded_one(Query(["qwertyuiop"])).any()
    cosine = vector_scorer(0, 3, layer=True, cosine=True)
    np.testing.assert_allclose(cosine.encoded(Query(["red cat"]))[0], unit(expected[None])[0], rtol=1e-5)
    np.testing.assert_allclose(cosine.encoded_one(Query(["red cat"])), unit(expected[None])[0], rtol=1e-5)


def test_a_second_scorer_adds_its_probabilities():
    first, second = (vector_scorer(seed, 6, layer=True, cosine=False) for seed in (4, 5))
    scorer = RerankedScorer(first, second, 3)
    by_first, by_second = product(first), 1 / (1 + np.exp(-product(second)))
    labels, scores = scorer.top(Query(TEXTS), 2)
    for row in range(4):
        ranked = np.argsort(-by_first[row], kind="stable")[:3]  # what is not among them is not ranked again
        both = (by_first + by_second)[row, ranked]
        order = np.argsort(-both, kind="stable")[:2]
        assert labels[row].tolist() == ranked[order].tolist()
        np.testing.assert_allclose(scores[row], both[order], rtol=1e-5)
        own, values = scorer.top_one(Query([TEXTS[row]]), 2)
        assert own.tolist() == labels[row].tolist()
        np.testing.assert_allclose(values, scores[row], rtol=1e-5)
    assert (labels[4] == -1).all() and len(scorer.top_one(Query([""]), 2)[0]) == 0
    rows, some = np.array([0, 2, 2]), np.array([5, 0, 1])
    np.testing.assert_allclose(
        scorer.pairs(Query(TEXTS), rows, some), (by_first + by_second)[rows, some], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        scorer.score_one(Query(TEXTS[2:3]), some), (by_first + by_second)[2, some], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("cosine", [True, False])
def test_joined_scorers_add_up(cosine):
    first, other = vector_scorer(1, 6, layer=True, cosine=cosine), vector_scorer(1, 6, layer=False, cosine=False)
    joined = first.join([other], [2.0, 0.5])
    assert isinstance(joined, JoinedScorer)
    expected = 2 * product(first) + 0.5 * product(other)
    np.testing.assert_allclose(joined.top(Query(TEXTS[:4]), 6)[1], -np.sort(-expected[:4], axis=1), atol=1e-4)
    np.testing.assert_allclose(joined.top_one(Query(TEXTS[:1]), 6)[1], -np.sort(-expected[0]), atol=1e-4)
    assert joined.rows_for(["red cat"]).shape == (1, 8)
    assert {"labels", "bias", "head.weight", "objective1.labels", "objective1.bias"} <= set(joined.arrays())
    with pytest.raises(ModelError, match="cannot be joined"):
        first.join([with_near(other, 0)], [1, 1])


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("through", [True, False])
def test_new_labels_get_vectors_of_the_usual_length(cosine, through):
    scorer = vector_scorer(2, 9, layer=True, cosine=cosine)
    scorer = VectorScorer(scorer.tower, scorer.project, scorer.store, through)
    rows = scorer.rows_for(["red cat", "qwertyuiop"])
    assert not rows[1].any()
    length = 1 if cosine else np.median(np.linalg.norm(scorer.store.take(slice(None)), axis=1))
    assert np.linalg.norm(rows[0]) == pytest.approx(length, rel=1e-5)
    vector = scorer.tower.encode(Query(["red cat"]))
    direction = scorer.project.head(vector) if through else vector
    np.testing.assert_allclose(unit(rows)[0], unit(direction)[0], atol=1e-5)
    scores = scorer.score_rows(Query(["old dog"]), rows, 0.25, 0.0)
    np.testing.assert_allclose(scores, rows @ scorer.encoded_one(Query(["old dog"])) + 0.25, atol=1e-5)


def test_new_labels_lie_between_similar_ones_and_their_text_where_the_encoder_knows_no_label_texts():
    scorer = replace(vector_scorer(2, 9, layer=True, cosine=True), reads_labels=False)

    def near(texts):
        return sp.csr_array(np.eye(len(texts), 9, 4, dtype=np.float32))  # the first is like label 4; the second, 5

    rows = scorer.rows_for(["red cat", "qwertyuiop"], near)
    own = unit(scorer.project.head(scorer.tower.encode(Query(["red cat"]))))
    some = unit(scorer.store.take(np.array([4, 5])))
    np.testing.assert_allclose(rows[0], unit(own + some[:1])[0], atol=1e-5)
    np.testing.assert_allclose(rows[1], some[1], atol=1e-5)  # nothing is known of its text


def test_blending_adds_what_words_say():
    data = from_rows({"train": (TEXTS[:4], [[0], [1], [2], [0, 2]])}, label_texts=["cat", "dog", "fox"])
    scorer = vector_scorer(1, 3, layer=False, cosine=True)
    lexical = Lexical(neighbours=2, power=1, share=0.5).fit(data.train, scorer.tower.words)
    texts = ["red cat", "dog"]
    proposed = union(scorer, [lexical], Query(texts), 3)
    exact, by_words = product(scorer, texts), lexical.scores(Query(texts), 3).toarray()
    for blend in (0.0, 0.3):
        top = proposed.top(3, [1.0, blend])
        for row in range(2):
            fused = exact[row] + blend * by_words[row]
            assert top.labels[row].tolist() == np.argsort(-fused, kind="stable").tolist()
            np.testing.assert_allclose(top.scores[row], np.sort(fused)[::-1], atol=1e-5)
    judge = Judge(data.train, np.ones(3, np.float32))
    assert choose_weights(scorer, [lexical], [0.25], judge)[1] in WEIGHTS


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("labels", lambda array: array[:, :2], "array labels is damaged"),
        ("bias", lambda array: array[:1], "array bias is damaged"),
        ("words", lambda array: array[:1], "array words is damaged"),
        ("head.weight", lambda array: array[:3], "array head.weight is damaged"),
    ],
)
def test_files_whose_shapes_disagree_are_refused(tmp_path, name, change, message):
    scorer = vector_scorer(0, 3, layer=True, cosine=True)
    objective = Objective(head=Residual(), sampler=AllLabels(), classifier=Rows(), loss=Bce())
    recipe = Recipe(name="x", encoder=Bag(dim=4), objectives=(objective,))
    write_arrays(tmp_path / "weights.safetensors", scorer.arrays())
    words = scorer.tower.words
    opened = open_scorer(recipe, read_arrays(tmp_path / "weights.safetensors"), words)
    assert opened.project.cosine
    assert np.array_equal(opened.top(Query(TEXTS), 2)[1], scorer.top(Query(TEXTS), 2)[1])
    arrays = {key: np.array(array) for key, array in read_arrays(tmp_path / "weights.safetensors").items()}
    with pytest.raises(ModelError, match=message):
        open_scorer(recipe, arrays | {name: change(arrays[name])}, words)


def test_a_head_of_another_width_is_refused():
    scorer = vector_scorer(0, 3, layer=True, cosine=True)
    objective = Objective(head=Residual(), sampler=AllLabels(), classifier=Rows(), loss=Bce())
    recipe = Recipe(name="x", encoder=Bag(dim=4), objectives=(objective,))
    narrow = {f"head.{key}": np.ones(3, np.float32) for key in ("bias", "scale", "shift")}
    arrays = scorer.arrays() | narrow | {"head.weight": np.ones((3, 3), np.float32)}
    with pytest.raises(ModelError, match="train again"):
        open_scorer(recipe, arrays, scorer.tower.words)
