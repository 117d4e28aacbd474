"""BATCH → POOL: the labels that a whole batch is scored against, so that a step is one matrix product.

The pool is the union of the batch's positives and a number of random labels shared by all points of the batch; its size
depends on the batch, never on the number of labels. What is positive for one point is a negative for the others.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.recipe import Part, record
from longtail.types import LabelMatrix


@record
class Pool(Part):
    """Settings of the batch pool."""

    part: ClassVar[str] = "pool"
    random: int = Field(default=1000, ge=0)

    def labels(self, targets: LabelMatrix, draw: np.random.Generator) -> NDArray[np.int64]:
        """Choose the pool of a batch: sorted label ids."""
        drawn = draw.integers(0, targets.shape[1], self.random)
        return np.unique(np.concatenate([targets.indices.astype(np.int64), drawn]))
