from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.data.dataset import from_rows
from longtail.data.tokens import Words
from longtail.errors import ModelError
from longtail.files import write_arrays
from longtail.shortlists import vectors
from longtail.shortlists.blend import candidates, choose_blend
from longtail.shortlists.lexical import Lexical
from longtail.shortlists.vectors import VectorIndex, unit

TEXTS = ["red cat", "old dog", "red fox", "wild cat fox", ""]


def index(seed: int, labels: int, *, layer: bool, cosine: bool) -> VectorIndex:
    draw = np.random.default_rng(seed)
    words = Words.fit(TEXTS)
    rows = np.round(draw.normal(size=(labels, 4)), 1).astype(np.float32)  # coarse: equal scores happen
    held = (draw.normal(size=(4, 4)).astype(np.float32), draw.normal(size=4).astype(np.float32)) if layer else None
    word_vectors = draw.normal(size=(len(words), 4)).astype(np.float32)
    return VectorIndex(
        words, word_vectors, unit(rows) if cosine else rows, np.zeros(labels, np.float32), held, False, cosine
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 8), st.booleans(), st.booleans())
def test_chunks_give_the_same_as_all_at_once(seed, labels, k, layer, cosine):
    made = index(seed, labels, layer=layer, cosine=cosine)
    bags = made.words.bag(TEXTS)
    with patch.object(vectors, "LABELS", 7), patch.object(vectors, "POINTS", 2):
        found, scores = made.top(bags, k)
    exact = made.encode(bags) @ made.labels.T
    for row in range(len(TEXTS)):
        best = np.sort(exact[row])[::-1][: min(k, labels)]
        np.testing.assert_allclose(scores[row], best, atol=1e-5)
        np.testing.assert_allclose(exact[row][found[row]], best, atol=1e-5)
        assert len(set(found[row].tolist())) == len(found[row])


def test_the_encoder_by_hand():
    made = index(0, 3, layer=True, cosine=False)
    bag = made.words.bag(["red cat"])
    summed = bag.toarray()[0] @ made.vectors
    weight, bias = made.layer
    np.testing.assert_allclose(made.encode(bag)[0], np.maximum(weight @ summed + bias, 0) + summed, rtol=1e-5)


def test_blending_adds_what_words_say():
    data = from_rows({"train": (TEXTS[:4], [[0], [1], [2], [0, 2]])}, label_texts=["cat", "dog", "fox"])
    made = index(1, 3, layer=False, cosine=True)
    lexical = Lexical(neighbours=2, power=1, share=0.5).fit(data.train, made.words)
    texts = ["red cat", "dog"]
    proposed = candidates(made, lexical, texts, 3)
    exact, by_words = made.encode(made.words.bag(texts)) @ made.labels.T, lexical.scores(texts, 3).toarray()
    for blend in (0.0, 0.3):
        top = proposed.top(3, blend)
        for row in range(2):
            fused = exact[row] + blend * by_words[row]
            assert top.labels[row].tolist() == np.argsort(-fused, kind="stable").tolist()
            np.testing.assert_allclose(top.scores[row], np.sort(fused)[::-1], atol=1e-5)
    assert 0 <= choose_blend(made, lexical, data.train) <= 1


def test_files_whose_shapes_disagree_are_refused(tmp_path):
    made = index(0, 3, layer=True, cosine=True)
    made.save(tmp_path)
    again = VectorIndex.load(tmp_path, made.words)
    np.testing.assert_array_equal(again.labels, made.labels)
    assert (again.relu, again.cosine) == (False, True)
    arrays = {"vectors": made.vectors, "labels": made.labels[:, :2], "bias": made.bias, "flags": np.zeros(2, np.uint8)}
    write_arrays(tmp_path / "weights.safetensors", arrays)
    with pytest.raises(ModelError, match="shapes disagree"):
        VectorIndex.load(tmp_path, made.words)
