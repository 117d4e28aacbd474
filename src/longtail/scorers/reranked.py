"""SCORED LABELS → RANKED AGAIN: a second scorer adds the probability that it gives to the best of a first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from longtail.parts import Arrays, LabelStore, Query, Retriever
from longtail.scorers.vectors import Ranked, VectorScorer
from longtail.types import Floats, Ints, best_of, rows_of


@dataclass(frozen=True, eq=False)
class RerankedScorer:
    """A scorer that finds labels, and one that ranks the `depth` best of them again."""

    first: VectorScorer
    second: VectorScorer
    depth: int

    def __len__(self) -> int:
        return len(self.first)

    @property
    def store(self) -> LabelStore:
        """The label vectors that are searched."""
        return self.first.store

    @property
    def retriever(self) -> Retriever | None:
        """What proposes labels."""
        return self.first.retriever

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""
        return self.first.shares_threads and self.second.shares_threads

    def led(self, retriever: Retriever) -> RerankedScorer:
        """Let the first scorer score what a retriever proposes."""
        return replace(self, first=self.first.led(retriever))

    def with_store(self, store: LabelStore) -> RerankedScorer:
        """Let the first scorer search label vectors that are kept elsewhere."""
        return replace(self, first=self.first.with_store(store))

    def join(self, others: Sequence[Any], weights: Sequence[float]) -> VectorScorer:
        """Join the first scorers: what is ranked again is not joined."""
        return self.first.join(others, weights)

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text."""
        labels, scores = self.first.top(query, max(k, self.depth))
        rows, places = np.nonzero(labels >= 0)
        sums = scores.copy()
        sums[rows, places] += self._again(query, rows, labels[rows, places])
        best = best_of(rows_of(labels, sums, len(self)), k)
        return best.labels, best.scores

    def _again(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Return the probability that the second scorer gives to pairs."""
        return np.asarray(expit(self.second.pairs(query, rows, labels)), np.float32)

    def pairs(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""
        return self.first.pairs(query, rows, labels) + self._again(query, rows, labels)

    def top_one(self, query: Query, n: int) -> Ranked:
        """Find the n best labels of the only text, best first."""
        if not self.encoded_one(query).any():
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        labels, scores = self.top(query, n)
        mask = labels[0] >= 0
        return labels[0][mask], scores[0][mask]

    def score_one(self, query: Query, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for the only text."""
        return self.first.score_one(query, labels) + np.asarray(expit(self.second.score_one(query, labels)), np.float32)

    def encoded_one(self, query: Query) -> Floats:
        """Encode the only text as the first scorer does."""
        return self.first.encoded_one(query)

    def rows_for(self, texts: Sequence[str]) -> Floats:
        """Make vectors of new labels as the first scorer does."""
        return self.first.rows_for(texts)

    def score_rows(self, query: Query, rows: Floats, bias: float, best: float) -> Floats:
        """Score vectors of new labels as the first scorer does."""
        return self.first.score_rows(query, rows, bias, best)

    def operations(self) -> int:
        """Count the operations of both."""
        dim = self.second.store.dim
        return self.first.operations() + self.second.tower.operations() + 2 * dim * (dim + self.depth)

    def arrays(self) -> Arrays:
        """Name the arrays of both for a model file."""
        return self.first.arrays() | {f"rerank.{name}": array for name, array in self.second.arrays().items()}
