"""SCORED LABELS → SCORES OF THEIR NEIGHBOURS TOO: probabilities walk one step over the label graph.

p' = (1 - share) p + share · (p of the best labels) A, with A the normalised label graph. References: [ECLARE]; methods
§5.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.arrays import matrix_arrays
from longtail.labels.blocks import edge_rows
from longtail.parts import Arrays, Query
from longtail.scorers.wrapped import Wrapped
from longtail.types import Floats, Ints, best_of, rows_of

FLOOR = 1e-30  # of a probability before its logarithm


@dataclass(frozen=True, eq=False)
class TraversedScorer(Wrapped):
    """A scorer whose scores are logarithms of probabilities, and a graph."""

    graph: sp.csr_array  # (L, L)
    share: float  # of what comes from neighbours
    depth: int  # labels that hand something on

    @property
    def searchable(self) -> bool:
        """Return False: neighbours are found by the graph."""
        return False

    def spread(self, query: Query) -> sp.csr_array:
        """Return what the best labels hand on to their neighbours: (N, L)."""

        def compute() -> sp.csr_array:
            labels, scores = self.first.top(query, min(self.depth, len(self)))
            spread = sp.csr_array(rows_of(labels, np.exp(scores), len(self)) @ self.graph)
            spread.sort_indices()
            return spread

        spread: sp.csr_array = query.once(self, "spread", compute)
        return spread

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text, among the best of the first scorer and their neighbours."""
        spread = self.spread(query)  # every label is a neighbour of itself
        rows, labels = edge_rows(spread), spread.indices
        scores = self.pairs(query, rows, labels)
        best = best_of(sp.csr_array((scores, labels, spread.indptr), shape=spread.shape), min(k, len(self)))
        return best.labels, best.scores

    def pairs(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""
        spread, width = self.spread(query), len(self)
        known, wanted = edge_rows(spread) * width + spread.indices, rows * width + labels
        places = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        found = known[places] == wanted if len(known) else np.zeros(len(wanted), np.bool_)
        given = np.where(found, spread.data[places] if len(known) else 0, 0)
        own = np.exp(self.first.pairs(query, rows, labels))
        both = np.maximum((1 - self.share) * own + self.share * given, FLOOR)
        return np.asarray(np.log(both), np.float32)

    def operations(self) -> int:
        """Count the operations of the first scorer, and of the graph's edges."""
        edges = self.graph.nnz / max(len(self), 1)
        return int(self.first.operations()) + round(2 * self.depth * edges)

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        arrays: Arrays = self.first.arrays()
        return arrays | matrix_arrays("traverse.graph", self.graph) | {"traverse.share": np.array([self.share])}
