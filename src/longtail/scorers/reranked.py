"""SCORED LABELS → RANKED AGAIN: a second scorer adds the probability that it gives to the best of a first one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from longtail.parts import Arrays, Query
from longtail.scorers.vectors import VectorScorer
from longtail.scorers.wrapped import Wrapped
from longtail.types import Floats, Ints, best_of, rows_of


@dataclass(frozen=True, eq=False)
class RerankedScorer(Wrapped):
    """A scorer that finds labels, and one that ranks the `depth` best of them again."""

    second: VectorScorer
    depth: int

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""
        return bool(self.first.shares_threads) and self.second.shares_threads

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text."""
        labels, scores = self.first.top(query, max(k, self.depth))
        rows, places = np.nonzero(labels >= 0)
        sums = scores.copy()
        sums[rows, places] += np.asarray(expit(self.second.pairs(query, rows, labels[rows, places])), np.float32)
        best = best_of(rows_of(labels, sums, len(self)), k)
        return best.labels, best.scores

    def pairs(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""
        scores: Floats = self.first.pairs(query, rows, labels)
        return scores + np.asarray(expit(self.second.pairs(query, rows, labels)), np.float32)

    def additive(self, scores: Floats) -> Floats:
        """Return the scores: they are sums already."""
        return scores

    def operations(self) -> int:
        """Count the operations of both."""
        dim = self.second.store.dim
        return int(self.first.operations()) + self.second.tower.operations() + 2 * dim * (dim + self.depth)

    def arrays(self) -> Arrays:
        """Name the arrays of both for a model file."""
        arrays: Arrays = self.first.arrays()
        return arrays | {f"rerank.{name}": array for name, array in self.second.arrays().items()}
