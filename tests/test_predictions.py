"""One predictor: a query is cut into words and encoded once, whoever asks; one text and a batch are ranked alike."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from small import board, small

import longtail as lt
from longtail.data.sequences import Sequences
from longtail.data.tokens import Words
from longtail.encoders.bag import FrozenBag
from longtail.encoders.ordered import FrozenOrdered

RECIPES = {
    "frugal": small("frugal"),
    "inceptionxml_plus, blended": small("inceptionxml_plus", training__epochs=3, lexical="lexical", blend=0.5),
    "astec, blended and reranked": small("astec", training__epochs=3, lexical="lexical", blend=0.5, rerank="rerank")
    .override("rerank.training.epochs", 1),
    "xmlcnn, blended": small("xmlcnn", training__epochs=3, lexical="lexical", blend=0.5),
}  # fmt: skip


@pytest.fixture(scope="module", params=RECIPES)
def model(request):
    return lt.fit(RECIPES[request.param], board(200))


def counted(calls: Counter, owner: type, name: str):
    """Count the calls of a method, by object, so that two encoders of one model count apart."""
    real = getattr(owner, name)

    def count(self, *rest, **more):
        calls[f"{owner.__name__}.{name} {id(self)}"] += 1
        return real(self, *rest, **more)

    return patch.object(owner, name, count)


@pytest.mark.parametrize("many", [False, True])
def test_a_query_is_cut_and_encoded_once(model, many, tmp_path):
    model.save(tmp_path / "run")
    index = lt.Index.load(tmp_path / "run")
    texts = [f"word{n % 20} filler{n % 5}" for n in range(80 if many else 1)]
    calls: Counter = Counter()
    methods = [(Words, "_bag"), (Words, "query"), (Sequences, "ids"), (FrozenOrdered, "encode_inputs")]
    methods += [(FrozenBag, "encode_inputs"), (FrozenBag, "_sum")]
    with patch("longtail.predictions.LEAST", 1000):  # one block
        stack = [counted(calls, *method) for method in methods]
        for patched in stack:
            patched.start()
        try:
            index.predict(texts, 5)
        finally:
            for patched in stack:
                patched.stop()
    assert calls
    limit = 2 if not many else 1  # the quick way of one text cuts it for words, and for candidates by matrices
    cuts = {name: count for name, count in calls.items() if not name.startswith("Words")}
    assert set(cuts.values()) <= {1}, calls
    assert sum(count for name, count in calls.items() if name.startswith("Words")) <= limit * 2, calls


def test_the_model_and_the_index_rank_alike(model, tmp_path):
    model.save(tmp_path / "run")
    index = lt.Index.load(tmp_path / "run")
    texts = [f"word{n % 20} filler{n % 5}" for n in range(70)] + ["", "unseen"]
    for answers in (index.predict(texts, 5), index.predict(texts[:5], 5)):
        expected = model.predict(texts[: len(answers)], 5)
        same = answers.labels == expected.labels
        assert (same | np.isclose(answers.scores, expected.scores, rtol=1e-4, atol=1e-5)).all()
        np.testing.assert_allclose(answers.scores, expected.scores, rtol=1e-4, atol=1e-5)
