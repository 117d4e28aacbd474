"""QUERY → NODES, LEVEL BY LEVEL → CANDIDATES: the labels below the best nodes of a wide and shallow tree.

Each level is a model of its own that scores the children of the nodes which the level above found best. The score of a
node, and at last of a label, is the product of the probabilities along its path. References: [AttentionXML]; methods
§4.2, §5.12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import log_expit

from longtail.labels.blocks import edge_rows, laid_out
from longtail.labels.tree import Clusters
from longtail.parts import Arrays, FrozenTower, Query
from longtail.types import Floats, LabelMatrix, best_of, contains, rows_of


@dataclass(frozen=True, eq=False)
class TreeRetriever:
    """The levels above the labels, the one with fewest nodes first."""

    levels: tuple[Any, ...]  # a scorer of the nodes of each level, without a retriever
    parents: tuple[Clusters, ...]  # the nodes of each level that what is below it belongs to: nodes, at last labels
    top: int  # nodes of a level whose children are scored

    def __len__(self) -> int:
        return len(self.parents[-1].of)

    def nodes(self, query: Query) -> sp.csr_array:
        """Return the best nodes of the last level for each text, (N, M), with the logarithms of their probabilities."""
        found: sp.csr_array = query.once(self, "nodes", lambda: self._nodes(query))
        return found

    def _nodes(self, query: Query) -> sp.csr_array:
        first = self.levels[0]
        best, scores = first.search(query, min(self.top, len(first)))
        found = rows_of(best, np.asarray(log_expit(scores)), len(first))
        for scorer, parents in zip(self.levels[1:], self.parents, strict=False):
            found = self._kept(self._below(found, parents, query, scorer.by_rows))
        return found

    def _below(
        self, nodes: sp.csr_array, parents: Clusters, query: Query, by_rows: Callable[..., Floats] | None = None
    ) -> sp.csr_array:
        """List the children of nodes; entries are the scores of their parents, and their own where they have any."""
        children = parents.labels_of(laid_out(nodes, nodes.indices, -1))
        above = np.repeat(laid_out(nodes, nodes.data, 0.0), parents.table.shape[1], axis=1)
        below = rows_of(children, above, len(parents.of))
        below.sort_indices()
        if by_rows is not None:
            below.data = below.data + log_expit(by_rows(query, edge_rows(below), below.indices))
        return below

    def _kept(self, scores: sp.csr_array) -> sp.csr_array:
        """Keep the best nodes of each text."""
        best = best_of(scores, min(self.top, scores.shape[1]))
        return rows_of(best.labels, best.scores, scores.shape[1])

    def propose(self, query: Query, tower: FrozenTower) -> sp.csr_array:
        """List the labels below the best nodes (N, L); entries are logarithms of the probabilities of these."""
        return self._below(self.nodes(query), self.parents[-1], query)

    def beyond(self, query: Query, tower: FrozenTower, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Return the scores of labels whose nodes are not among the best: no more than the least of these."""
        nodes = self.nodes(query)
        least = np.array(
            [nodes.data[a:b].min(initial=0.0) for a, b in zip(nodes.indptr, nodes.indptr[1:], strict=False)]
        )
        return np.asarray(least[rows], np.float32)

    def combine(
        self, by_rows: Floats, own: Floats, starts: NDArray[Any], proposed: NDArray[np.bool_], *, cosine: bool = False
    ) -> Floats:
        """Add the logarithms of both probabilities."""
        return np.asarray(log_expit(by_rows) + own, np.float32)

    def additive(self, scores: Floats) -> Floats:
        """Turn logarithms of probabilities into probabilities."""
        return np.exp(scores)

    def score_new(self, products: Floats, cosines: Floats, best: float) -> Floats:
        """Score labels that came after training by their own logits; they have no node, and never rank first."""
        return np.asarray(np.minimum(log_expit(products), best), np.float32)

    def choose(self, scorer: Any, quality: Callable[[Any], float]) -> TreeRetriever:
        """Choose nothing."""
        return self

    def metrics(self, query: Query, tower: FrozenTower, targets: LabelMatrix) -> dict[str, float]:
        """Return how often the best node holds a positive."""
        best = best_of(self.nodes(query), 1).labels
        return {"meta P@1": 100 * float(contains(self.parents[-1].targets(targets), best).mean())}

    def operations(self, labels: int, dim: int) -> tuple[int, int]:
        """Count the nodes that are scored on every level, and the labels below the best."""
        total = 0
        for place, scorer in enumerate(self.levels):
            share = 1.0 if place == 0 else min(1.0, self.top / len(self.parents[place - 1]))
            encoded = scorer.tower.operations()  # by every level in full
            total += encoded + round((scorer.operations() - encoded) * share)
        return total, round(labels * min(1.0, self.top / len(self.parents[-1])))

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        arrays: Arrays = {"tree.top": np.array([self.top])}
        arrays |= {f"tree{place}.of": parents.of for place, parents in enumerate(self.parents)}
        for place, scorer in enumerate(self.levels):
            arrays |= {f"level{place}.{name}": array for name, array in scorer.arrays().items()}
        return arrays
