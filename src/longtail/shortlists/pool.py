"""BATCH → POOL: the labels that a whole batch is scored against, so that a step is one matrix product.

The pool is the union of the batch's positives, of random labels shared by all points of the batch, and of hard
negatives drawn from a list that was mined for each point; its size depends on the batch, never on the number of labels.
What is positive for one point is a negative for the others. `everything` scores all labels, for small data sets.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.recipe import Part, record
from longtail.types import LabelMatrix


@record
class Everything(Part):
    """All labels, in every step."""

    part: ClassVar[str] = "everything"


@record
class Pool(Part):
    """Settings of the batch pool; every `refresh` epochs the model's own best wrong labels are mined for each point."""

    part: ClassVar[str] = "pool"
    random: int = Field(default=1000, ge=0)
    hard: int = Field(default=0, ge=0)  # drawn for each point and step from what was mined
    mined: int = Field(default=50, ge=1)  # kept for each point
    refresh: int = Field(default=0, ge=0)  # in epochs; 0: never

    def labels(
        self, targets: LabelMatrix, draw: np.random.Generator, mined: sp.csr_array | None = None
    ) -> NDArray[np.int64]:
        """Choose the pool of a batch: sorted label ids."""
        found = [targets.indices.astype(np.int64), draw.integers(0, targets.shape[1], self.random)]
        if mined is not None and self.hard:
            found.append(drawn_from(mined, self.hard, draw))
        return np.unique(np.concatenate(found))


def drawn_from(matrix: sp.csr_array, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` columns of each row that has any, with replacement.

    >>> drawn_from(sp.csr_array(np.array([[0, 1], [0, 0]])), 2, np.random.default_rng(0)).tolist()
    [1, 1]
    """
    sizes = np.diff(matrix.indptr)
    rows = np.flatnonzero(sizes)
    places = matrix.indptr[rows, None] + (draw.random((len(rows), count)) * sizes[rows, None]).astype(np.int64)
    drawn: NDArray[np.int64] = matrix.indices[places].ravel().astype(np.int64)
    return drawn
