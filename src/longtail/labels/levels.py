"""PREDICTIONS → BROADER PREDICTIONS: labels rolled up to one level of a vocabulary, along `broader`.

Level 1 has the labels that nothing is broader than. A label is as deep as the shortest way up says; one that lies
deeper than the level gives way to the labels of that level above it. What is on the level, or above it, stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError
from longtail.types import TopK


@dataclass(frozen=True, eq=False)
class Levels:
    """Which labels stand above others; `broader` is (L, L).

    >>> chain = Levels(sp.csr_array(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]])))  # 2 below 1 below 0
    >>> chain.depths.tolist(), chain.above(2, 1), chain.above(2, 2), chain.above(0, 2)
    ([1, 2, 3], (0,), (1,), (0,))
    """

    broader: sp.csr_array
    depths: NDArray[np.int64] = field(init=False)
    found: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depths", _depths(self.broader))

    def above(self, label: int, level: int) -> tuple[int, ...]:
        """Return the labels of a level above a label, or the label itself where it is as broad."""
        if label >= len(self.depths):  # it came after training
            return (label,)
        if (label, level) not in self.found:
            done, ways, seen = set[int](), [label], {label}
            while ways:
                place = ways.pop()
                if self.depths[place] <= level:
                    done.add(place)
                    continue
                for other in self.broader.indices[self.broader.indptr[place] : self.broader.indptr[place + 1]].tolist():
                    if other not in seen:
                        seen.add(other)
                        ways.append(other)
            self.found[label, level] = tuple(sorted(done))
        return self.found[label, level]

    def rolled(self, top: TopK, level: int, k: int, removed: frozenset[int] = frozenset()) -> TopK:
        """Roll predictions up: a broader label has the best score below it, and each text keeps its k best.

        Labels that were removed are never among them.
        """
        if level < 1:
            raise DataError(f"level {level}", remedy="the broadest labels are level 1")
        labels, scores = np.full((len(top), k), -1, np.int32), np.full((len(top), k), -np.inf, np.float32)
        for row in range(len(top)):
            best: dict[int, float] = {}
            for label, score in zip(top.labels[row].tolist(), top.scores[row].tolist(), strict=True):
                for broad in self.above(label, level) if label >= 0 else ():
                    best.setdefault(broad, score)  # the best come first
            chosen = [entry for entry in best.items() if entry[0] not in removed][:k]
            labels[row, : len(chosen)] = [label for label, _ in chosen]
            scores[row, : len(chosen)] = [score for _, score in chosen]
        return TopK(labels, scores, top.names)


def _depths(broader: sp.csr_array) -> NDArray[np.int64]:
    """Return the level of each label; one in a circle without a top is of level 1."""
    count = int(broader.shape[0])
    below = sp.csr_array(broader.T)
    depths = np.zeros(count, np.int64)
    frontier, level = np.flatnonzero(np.diff(broader.indptr) == 0), 1
    while len(frontier):
        depths[frontier] = level
        nearer = np.concatenate([below.indices[below.indptr[own] : below.indptr[own + 1]] for own in frontier.tolist()])
        frontier, level = np.unique(nearer[depths[nearer] == 0]), level + 1
    return np.where(depths == 0, 1, depths)
