"""SCORES + SCORES → SCORES: what vectors say plus `blend` times what words say, over the candidates of both."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Split
from longtail.errors import ModelError
from longtail.shortlists.lexical import LexicalIndex
from longtail.shortlists.vectors import MORE, VectorIndex
from longtail.types import Floats, Ints, TopK, best_of, contains

USUAL = 0.25  # the weight that suits most data sets
BLENDS = (*np.linspace(0, 1, 21).round(2).tolist(), 1.25, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The labels that vectors or words propose for each of N texts, with both scores."""

    starts: NDArray[np.int64]  # (N + 1,)
    labels: NDArray[np.int64]
    by_vectors: Floats
    by_words: Floats  # zero where words do not propose the label
    width: int

    def top(self, k: int, blend: float) -> TopK:
        """Rank by the sum of both scores."""
        scores = self.by_vectors + np.float32(blend) * self.by_words
        return best_of(sp.csr_array((scores, self.labels, self.starts), shape=(len(self.starts) - 1, self.width)), k)


class Scores(Protocol):
    """Label vectors that find and score labels."""

    @property
    def labels(self) -> Sized:
        """One row a label."""

    def top(self, texts: Sequence[str], k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text: (N, k) labels, -1 where there are fewer, and scores."""

    def found(self, texts: Sequence[str], k: int) -> tuple[Floats, Ints, Floats]:
        """Encode texts, find their best labels, and multiply both: (N, D), (N, k), (N, k)."""

    def pairs(self, encoded: Floats, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: encoded text rows[i] with labels[i]; rows ascend."""


def answers(
    vectors: Scores | None, lexical: LexicalIndex | None, blend: float | None, texts: Sequence[str], k: int
) -> TopK:
    """Find the k best labels of each text by vectors, by words, or by both."""
    if vectors is not None and lexical is not None and blend:
        return candidates(vectors, lexical, list(texts), k).top(k, blend)
    if vectors is not None:
        return TopK(*vectors.top(texts, k))
    if lexical is None:
        raise ModelError("the model has neither words nor vectors to score with; train again")
    return lexical.top(list(texts), k)


def candidates(vectors: Scores, lexical: LexicalIndex, texts: list[str], k: int) -> Candidates:
    """Find and score the candidates for the k best labels of each text."""
    width = len(vectors.labels)
    encoded, found, products = vectors.found(texts, k)  # what words do not propose has no other score
    proposed = lexical.scores(texts, k + MORE)
    first = np.arange(len(texts), dtype=np.int64) * width
    own = (first[:, None] + found)[found >= 0]
    others = np.repeat(first, np.diff(proposed.indptr)) + proposed.indices
    pairs = np.sort(np.concatenate([own, others]))
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    rows, labels = np.divmod(pairs, width)
    by_vectors, by_words = np.full(len(pairs), np.nan, np.float32), np.zeros(len(pairs), np.float32)
    by_vectors[np.searchsorted(pairs, own)] = products[found >= 0]
    by_words[np.searchsorted(pairs, others)] = proposed.data
    unknown = np.isnan(by_vectors)
    by_vectors[unknown] = vectors.pairs(encoded, rows[unknown], labels[unknown])
    starts = np.searchsorted(pairs, np.append(first, len(texts) * width))
    return Candidates(starts, labels, by_vectors, by_words, width)


def choose_blend(vectors: VectorIndex, lexical: LexicalIndex, held: Split) -> float:
    """Choose the weight of words on held-out points, by P@1 + recall@5.

    Of all weights that are not worse than the best by more than a standard error of the difference, the one nearest to
    USUAL is taken: a few hundred points are not enough to trust the best one.
    """
    spare = int(np.diff(held.excluded.indptr).max(initial=0))
    proposed = candidates(vectors, lexical, held.need_texts("blending").tolist(), 5 + spare)
    sizes = np.maximum(np.diff(held.targets.indptr), 1)
    values = []
    for blend in BLENDS:
        hits = contains(held.targets, proposed.top(5 + spare, blend).without(held.excluded, 5).labels)
        values.append(hits[:, 0] + hits.sum(axis=1) / sizes)
    best = max(values, key=lambda value: float(value.mean()))
    losses = [best - value for value in values]
    close = [
        blend
        for blend, loss in zip(BLENDS, losses, strict=True)
        if loss.mean() <= loss.std() / np.sqrt(max(len(loss), 1))
    ]
    return float(min(close, key=lambda blend: abs(blend - USUAL)))
