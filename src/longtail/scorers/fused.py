"""SCORES + SCORES → SCORES: what vectors say plus `blend` times what words say, over the candidates of both.

One text takes a quick way without matrices; many go as one batch. Both rank alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Split
from longtail.errors import ModelError
from longtail.parts import Query, Scorer
from longtail.scorers.lexical import Candidates, LexicalScorer
from longtail.types import Floats, TopK, best_of, contains

MORE = 50  # labels that are looked at beyond those asked for, where their order may still change
USUAL = 0.25  # the weight of words that suits most data sets
BLENDS = (*np.linspace(0, 1, 21).round(2).tolist(), 1.25, 1.5, 2.0, 3.0, 5.0)
Ranked = tuple[NDArray[Any], Floats]  # labels and scores
NONE: Ranked = (np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False)
class Union:
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


@dataclass(frozen=True, eq=False)
class FusedScorer:
    """Everything that scores the labels of a model."""

    vectors: Scorer | None
    words: LexicalScorer | None
    blend: float  # the weight of words beside vectors; they are alone where there are no vectors

    def __post_init__(self) -> None:
        if self.vectors is None and self.words is None:
            raise ModelError("the model has neither words nor vectors to score with; train again")

    @property
    def weight(self) -> np.float32:
        """The weight of words: all of it where there are no vectors."""
        return np.float32(1.0 if self.vectors is None else self.blend)

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""
        return self.vectors is None or self.vectors.shares_threads

    def top(self, query: Query, k: int) -> TopK:
        """Find the k best labels of each text."""
        if self.vectors is not None and self.words is not None and self.weight:
            return union(self.vectors, self.words, query, k).top(k, self.blend)
        scorer: Any = self.words if self.vectors is None else self.vectors
        return TopK(*scorer.top(query, k))

    def candidates(self, query: Query, n: int) -> tuple[NDArray[Any], Floats, Candidates | None]:
        """Score the candidates for the n best labels of the only text; a label may stand twice, then its best counts.

        The last value is what words proposed.
        """
        labels, scores = NONE
        vectors, words = self.vectors, self.words
        if vectors is not None:
            wide = n + MORE if words is not None and self.weight and not vectors.searchable else n
            labels, scores = vectors.top_one(query, min(wide, len(vectors)))
        if words is None or not self.weight:
            return labels, scores, None
        proposed = words.candidates(query, n if vectors is None else n + MORE)
        by_words = self.weight * proposed.scores
        if vectors is not None:
            by_words += vectors.score_one(query, proposed.labels)
        return np.concatenate([labels, proposed.labels]), np.concatenate([scores, by_words]), proposed

    def within(self, query: Query, labels: NDArray[np.int64]) -> tuple[NDArray[Any], Floats, Candidates | None]:
        """Score chosen labels of the only text, all of them where there are vectors; labels ascend."""
        vectors, words = self.vectors, self.words
        scores, proposed = np.zeros(len(labels), np.float32), None
        if vectors is not None:
            scores += vectors.score_one(query, labels)
        if words is not None and self.weight:
            proposed = words.candidates(query, 1, also=labels)
            order = np.argsort(proposed.labels)
            places = order[np.searchsorted(proposed.labels, labels, sorter=order)]
            scores += self.weight * proposed.scores[places]
        if vectors is None:
            labels, scores = labels[scores > 0], scores[scores > 0]
        return labels, scores, proposed


def union(vectors: Scorer, words: LexicalScorer, query: Query, k: int) -> Union:
    """Find and score the candidates for the k best labels of each text."""
    width, count = len(vectors), len(query)
    wide = k if vectors.searchable else k + MORE  # words may change the order of what a retriever proposes
    labels, scores = vectors.top(query, wide)
    proposed = words.scores(query, k + MORE)
    first = np.arange(count, dtype=np.int64) * width
    own = (first[:, None] + labels)[labels >= 0]
    others = np.repeat(first, np.diff(proposed.indptr)) + proposed.indices
    pairs = np.sort(np.concatenate([own, others]))
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    by_vectors, by_words = np.full(len(pairs), np.nan, np.float32), np.zeros(len(pairs), np.float32)
    by_vectors[np.searchsorted(pairs, own)] = scores[labels >= 0]
    by_words[np.searchsorted(pairs, others)] = proposed.data
    unknown = np.isnan(by_vectors)
    of_query, of_label = np.divmod(pairs, width)
    by_vectors[unknown] = vectors.pairs(query, of_query[unknown], of_label[unknown])
    starts = np.searchsorted(pairs, np.append(first, count * width))
    return Union(starts, of_label, by_vectors, by_words, width)


def choose_blend(vectors: Scorer, words: LexicalScorer, validation: Split) -> float:
    """Choose the weight of words on validation points, by P@1 + recall@5.

    Of all weights that are not worse than the best by more than a standard error of the difference, the one nearest to
    USUAL is taken: a few hundred points are not enough to trust the best one.
    """
    spare = int(np.diff(validation.excluded.indptr).max(initial=0))
    proposed = union(vectors, words, Query(validation.need_texts("blending").tolist()), 5 + spare)
    sizes = np.maximum(np.diff(validation.targets.indptr), 1)
    values = []
    for blend in BLENDS:
        hits = contains(validation.targets, proposed.top(5 + spare, blend).without(validation.excluded, 5).labels)
        values.append(hits[:, 0] + hits.sum(axis=1) / sizes)
    best = max(values, key=lambda value: float(value.mean()))
    losses = [best - value for value in values]
    close = [
        blend
        for blend, loss in zip(BLENDS, losses, strict=True)
        if loss.mean() <= loss.std() / np.sqrt(max(len(loss), 1))
    ]
    return float(min(close, key=lambda blend: abs(blend - USUAL)))
