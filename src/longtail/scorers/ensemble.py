"""SCORERS → ONE SCORER: the mean of what the members of an ensemble say.

Members are fits of one recipe with other seeds. What is added up is a probability, or what a recipe has in its place:
logarithms are undone first, logits pass a sigmoid, cosines and fused scores are added as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.parts import Arrays, Near, Query
from longtail.scorers.wrapped import Wrapped
from longtail.types import Floats, Ints, best_of

DEPTH = 100  # labels of each member that are candidates


@dataclass(frozen=True, eq=False)
class EnsembleScorer(Wrapped):
    """Scorers of the same labels; `first` is one of them."""

    others: tuple[Any, ...]

    @property
    def members(self) -> tuple[Any, ...]:
        """All scorers."""
        return self.first, *self.others

    @property
    def searchable(self) -> bool:
        """Return False: each member searches label vectors of its own."""
        return False

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""
        return all(member.shares_threads for member in self.members)

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text among the best of each member."""
        count, width, wide = len(query), len(self), min(max(k, DEPTH), len(self))
        first = np.arange(count, dtype=np.int64) * width
        found = [member.top(query, wide)[0] for member in self.members]
        pairs = np.unique(np.concatenate([(first[:, None] + labels)[labels >= 0] for labels in found]))
        rows, labels = np.divmod(pairs, width)
        starts = np.searchsorted(pairs, np.append(first, count * width))
        scores = sp.csr_array((self.pairs(query, rows, labels), labels, starts), shape=(count, width))
        best = best_of(scores, min(k, width))
        return best.labels, best.scores

    def pairs(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""
        return mean([member.additive(member.pairs(query, rows, labels)) for member in self.members])

    def additive(self, scores: Floats) -> Floats:
        """Return the scores: they are means already."""
        return scores

    def rows_for(self, texts: Sequence[str], near: Near | None = None) -> Floats:
        """Make vectors of new labels, those of each member side by side."""
        return np.concatenate([member.rows_for(texts, near) for member in self.members], axis=1)

    def score_rows(self, query: Query, rows: Floats, bias: float, best: float) -> Floats:
        """Score vectors of new labels as each member does, beside its own best label."""
        ends = np.cumsum([member.store.dim for member in self.members])[:-1]
        scores = []
        for member, own in zip(self.members, np.split(rows, ends, axis=1), strict=True):
            most = float(member.top_one(query, 1)[1].max(initial=-np.inf))
            beside = most if np.isfinite(most) else 0.0
            scores.append(member.additive(member.score_rows(query, np.ascontiguousarray(own), bias, beside)))
        return mean(scores)

    def operations(self) -> int:
        """Count the operations of all members."""
        return sum(member.operations() for member in self.members)

    def arrays(self) -> Arrays:
        """Name the arrays of all members for a model file."""
        arrays: Arrays = self.first.arrays()
        for place, member in enumerate(self.others, 1):
            arrays |= {f"member{place}.{name}": array for name, array in member.arrays().items()}
        return arrays


def mean(scores: Sequence[Floats]) -> Floats:
    """Return the mean of the scores of members."""
    return np.asarray(sum(scores[1:], scores[0]) / np.float32(len(scores)), np.float32)
