from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.classifiers.linear import Linear
from longtail.data.dataset import from_rows
from longtail.data.tokens import Words
from longtail.encoders.bag import Bag
from longtail.encoders.encoding import BagEncoding
from longtail.encoders.head import Head
from longtail.errors import ModelError
from longtail.files import read_arrays, write_arrays
from longtail.recipe import Recipe
from longtail.shortlists import vectors
from longtail.shortlists.blend import BLENDS, candidates, choose_blend
from longtail.shortlists.exact import unit
from longtail.shortlists.lexical import Lexical
from longtail.shortlists.vectors import VectorIndex

TEXTS = ["red cat", "old dog", "red fox", "wild cat fox", ""]


def index(seed: int, labels: int, *, layer: bool, cosine: bool, second: VectorIndex | None = None) -> VectorIndex:
    draw = np.random.default_rng(seed)
    words = Words.fit(TEXTS)
    rows = np.round(draw.normal(size=(labels, 4)), 1).astype(np.float32)  # coarse: equal scores happen
    weight, bias, word_vectors, shift = (
        draw.normal(size=size).astype(np.float32) for size in ((4, 4), (4,), (len(words), 4), (labels,))
    )
    head = Head(weight, bias, np.ones(4, np.float32), np.zeros(4, np.float32), "relu") if layer else None
    encoding = BagEncoding(words, word_vectors, relu=False)
    return VectorIndex(encoding, head, unit(rows) if cosine else rows, shift, cosine, second=second)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 8), st.booleans(), st.booleans())
def test_blocks_give_the_same_as_all_at_once(seed, labels, k, layer, cosine):
    made = index(seed, labels, layer=layer, cosine=cosine)
    with patch.object(vectors, "POINTS", 2):
        found, scores = made.top(TEXTS, k)
    exact = made.encode(made.encoding.inputs(TEXTS)) @ made.labels.T + made.bias
    known = made.encoding.inputs(TEXTS).matrix.sum(axis=1) > 0
    assert known.any() and not known.all()
    assert (found[~known] == -1).all() and np.isneginf(scores[~known]).all()  # nothing to go by, nothing to say
    for row in np.flatnonzero(known):
        best = np.sort(exact[row])[::-1][: min(k, labels)]
        np.testing.assert_allclose(scores[row], best, atol=1e-5)
        np.testing.assert_allclose(exact[row][found[row]], best, atol=1e-5)
        assert len(set(found[row].tolist())) == len(found[row])


def test_pairs_are_entries_of_the_whole_product():
    made = index(0, 7, layer=True, cosine=True)
    encoded = made.encode(made.encoding.inputs(TEXTS))
    rows, labels = np.array([0, 0, 1, 3, 3, 3, 4]), np.array([6, 2, 0, 5, 5, 1, 3])  # the third text has none
    exact = (encoded @ made.labels.T + made.bias)[rows, labels]
    np.testing.assert_allclose(made.pairs(encoded, rows, labels), exact, atol=1e-5)
    assert made.pairs(encoded, rows[:0], labels[:0]).shape == (0,)


def test_the_encoder_by_hand():
    made = index(0, 3, layer=True, cosine=False)
    bag = made.encoding.inputs(["red cat"])
    summed = bag.matrix.toarray()[0] @ made.encoding.vectors
    inner = np.maximum(made.head.weight @ summed + made.head.bias, 0)
    np.testing.assert_allclose(made.encode(bag)[0], inner + summed, rtol=1e-5)


def test_a_second_index_adds_its_probabilities():
    second = index(5, 6, layer=True, cosine=False)
    given = np.array([[2, 4, -1]], np.int32), np.array([[0.5, 0.2, -np.inf]], np.float32)
    ranked = second.ranked(["red cat"], *given).toarray()[0]
    own = second.pairs(second.encode(second.encoding.inputs(["red cat"])), np.zeros(2, np.int64), np.array([2, 4]))
    np.testing.assert_allclose(ranked[[2, 4]], given[1][0, :2] + 1 / (1 + np.exp(-own)), rtol=1e-5)
    assert np.count_nonzero(ranked) == 2


def test_blending_adds_what_words_say():
    data = from_rows({"train": (TEXTS[:4], [[0], [1], [2], [0, 2]])}, label_texts=["cat", "dog", "fox"])
    made = index(1, 3, layer=False, cosine=True)
    lexical = Lexical(neighbours=2, power=1, share=0.5).fit(data.train, made.encoding.words)
    texts = ["red cat", "dog"]
    proposed = candidates(made, lexical, texts, 3)
    exact = made.encode(made.encoding.inputs(texts)) @ made.labels.T + made.bias
    by_words = lexical.scores(texts, 3).toarray()
    for blend in (0.0, 0.3):
        top = proposed.top(3, blend)
        for row in range(2):
            fused = exact[row] + blend * by_words[row]
            assert top.labels[row].tolist() == np.argsort(-fused, kind="stable").tolist()
            np.testing.assert_allclose(top.scores[row], np.sort(fused)[::-1], atol=1e-5)
    assert choose_blend(made, lexical, data.train) in BLENDS


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("labels", lambda array: array[:, :2], "shapes disagree"),
        ("bias", lambda array: array[:1], "shapes disagree"),
        ("words", lambda array: array[:1], "do not fit the vocabulary"),
        ("head.weight", lambda array: array[:3], "layer head"),
    ],
)
def test_files_whose_shapes_disagree_are_refused(tmp_path, name, change, message):
    made = index(0, 3, layer=True, cosine=True)
    recipe = Recipe(name="x", encoder=Bag(dim=4), classifier=Linear())
    made.save(tmp_path)
    words = made.encoding.words
    again = VectorIndex.load(tmp_path, recipe, words, None)
    assert again.cosine
    assert np.array_equal(again.top(TEXTS, 2)[1], made.top(TEXTS, 2)[1])
    arrays = {key: np.array(array) for key, array in read_arrays(tmp_path / "weights.safetensors").items()}
    write_arrays(tmp_path / "weights.safetensors", arrays | {name: change(arrays[name])})
    with pytest.raises(ModelError, match=message):
        VectorIndex.load(tmp_path, recipe, words, None)
