"""VECTOR → CLUSTERS → CANDIDATES: labels are put into clusters, and only those of the best clusters are scored.

A second head scores the clusters and is trained with the first. In training the clusters of the positives are always
among the chosen ones, and for the first part of the steps what the label rows ask for does not reach the encoder.
References: [InceptionXML] §5; methods §4.3 (1), §5.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.encoders.head import Arrays, Head
from longtail.errors import ModelError
from longtail.labels.tree import Clusters
from longtail.recipe import Part, record
from longtail.types import Floats, rows_of


@record
class Meta(Part):
    """Settings of the shortlist by clusters.

    `framework="lightxml"` gives the clusters no head of their own and detaches nothing. A batch is scored against the
    union of its candidates, of which each point sees its own; the union is cut to `most` labels, the clusters that
    fewest points chose first.
    """

    part: ClassVar[str] = "meta"
    clusters: int | None = Field(default=None, ge=1)  # None: about eight labels each
    top: int = Field(default=32, ge=1)
    most: int = Field(default=8192, ge=1)
    smoothed: bool = True  # cluster on points and graph neighbours instead of points alone
    framework: Literal["synchronised", "lightxml"] = "synchronised"
    detached: float = Field(default=0.25, ge=0, le=1)  # share of the steps
    dropout: float = Field(default=0.5, ge=0, lt=1)  # before the rows of the clusters


@dataclass(frozen=True, eq=False)
class MetaGuide:
    """What was learnt about clusters."""

    clusters: Clusters
    head: Head | None
    rows: Floats  # (M, D)
    bias: Floats  # (M,)
    top: int

    def scores(self, vectors: Floats) -> Floats:
        """Score the clusters: (N, M)."""
        return np.asarray((self.head(vectors) if self.head else vectors) @ self.rows.T + self.bias, np.float32)

    def candidates(self, vectors: Floats) -> sp.csr_array:
        """List the labels of the best clusters of each vector (N, L); entries are the scores of their clusters."""
        scores, top = self.scores(vectors), min(self.top, len(self.rows))
        chosen = np.argpartition(-scores, top - 1, axis=1)[:, :top]
        labels = self.clusters.labels_of(chosen)
        of_labels = np.take_along_axis(scores, self.clusters.of[labels].astype(np.int64), axis=1)
        found = rows_of(labels, of_labels, len(self.clusters.of))
        found.sort_indices()
        return found

    def combined(self, by_rows: Floats, _found: sp.csr_array) -> Floats:
        """Rank by the label rows alone, as the paper does."""
        return by_rows

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        held: Arrays = {"meta.of": self.clusters.of, "meta.rows": self.rows, "meta.bias": self.bias}
        return held | (self.head.arrays("meta.head") if self.head else {})

    @classmethod
    def of_arrays(cls, held: Mapping[str, NDArray[Any]], top: int) -> MetaGuide:
        """Put the arrays of a model file together."""
        of, rows = held["meta.of"], held["meta.rows"]
        if of.ndim != 1 or (len(of) and not 0 <= of.min() <= of.max() < len(rows)):
            raise ModelError("the clusters of the model are damaged; train again")
        clusters = Clusters.build(of)
        if len(clusters) != len(rows):
            raise ModelError("the clusters of the model are damaged; train again")
        return cls(clusters, Head.of_arrays(held, "meta.head"), rows, held["meta.bias"], top)
