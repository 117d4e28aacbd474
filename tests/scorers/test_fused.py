"""Vectors and words together: the sum of both scores, the same for one text and for many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import board, short

import longtail as lt
from longtail.data.dataset import from_rows
from longtail.data.tokens import Words
from longtail.encoders.bag import FrozenBag
from longtail.errors import ModelError
from longtail.labels.propensity import Propensity, frequencies
from longtail.metrics import evaluate
from longtail.model import Model
from longtail.parts import Query
from longtail.predictions import Predictor
from longtail.scorers.fused import WEIGHTS, FusedScorer, Judge, choose_weights, union
from longtail.scorers.lexical import Lexical
from longtail.scorers.near import NearRetriever
from longtail.scorers.vectors import Projection, VectorScorer
from longtail.stores.memory import MemoryStore
from longtail.types import TopK

BLEND = 0.5
LEARNT = list(dict.fromkeys(board().texts.tolist()))
TEXTS = [*LEARNT[:30], "word3 word7", "filler1", "word1 word2 word3 filler2", "name3"]
UNKNOWN = ["", "qwertyuiop"]


def fused_of(vectors, voice, weight: float) -> FusedScorer:
    """Blend vectors and one voice."""
    return FusedScorer(vectors, ((voice, np.float32(weight)),) if weight else ())


def trained(**changes) -> Model:
    """Train a small astec model with a lexical part; of 30 labels its retriever proposes eight."""
    recipe = short("astec", sampler__beta=0.3, sampler__num_candidates=8, sampler__num_neighbours=3, **changes)
    recipe = replace(recipe, voices=(Lexical(neighbours=5, power=2, share=0.4),)).override("blend", BLEND)
    if "rerank" in changes:
        recipe = recipe.override("rerank.training.epochs", 2).override("rerank.top", 5)
    return lt.fit(recipe, board())


@pytest.fixture(scope="module")
def plain() -> Model:
    return trained()


@pytest.fixture(scope="module")
def reranked() -> Model:
    return trained(rerank="rerank")


def sigmoid(values):
    return 1 / (1 + np.exp(-np.asarray(values, np.float64)))


def combined(scorer: VectorScorer, text: str) -> dict[int, float]:
    """Score what the retriever proposes the slow way: label rows and similarity, mixed by beta."""
    retriever, vectors = scorer.retriever, scorer.tower.encode(Query([text]))
    own = retriever.propose(Query([text]), scorer.tower)
    by_rows = (scorer.project(vectors) @ scorer.store.take(slice(None)).T + scorer.store.bias)[0, own.indices]
    rows, near = sigmoid(by_rows), sigmoid(own.data)
    scores = retriever.beta * rows / rows.max() + (1 - retriever.beta) * near / near.max()
    return dict(zip(own.indices.tolist(), scores.tolist(), strict=True))


def by_words(model: Model, text: str) -> np.ndarray:
    return model.lexical.scores(Query([text]), len(model.labels)).toarray()[0]


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9])
def test_the_fused_score_is_the_combined_score_of_the_retriever_plus_words(plain, beta):
    retriever = plain.vectors.retriever
    assert isinstance(retriever, NearRetriever) and retriever.beta == 0.3
    scorer = plain.vectors.led(replace(retriever, beta=beta))
    fused, beyond = fused_of(scorer, plain.lexical, BLEND), 0
    top = fused.top(Query(TEXTS), 5)
    for row, text in enumerate(TEXTS):
        proposed, words = combined(scorer, text), by_words(plain, text)
        expected = {label: score + BLEND * words[label] for label, score in proposed.items()}
        for label, score in zip(top.labels[row].tolist(), top.scores[row].tolist(), strict=True):
            if label not in expected:  # words alone propose it
                beyond += 1
                assert words[label] > 0
                expected[label] = scorer.score_one(Query([text]), np.array([label]))[0] + BLEND * words[label]
            assert score == pytest.approx(expected[label], abs=1e-5)
        best = sorted(expected.values(), reverse=True)[:5]
        np.testing.assert_allclose(top.scores[row], best, atol=1e-5)  # nothing better was left out
    assert beyond > 0


def test_with_a_rerank_stage_words_are_added_to_the_reranked_score(reranked):
    scorer = reranked.vectors
    assert scorer.depth == 5 and scorer.retriever.beta == 0.3
    top = reranked.scorer.top(Query(TEXTS), 5)
    for row, text in enumerate(TEXTS):
        proposed, words = combined(scorer.first, text), by_words(reranked, text)
        second = scorer.second
        logits = second.project(second.tower.encode(Query([text]))) @ second.store.take(slice(None)).T
        probability = sigmoid(logits[0] + second.store.bias)
        expected = {label: score + probability[label] + BLEND * words[label] for label, score in proposed.items()}
        for label, score in zip(top.labels[row].tolist(), top.scores[row].tolist(), strict=True):
            if label not in expected:
                first = scorer.first.score_one(Query([text]), np.array([label]))[0]
                expected[label] = first + probability[label] + BLEND * words[label]
            assert score == pytest.approx(expected[label], abs=1e-5)
        np.testing.assert_allclose(top.scores[row], sorted(expected.values(), reverse=True)[:5], atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "reranked"])
@pytest.mark.parametrize("blend", [0.0, 0.05, BLEND, 3.0])
def test_one_text_and_a_batch_agree(request, name, blend):
    model = request.getfixturevalue(name)
    predictor = Predictor(fused_of(model.vectors, model.lexical, blend), len(model.labels))
    for k in (1, 5, 30):
        assert_alike(predictor, [*TEXTS, *UNKNOWN], k)


def assert_alike(predictor: Predictor, texts: list[str], k: int) -> None:
    """Compare the way of one text with that of a batch."""
    batch = predictor.block(texts, k)
    for row, text in enumerate(texts):
        labels, scores = predictor.one(text, k)
        mask = batch.labels[row] >= 0
        np.testing.assert_allclose(scores, batch.scores[row][mask], atol=1e-5)
        assert labels.tolist() == batch.labels[row][mask].tolist()


def with_near(seed: int) -> FusedScorer:
    """Make a model by chance, in which labels that words alone propose may have the largest products."""
    draw = np.random.default_rng(seed)
    texts, names = ["red cat", "old dog", "red fox", "wild cat fox"], ["cat", "dog", "fox", "wild", "old", "red"]
    data = from_rows({"train": (texts, [[0, 5], [1, 4], [2], [0, 2, 3]])}, label_texts=names)
    words = Words.fit(texts, names)
    vectors, rows = (draw.normal(size=(size, 4)).astype(np.float32) for size in (len(words), len(names)))
    tower = FrozenBag(words, vectors, relu=False)
    points = tower.encode(Query(texts))
    retriever = NearRetriever.build(points, data.train.targets, beta=0.5, gamma=0.1, neighbours=1, keep=2)
    scorer = VectorScorer(tower, Projection(None, False), MemoryStore.of(3 * rows), retriever=retriever)
    return fused_of(scorer, Lexical(neighbours=2, power=1, share=0.5).fit(data.train, words), 0.1)


def test_one_text_and_a_batch_agree_where_words_propose_what_is_better_than_all_that_is_near():
    for seed in range(20):
        assert_alike(Predictor(with_near(seed), 6), ["red cat", "old fox dog", "wild"], 3)


def test_the_score_of_a_pair_does_not_depend_on_the_other_pairs():
    for seed in range(20):
        scorer, query = with_near(seed).vectors, Query(["red cat"])
        alone = [scorer.score_one(query, np.array([label]))[0] for label in range(6)]
        np.testing.assert_allclose(scorer.score_one(query, np.arange(6)), alone, atol=1e-5)


def test_a_small_and_a_large_blend_choose_by_vectors_and_by_words(plain):
    vectors, lexical = plain.vectors, plain.lexical
    alone = fused_of(vectors, lexical, 0.0)
    assert alone.voices == ()
    labels, scores = vectors.top(Query(TEXTS), 5)
    top = alone.top(Query(TEXTS), 5)
    assert np.array_equal(top.labels, labels) and np.array_equal(top.scores, scores)
    words = fused_of(None, lexical, 1.0)
    assert words.shares_threads
    best = words.top(Query(TEXTS), 1).labels[:, 0]
    mask = best >= 0
    large = fused_of(vectors, lexical, 100.0).top(Query(TEXTS), 1).labels[:, 0]
    of_words, rows = lexical.scores(Query(TEXTS), 30).toarray(), np.flatnonzero(mask)
    np.testing.assert_allclose(
        of_words[rows, large[mask]], of_words[rows, best[mask]], atol=0.02
    )  # vectors decide ties
    assert_alike(Predictor(words, 30), [*TEXTS, *UNKNOWN], 5)
    with pytest.raises(ModelError, match="neither words nor vectors"):
        FusedScorer(None)


def test_texts_without_known_words_get_nothing(plain):
    top = plain.scorer.top(Query([*UNKNOWN, TEXTS[0]]), 3)
    assert (top.labels[:2] == -1).all() and np.isneginf(top.scores[:2]).all()
    assert (top.labels[2] >= 0).all()


def test_chosen_labels_are_scored_as_all_are(plain):
    scorer = VectorScorer(plain.vectors.tower, plain.vectors.project, plain.vectors.store)  # no retriever
    fused = fused_of(scorer, plain.lexical, BLEND)
    for text in TEXTS[:10]:
        labels, scores, proposed = fused.within(Query([text]), np.arange(30))
        assert labels.tolist() == list(range(30)) and proposed is not None
        expected = scorer.score_one(Query([text]), np.arange(30)) + BLEND * by_words(plain, text)
        np.testing.assert_allclose(scores, expected, atol=1e-4)
        some, values, _ = fused.within(Query([text]), np.array([2, 29]))
        assert some.tolist() == [2, 29]
        np.testing.assert_allclose(values, expected[[2, 29]], atol=1e-4)
    assert_alike(Predictor(fused, 30), [*TEXTS, *UNKNOWN], 5)


def test_the_union_holds_what_either_proposes_once(plain):
    query = Query(TEXTS)
    proposed = union(plain.vectors, [plain.lexical], query, 5)
    words = plain.lexical.scores(query, 55)
    for row, text in enumerate(TEXTS):
        own = proposed.labels[proposed.starts[row] : proposed.starts[row + 1]]
        expected = set(combined(plain.vectors, text)) | set(words.indices[words.indptr[row] : words.indptr[row + 1]])
        assert own.tolist() == sorted(expected)
    assert np.isfinite(proposed.by_vectors).all() and (proposed.by_voices[0] >= 0).all()


@pytest.mark.parametrize("name", ["plain", "reranked"])
def test_a_blend_is_chosen_on_scores_of_the_retriever(request, name):
    model = request.getfixturevalue(name)
    train = board(60)
    judge = Judge(train, np.ones(len(train.labels), np.float32))
    weights = choose_weights(model.vectors, [model.lexical], [0.25], judge)
    assert weights[0] in (0, 1) and weights[1] in WEIGHTS


@pytest.mark.parametrize("name", ["plain", "reranked"])
def test_a_loaded_model_fuses_alike(request, name, tmp_path):
    model = request.getfixturevalue(name)
    model.save(tmp_path / "run")
    one, two = model.predict(TEXTS, 5), Model.load(tmp_path / "run").predict(TEXTS, 5)
    assert np.array_equal(one.labels, two.labels)
    assert np.array_equal(one.scores, two.scores)
    np.testing.assert_allclose(one.scores, model.scorer.top(Query(TEXTS), 5).scores, atol=1e-6)


def test_a_judge_says_what_metrics_say():
    train, draw = board(200), np.random.default_rng(0)
    counts = frequencies(train.targets)
    propensity = Propensity()
    worth = propensity.inverse(counts, len(train)).astype(np.float32)
    labels = np.array([draw.permutation(30)[:6] for _ in range(len(train))], np.int32)
    top = TopK(labels, -np.arange(6, dtype=np.float32) * np.ones((len(train), 1), np.float32))
    measured = evaluate(top, train.targets, train_frequencies=counts, train_points=len(train), propensity=propensity)
    wanted = (measured.values["P@1"] + measured.values["PSP@5"]) / 100
    assert wanted > 0.05
    assert Judge(train, worth)(top).mean() == pytest.approx(wanted, rel=1e-4)
