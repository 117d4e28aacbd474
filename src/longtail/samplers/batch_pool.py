"""BATCH → POOL: the labels that a whole batch is scored against, so that a step is one matrix product.

The pool is the union of the batch's positives, of random labels shared by all points of the batch, and of hard
negatives drawn from a list that was mined for each point; its size depends on the batch, never on the number of labels.
What is positive for one point is a negative for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.files import matrix_arrays, matrix_of
from longtail.parts import Batch, BuiltSampler, Candidates, Network, Query, Sampler, States, Step
from longtail.records import Cost, Sizes, record
from longtail.types import LabelMatrix, rows_of, without

CHUNK = 4096  # points that are mined for at once


@record
class BatchPool(Sampler):
    """Settings of the batch pool; every `refresh` epochs the model's own best wrong labels are mined for each point."""

    part: ClassVar[str] = "batch_pool"
    random: int = Field(default=1000, ge=0)
    hard: int = Field(default=0, ge=0)  # drawn for each point and step from what was mined
    mined: int = Field(default=50, ge=1)  # kept for each point
    refresh: int = Field(default=0, ge=0)  # in epochs; 0: never

    def cost(self, sizes: Sizes) -> Cost:
        """Count scores, targets, loss and gradient of a batch against its pool, and what is mined."""
        each = sizes.pairs / max(sizes.points, 1) + self.hard
        pool = min(sizes.labels, sizes.batch_size * each + self.random)
        mined = 12.0 * self.mined * sizes.points if self.hard else 0.0
        return Cost(memory=6 * 4.0 * sizes.batch_size * pool + mined)

    def build(self, network: Network) -> BuiltPool:
        """Make ready; nothing is mined yet."""
        return BuiltPool(self)


class BuiltPool(BuiltSampler):
    """The pool, with the hard negatives that were mined so far."""

    def __init__(self, settings: BatchPool, mined: LabelMatrix | None = None) -> None:
        self.settings, self.mined = settings, mined  # (N, L)

    def propose(self, batch: Batch, states: Callable[[], States], step: Step) -> Candidates:
        """Draw the pool of a batch."""
        mined = None if self.mined is None else self.mined[batch.rows]
        return Candidates(self.labels(batch.targets, step.draw, mined))

    def labels(
        self, targets: LabelMatrix, draw: np.random.Generator, mined: sp.csr_array | None = None
    ) -> NDArray[np.int64]:
        """Choose the labels for these targets: sorted label ids."""
        parts = [targets.indices.astype(np.int64), draw.integers(0, targets.shape[1], self.settings.random)]
        if mined is not None and self.settings.hard:
            parts.append(drawn_from(mined, self.settings.hard, draw))
        return np.unique(np.concatenate(parts))

    def on_epoch(self, epoch: int, network: Network) -> None:
        """Mine the best wrong labels of each point as the network stands."""
        if not self.settings.refresh or not epoch or epoch % self.settings.refresh:
            return
        scorer, points = network.scorer(), network.points
        blocks = []
        for start in range(0, len(points.inputs), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(points.inputs)))
            labels, _ = scorer.top(Query.of_inputs(points.inputs.take(rows)), self.settings.mined)
            best = rows_of(labels, np.ones(labels.shape), len(scorer))
            blocks.append(without(best, points.targets[rows] + points.excluded[rows]))
        self.mined = sp.csr_array(sp.vstack(blocks))

    def state(self) -> dict[str, NDArray[Any]]:
        """Name what was mined."""
        return {} if self.mined is None else matrix_arrays("mined", self.mined)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what was mined from a checkpoint."""
        if "mined.indptr" in arrays:
            self.mined = matrix_of(arrays, "mined")


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
