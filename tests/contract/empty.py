"""MODEL → LABELS OF EMPTY TEXTS: there are none, however it is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longtail.index import Index
from longtail.model import Model
from longtail.types import TopK

EMPTY = ["", " \t", "\u00a0\u2028"]


def gets_none_when_empty(model: Model, text: str, folder: Path) -> None:
    """Ask a model, and its folder with a label that came later, for empty texts beside one that is not."""
    texts = [*EMPTY, text]
    assert len(model.predictor.one("", 3)[0]) == 0
    answers = [model.predict(texts, 3), model.predictor.in_order(texts, 3), model.predict(texts * 60, 3)]
    model.save(folder)
    index = Index.load(folder)
    answers += [index.predict(texts, 3), index.predict(texts, 3, deny=[0])]
    assert not labelled(index.predict(EMPTY, 3, allow=[0, 1])).any()
    index.add(["blue parrot"])
    answers += [index.predict(texts, 3), index.predict(texts * 60, 3)]
    for top in answers:
        assert labelled(top).tolist() == [False, False, False, True] * (len(top) // 4)


def labelled(top: TopK) -> NDArray[np.bool_]:
    """Return which texts got a label."""
    return np.asarray((top.labels >= 0).any(axis=1))
