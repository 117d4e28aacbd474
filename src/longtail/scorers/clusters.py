"""VECTOR → CLUSTERS → CANDIDATES: the labels of the clusters that score best.

A label is ranked by log σ(row) + weight · log σ(cluster): 0 ranks by its row alone, as the InceptionXML paper does, 1
by the product of both probabilities, as its code also reports. References: [InceptionXML] §5; methods §5.2, §5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import log_expit

from longtail.arrays import Array, checked, number, places
from longtail.errors import ModelError
from longtail.labels.tree import Clusters
from longtail.parts import Arrays, FrozenHead, FrozenTower, Query
from longtail.types import Floats, LabelMatrix, contains, rows_of

WEIGHTS = (0.0, 0.25, 0.5, 1.0)  # of clusters, that validation points choose from
WEIGHT = 1.0  # where there are none
SCHEMA = (
    Array("clusters.rows", ("clusters", "width")), Array("clusters.bias", ("clusters",)),
    places("clusters.of", "labels", "clusters", dtypes=("int32",)), number("clusters.weight", 0, 1e6),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ClusterRetriever:
    """What was learnt about clusters."""

    clusters: Clusters
    head: FrozenHead | None
    rows: Floats  # (M, D)
    bias: Floats  # (M,)
    top: int
    weight: float = WEIGHT  # of the clusters in the score
    undecided: bool = False  # whether validation points are to choose it

    def __len__(self) -> int:
        return len(self.clusters.of)

    def scores(self, vectors: Floats) -> Floats:
        """Score the clusters: (N, M)."""
        return np.asarray((self.head(vectors) if self.head else vectors) @ self.rows.T + self.bias, np.float32)

    def best(self, vectors: Floats) -> NDArray[Any]:
        """Return the best clusters of each vector: (N, top)."""
        return self._best(self.scores(vectors))

    def _best(self, scores: Floats) -> NDArray[Any]:
        top = min(self.top, len(self.rows))
        return np.argpartition(-scores, top - 1, axis=1)[:, :top]

    def propose(self, query: Query, tower: FrozenTower) -> sp.csr_array:
        """List the labels of the best clusters of each text (N, L); entries are the scores of their clusters."""
        scores = self.scores(tower.encode(query))
        chosen = self._best(scores)
        labels = self.clusters.labels_of(chosen)
        of_labels = np.take_along_axis(scores, self.clusters.of[labels].astype(np.int64), axis=1)
        proposed = rows_of(labels, of_labels, len(self.clusters.of))
        proposed.sort_indices()
        return proposed

    def beyond(self, query: Query, tower: FrozenTower, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Return the scores of the clusters of labels that are not proposed."""
        vectors = tower.encode(query)
        clusters, projected = self.clusters.of[labels], self.head(vectors) if self.head else vectors
        products = np.einsum("pd,pd->p", projected[rows], self.rows[clusters])
        return np.asarray(products + self.bias[clusters], np.float32)

    def combine(
        self, by_rows: Floats, own: Floats, starts: NDArray[Any], proposed: NDArray[np.bool_], *, cosine: bool = False
    ) -> Floats:
        """Add the logarithms of both probabilities."""
        return np.asarray(log_expit(by_rows) + np.float32(self.weight) * log_expit(own), np.float32)

    def additive(self, scores: Floats) -> Floats:
        """Turn logarithms of probabilities into probabilities."""
        return np.exp(scores)

    def score_new(self, products: Floats, cosines: Floats, best: float) -> Floats:
        """Score labels that came after training by their vectors; they have no cluster, and never rank first."""
        return np.asarray(np.minimum(log_expit(products), best), np.float32)

    def choose(self, scorer: Any, quality: Callable[[Any], float]) -> ClusterRetriever:
        """Choose the weight of clusters on validation points, unless it is given."""
        if not self.undecided:
            return self
        return replace(self, weight=max(WEIGHTS, key=lambda weight: quality(scorer.led(replace(self, weight=weight)))))

    def metrics(self, query: Query, tower: FrozenTower, targets: LabelMatrix) -> dict[str, float]:
        """Return how often the best cluster holds a positive."""
        best = self.scores(tower.encode(query)).argmax(axis=1)
        right = contains(self.clusters.targets(targets), best[:, None].astype(np.int32))
        return {"meta P@1": 100 * float(right.mean())}

    def operations(self, labels: int, dim: int) -> tuple[int, int]:
        """Count the scoring of all clusters, and the labels of the best."""
        clusters = len(self.rows)
        scored = round(labels * min(1, self.top / clusters))
        return 2 * clusters * dim + (self.head.operations() if self.head else 0), scored

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        arrays: Arrays = {"clusters.of": self.clusters.of, "clusters.rows": self.rows, "clusters.bias": self.bias}
        arrays["clusters.weight"] = np.array([self.weight])
        return arrays | (self.head.arrays("clusters.head") if self.head else {})

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], head: FrozenHead | None, width: int, top: int
    ) -> ClusterRetriever:
        """Put the arrays of a model file together; clusters score vectors of that width."""
        rows, bias, of, weight = checked(arrays, SCHEMA, width=width)
        if not 0 < len(rows) <= len(of) or int(of.max()) != len(rows) - 1:
            raise ModelError(f"there are {len(rows)} clusters of {len(of)} labels, not all of them used; train again")
        return cls(Clusters.build(of), head, rows, bias, top, float(weight[0]))
