"""POINTS → THEIR ORDER IN AN EPOCH: shuffled, or similar points side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.labels.tree import clusters
from longtail.parts import BatchOrder, Fit
from longtail.records import record

Order = Callable[[np.random.Generator], NDArray[np.int64]]


@record
class Shuffled(BatchOrder):
    """Every order is as likely."""

    part: ClassVar[str] = "shuffled"

    def build(self, fit: Fit) -> Order:
        """Make ready."""
        count = len(fit.points.inputs)
        return lambda draw: draw.permutation(count)


@record
class Similar(BatchOrder):
    """Groups of points with similar words stand side by side: their labels are hard negatives for each other."""

    part: ClassVar[str] = "similar"
    group: int = Field(default=32, ge=2)  # points

    def build(self, fit: Fit) -> Order:
        """Put the points into clusters of their words."""
        count = len(fit.points.inputs)
        bags = fit.words.bag(fit.train.need_texts("batches"))
        groups = max(1, count // self.group)
        similar = np.argsort(clusters(bags, groups, seed=fit.seed), kind="stable")

        def order(draw: np.random.Generator) -> NDArray[np.int64]:
            shifted = np.roll(similar, -int(draw.integers(0, self.group)))
            parts = np.array_split(shifted, math.ceil(count / self.group))
            return np.concatenate([parts[place] for place in draw.permutation(len(parts))])

        return order
