"""SCORES + SCORES → SCORES: what vectors say plus what each voice says times its weight, over the candidates of all.

One text takes a quick way without matrices; many go as one batch. Both rank alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Split
from longtail.errors import ModelError
from longtail.machine import compiles
from longtail.parts import Proposals, Query, Scorer, VoiceScorer
from longtail.types import Floats, TopK, best_of, contains

MORE = 50  # labels that are looked at beyond those asked for, where their order may still change
WEIGHTS = (*np.linspace(0, 1, 21).round(2).tolist(), 1.25, 1.5, 2.0, 3.0, 5.0)
ROUNDS = 2  # over the voices whose weights are chosen
Heard = tuple[tuple[VoiceScorer, np.float32], ...]  # voices and their weights
NONE = np.zeros(0, np.int64), np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class Union:
    """The labels that vectors or voices propose for each of N texts, with the scores of all."""

    starts: NDArray[np.int64]  # (N + 1,)
    labels: NDArray[np.int64]
    by_vectors: Floats | None
    by_voices: tuple[Floats, ...]  # zero where a voice does not propose the label
    width: int

    def scores(self, weights: Sequence[float]) -> Floats:
        """Add everything up: the weight of vectors, where there are any, then those of voices."""
        parts = [*(() if self.by_vectors is None else (self.by_vectors,)), *self.by_voices]
        total = np.zeros(len(self.labels), np.float32)
        for part, weight in zip(parts, weights, strict=True):
            total += np.float32(weight) * part
        return total

    def top(self, k: int, weights: Sequence[float]) -> TopK:
        """Rank by the weighted sum of all scores."""
        entries = self.scores(weights), self.labels, self.starts
        return best_of(sp.csr_array(entries, shape=(len(self.starts) - 1, self.width)), k)


@dataclass(frozen=True, eq=False)
class FusedScorer:
    """Everything that scores the labels of a model."""

    vectors: Scorer | None
    voices: Heard = ()

    def __post_init__(self) -> None:
        if self.vectors is None and not self.voices:
            raise ModelError("the model has neither words nor vectors to score with; train again")

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""
        return self.vectors is None or self.vectors.shares_threads

    def top(self, query: Query, k: int) -> TopK:
        """Find the k best labels of each text."""
        if self.vectors is not None and not self.voices:
            return TopK(*self.vectors.top(query, k))
        if self.vectors is None and len(self.voices) == 1:
            return TopK(*self.voices[0][0].top(query, k))
        weights = [float(weight) for _, weight in self.voices]
        own = [] if self.vectors is None else [1.0]
        return union(self.vectors, [voice for voice, _ in self.voices], query, k).top(k, own + weights)

    def candidates(self, query: Query, n: int) -> tuple[NDArray[Any], Floats, list[Proposals]]:
        """Score the candidates for the n best labels of the only text; a label may stand twice, then its best counts.

        The last value is what each voice proposed.
        """
        labels, scores = NONE
        vectors = self.vectors
        if vectors is not None:
            wide = n + MORE if self.voices and not vectors.searchable else n
            labels, scores = vectors.top_one(query, min(wide, len(vectors)))
        if not self.voices:
            return labels, scores, []
        alone = vectors is None and len(self.voices) == 1
        proposed = [voice.candidates(query, n if alone else n + MORE) for voice, _ in self.voices]
        others, by_words = self._sum(proposed)
        if vectors is not None:
            by_words += vectors.score_one(query, others)
        return np.concatenate([labels, others]), np.concatenate([scores, by_words]), proposed

    def _sum(self, proposed: list[Proposals]) -> tuple[NDArray[np.int64], Floats]:
        """Add up what the voices say for each label that any of them proposes."""
        if len(proposed) == 1:
            return proposed[0].labels, self.voices[0][1] * proposed[0].scores
        labels = np.concatenate([own.labels for own in proposed])
        weighted = np.concatenate([weight * own.scores for (_, weight), own in zip(self.voices, proposed, strict=True)])
        if compiles():
            from longtail.search.selection import added  # noqa: PLC0415  (numba is an extra)

            return added(labels, weighted)
        labels, places = np.unique(labels, return_inverse=True)
        return labels, np.bincount(places, weighted, len(labels)).astype(np.float32)

    def within(self, query: Query, labels: NDArray[np.int64]) -> tuple[NDArray[Any], Floats, list[Proposals]]:
        """Score chosen labels of the only text, all of them where vectors know it; labels ascend."""
        scores, vectors = np.zeros(len(labels), np.float32), self.vectors
        known = vectors is not None and vectors.knows(query)
        if vectors is not None and known:
            scores += vectors.score_one(query, labels)
        proposed = [voice.candidates(query, 1, also=labels) for voice, _ in self.voices]
        if proposed:
            others, by_words = self._sum(proposed)
            order = np.argsort(others)
            scores += by_words[order[np.searchsorted(others, labels, sorter=order)]]
        if not known:
            labels, scores = labels[scores > 0], scores[scores > 0]
        return labels, scores, proposed

    def unbounded(self, query: Query, label: int, whole: Sequence[Proposals]) -> float:
        """Score a label of the only text by voices, as part of the text for which they proposed `whole`."""
        heard = zip(self.voices, whole, strict=True)
        return sum(float(weight) * voice.unbounded(query, label, own) for (voice, weight), own in heard)


def union(vectors: Scorer | None, voices: Sequence[VoiceScorer], query: Query, k: int) -> Union:
    """Find and score the candidates for the k best labels of each text."""
    width, count = len(voices[0]) if vectors is None else len(vectors), len(query)
    first = np.arange(count, dtype=np.int64) * width
    proposed = [voice.scores(query, k + MORE) for voice in voices]
    others = [np.repeat(first, np.diff(matrix.indptr)) + matrix.indices for matrix in proposed]
    own, own_scores = NONE
    if vectors is not None:
        wide = k if vectors.searchable else k + MORE  # words may change the order of what a retriever proposes
        labels, scores = vectors.top(query, wide)
        own, own_scores = (first[:, None] + labels)[labels >= 0], scores[labels >= 0]
    pairs = np.sort(np.concatenate([own, *others]))
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    by_voices = []
    for cells, matrix in zip(others, proposed, strict=True):
        by_voice = np.zeros(len(pairs), np.float32)
        by_voice[np.searchsorted(pairs, cells)] = matrix.data
        by_voices.append(by_voice)
    of_query, of_label = np.divmod(pairs, width)
    by_vectors = None
    if vectors is not None:
        by_vectors = np.full(len(pairs), np.nan, np.float32)
        by_vectors[np.searchsorted(pairs, own)] = own_scores
        unknown = np.isnan(by_vectors)
        by_vectors[unknown] = vectors.pairs(query, of_query[unknown], of_label[unknown])
    starts = np.searchsorted(pairs, np.append(first, count * width))
    return Union(starts, of_label, by_vectors, tuple(by_voices), width)


@dataclass(frozen=True, eq=False)
class Judge:
    """Says what predictions of validation points are worth: P@1 + PSP@5, the first answer and the tail of five."""

    validation: Split
    worth: Floats  # (L,) inverse propensities

    @cached_property
    def most(self) -> float:
        """What the five best answers would be worth, in the mean."""
        targets = self.validation.targets
        own = sp.csr_array((self.worth[targets.indices], targets.indices, targets.indptr), shape=targets.shape)
        return max(float(np.maximum(best_of(own, 5).scores, 0).sum(axis=1).mean()), 1e-12)

    def __call__(self, top: TopK) -> Floats:
        """Return what the predictions of each point add to the mean."""
        labels = top.without(self.validation.excluded, 5).labels
        hits = contains(self.validation.targets, labels)
        return np.asarray(hits[:, 0] + (hits * self.worth[labels]).sum(axis=1) / self.most, np.float32)


def choose_weights(
    vectors: Scorer | None, voices: Sequence[VoiceScorer], usual: Sequence[float], judge: Judge
) -> tuple[float, ...]:
    """Choose the weights of vectors (0 or 1, where there are any) and voices on the validation points of a judge.

    The weights of voices are chosen one after the other. Of all that are not worse than the best by more than two
    standard errors of the difference, the one nearest to the usual weight is taken: a few hundred points are not enough
    to trust the best one. One voice alone is taken where it is better than all together by more than that.
    """
    validation = judge.validation
    spare = int(np.diff(validation.excluded.indptr).max(initial=0))
    proposed = union(vectors, voices, Query(validation.need_texts("blending").tolist()), 5 + spare)

    def value_of(weights: Sequence[float]) -> Floats:
        return judge(proposed.top(5 + spare, weights))

    own = () if vectors is None else (1.0,)
    weights = [*own, *usual]
    for _ in range(ROUNDS if len(voices) > 1 else 1):
        for place, wanted in enumerate(usual, len(own)):
            trials = [[*weights[:place], weight, *weights[place + 1 :]] for weight in WEIGHTS]
            values = [value_of(trial) if any(trial) else np.zeros(len(validation), np.float32) for trial in trials]
            best = max(values, key=lambda value: float(value.mean()))
            close = [w for w, value in zip(WEIGHTS, values, strict=True) if not _behind(value, best)]
            weights[place] = float(min(close, key=lambda weight: abs(weight - wanted)))
    together = value_of(weights)
    for place in range(len(weights)):
        alone = [float(place == other) for other in range(len(weights))]
        if _behind(together, value := value_of(alone)):
            weights, together = alone, value
    return tuple(weights)


def _behind(value: Floats, other: Floats) -> bool:
    """Return whether the quality of points is worse than another by more than two standard errors of the difference."""
    loss = other - value
    return bool(loss.mean() > 2 * loss.std() / np.sqrt(max(len(loss), 1)))
