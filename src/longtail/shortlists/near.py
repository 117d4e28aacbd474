"""VECTOR → NEAREST LABELS AND POINTS → CANDIDATES, as Astec finds them.

Labels are near if the mean of their points is, or if points near the text carry them. Both are found in the vectors of
an encoder that was trained on clusters of labels and then left alone; label rows are trained and asked only about what
is near. References: [Astec]; methods §4.3 (3), §5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import expit

from longtail.encoders.head import Arrays
from longtail.files import matrix_arrays, matrix_of
from longtail.recipe import record
from longtail.shortlists.nearest import Find, among, centroids, fused
from longtail.shortlists.pool import Pool
from longtail.types import Floats, LabelMatrix


@record
class Near(Pool):
    """Settings of Astec's shortlist: a pool whose hard negatives come from what is near."""

    part: ClassVar[str] = "near"
    random: int = Field(default=200, ge=0)
    hard: int = Field(default=20, ge=0)
    keep: int = Field(default=500, ge=1)  # candidates of a text
    points: int = Field(default=50, ge=0)  # nearest training points that are asked for their labels
    gamma: float = Field(default=0.075, ge=0, le=1)  # share of the points in the shortlist
    beta: float | None = Field(default=None, ge=0, le=1)  # share of the label rows in the score; None: validate


@dataclass(frozen=True, eq=False)
class NearGuide:
    """Label centroids and training points in the space of the frozen encoder."""

    settings: Near
    centroids: Floats  # (L, D), length one
    points: Floats  # (N, D), length one
    targets: LabelMatrix  # (N, L)
    beta: float

    @classmethod
    def build(cls, settings: Near, vectors: Floats, targets: LabelMatrix) -> NearGuide:
        """Average the vectors of the points of each label."""
        _, rows = centroids(targets, vectors)
        lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return cls(settings, rows, vectors / lengths, targets, 0.5 if settings.beta is None else settings.beta)

    def candidates(self, vectors: Floats) -> sp.csr_array:
        """List what is near each vector (N, L); entries are the fused similarities."""
        keep = min(self.settings.keep, len(self.centroids))
        # Fewer labels than are kept: with a small gamma, labels that only points bring would otherwise never get in.
        by_label = self._labels(vectors, max(1, round(0.75 * keep)))
        by_point = self._points(vectors, min(self.settings.points, len(self.points)))
        found = fused(by_label, by_point, self.targets, self.settings.gamma, keep)
        found.sort_indices()
        return found

    @cached_property
    def _labels(self) -> Find:
        """Finds the nearest labels."""
        return among(self.centroids)

    @cached_property
    def _points(self) -> Find:
        """Finds the nearest points."""
        return among(self.points)

    def combined(self, by_rows: Floats, found: sp.csr_array) -> Floats:
        """Mix the sigmoid of both scores, each divided by the largest of its text."""
        rows = expit(by_rows), expit(found.data)
        scaled = [_by_largest(part, found.indptr) for part in rows]
        return np.asarray(self.beta * scaled[0] + (1 - self.beta) * scaled[1], np.float32)

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        held: Arrays = {
            "near.centroids": self.centroids,
            "near.points": self.points,
            "near.beta": np.array([self.beta]),
        }
        return held | matrix_arrays("near.targets", self.targets)

    @classmethod
    def of_arrays(cls, held: Mapping[str, NDArray[Any]], settings: Near) -> NearGuide:
        """Put the arrays of a model file together."""
        targets = matrix_of(held, "near.targets")
        return cls(settings, held["near.centroids"], held["near.points"], targets, float(held["near.beta"][0]))


def _by_largest(values: Floats, starts: NDArray[Any]) -> Floats:
    """Divide the entries of each row by their largest."""
    sizes = np.diff(starts)
    largest = np.maximum.reduceat(np.append(values, 0), np.minimum(starts[:-1], len(values)))
    return np.asarray(values / np.repeat(np.where(sizes > 0, np.maximum(largest, 1e-12), 1), sizes), np.float32)
