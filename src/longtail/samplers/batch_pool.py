"""BATCH → POOL: the labels that a whole batch is scored against, so that a step is one matrix product.

The pool is the union of the batch's positives, or of some drawn for each point, of random labels shared by all points
of the batch, and of hard negatives drawn from a list that was mined for each point; its size depends on the batch,
never on the number of labels. Whatever of a point's positives is in the pool counts as such ("some"), also what was
drawn for another point, or only what was drawn for this one ("one": the others are left out). References: [DEXML],
[UniDEC] §2.3; methods §5.11, §5.16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.arrays import matrix_arrays, matrix_of
from longtail.errors import RecipeError
from longtail.labels.blocks import edge_rows
from longtail.parts import Batch, BuiltSampler, Candidates, Network, Query, Sampler, Scorer, States, Step
from longtail.records import Cost, Sizes, record
from longtail.search.ivf import IVF
from longtail.shards import Group
from longtail.stores.memory import MemoryStore
from longtail.types import Floats, Ints, LabelMatrix, rows_of, without

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 4096  # points that are mined for at once
MANY = 200_000  # labels from which on clusters lead the search: below, looking at all of them costs little more
PROBES = 6  # clusters that are looked into for every five labels


@record
class BatchPool(Sampler):
    """Settings of the batch pool.

    Every `refresh` epochs from `start` on the wrong labels are mined for each point that the first objective with this
    pool finds best. A pool of `size` labels leaves out hard negatives first; without any it is filled with
    positives that were not drawn.
    """

    part: ClassVar[str] = "batch_pool"
    positives: int | None = Field(default=None, ge=1)  # drawn for each point and step; None: all
    pick: Literal["some", "one"] = "some"  # whether some positives of a point count, or one that is drawn
    random: int = Field(default=1000, ge=0)  # labels that are drawn by chance for each batch
    hard: int = Field(default=0, ge=0)  # drawn for each point and step from what was mined
    mined: int = Field(default=50, ge=1)  # wrong labels that are kept for each point
    refresh: int = Field(default=0, ge=0)  # epochs after which they are mined again; 0: never
    start: int | None = Field(default=None, ge=0)  # epoch that is first mined before; None: `refresh`
    size: int | None = Field(default=None, ge=1)  # labels of the pool at most

    def check(self, recipe: Any) -> None:
        """Ask for room for the positives of a batch."""
        if self.size is None:
            return
        if self.positives is None:
            raise RecipeError(f"{recipe.name}: a pool of {self.size} labels needs to know sampler.positives of a point")
        batch = max(stage.steps(1)[0] for stage in recipe.stages)
        if self.size < batch * self.positives:
            raise RecipeError(
                f"{recipe.name}: a pool of {self.size} labels is smaller than the positives of a batch, {batch} points "
                f"with {self.positives} each: --set sampler.size={batch * self.positives}, or a smaller batch"
            )

    def cost(self, sizes: Sizes) -> Cost:
        """Count scores, targets, loss and gradient of a batch against its pool, and what is mined."""
        mined = 12.0 * self.mined * sizes.points if self.hard else 0.0
        return Cost(memory=6 * 4.0 * sizes.batch_size * self.count(sizes) / sizes.processes + mined)

    def count(self, sizes: Sizes) -> float:
        """Count the labels of a pool."""
        each = sizes.pairs / max(sizes.points, 1)
        each = (each if self.positives is None else min(each, self.positives)) + self.hard
        return min(sizes.labels, sizes.batch_size * each + self.random, self.size or np.inf)

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
        own, count = batch.targets, self.settings.positives
        own = own if count is None else some_of(own, count, step.draw)
        labels = self.labels(batch.targets, own, step.draw, mined)
        return Candidates(labels, others_masked(batch.targets, own, labels) if self.settings.pick == "one" else None)

    def labels(
        self, targets: LabelMatrix, own: LabelMatrix, draw: np.random.Generator, mined: sp.csr_array | None = None
    ) -> NDArray[np.int64]:
        """Choose the labels for these targets, of which `own` were drawn: sorted label ids."""
        settings = self.settings
        parts = [own.indices.astype(np.int64), draw.integers(0, targets.shape[1], settings.random)]
        if mined is not None and settings.hard:
            parts.append(drawn_from(mined, settings.hard, draw))
        elif settings.size is not None:
            parts.append(targets.indices.astype(np.int64))
        pool = np.unique(np.concatenate(parts))
        if len(pool) == 0:
            return draw.integers(0, targets.shape[1], 1)  # no point has a label, and scores must not be empty
        if settings.size is None or len(pool) <= settings.size:
            return pool
        kept = np.unique(parts[0])
        for part in parts[1:]:  # hard negatives come last, so that they are left out first
            others = draw.permutation(np.setdiff1d(part, kept))
            kept = np.append(kept, others[: max(0, settings.size - len(kept))])
        return np.sort(kept)

    def on_epoch(self, epoch: int, network: Network) -> None:
        """Mine the best wrong labels of each point as the network stands."""
        settings = self.settings
        first = settings.refresh if settings.start is None else settings.start
        if not settings.hard or not settings.refresh or epoch < first or (epoch - first) % settings.refresh:
            return
        points = network.points
        term = next(term for term in network.terms if term.sampler is self)
        scorer = quick(term.freeze(own=True))
        blocks = []
        for start in range(0, len(points.inputs), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(points.inputs)))
            found = scorer.top(Query.of_inputs(points.inputs.take(rows)), settings.mined)
            labels = merged(*found, settings.mined, term.group)
            best = rows_of(labels, np.ones(labels.shape), points.targets.shape[1])
            blocks.append(without(best, points.targets[rows] + points.excluded[rows]))
        self.mined = sp.csr_array(sp.vstack(blocks))

    def state(self) -> dict[str, NDArray[Any]]:
        """Name what was mined."""
        return {} if self.mined is None else matrix_arrays("mined", self.mined)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what was mined from a checkpoint."""
        if "mined.indptr" in arrays:
            self.mined = matrix_of(arrays, "mined")


def merged(labels: Ints, scores: Floats, count: int, group: Group) -> Ints:
    """Put together what processes have found among their own labels: the best of all, ascending where equal."""
    if group.alone:
        return labels
    import torch  # noqa: PLC0415

    own = np.where(labels >= 0, labels * group.size + group.rank, -1)
    pairs = [torch.from_numpy(np.ascontiguousarray(part.T)) for part in (own, scores)]  # lengths may differ
    every, worth = (torch.cat(group.gather(part)).numpy().T for part in pairs)
    order = np.lexsort((every, -worth))[:, :count]
    return np.take_along_axis(every, order, axis=1)


def quick(scorer: Scorer) -> Scorer:
    """Let a search among many labels look into the clusters nearest to a query only: most of the best are enough."""
    if len(scorer) < MANY or not scorer.searchable:
        return scorer
    rows = scorer.store.take(slice(None))
    store = MemoryStore.of(rows, scorer.store.bias)
    return scorer.with_store(replace(store, leader=IVF.balanced(rows).searching(PROBES)))


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


def some_of(matrix: LabelMatrix, count: int, draw: np.random.Generator) -> LabelMatrix:
    """Keep `count` entries of each row at most, drawn without replacement, larger ones more often.

    >>> some_of(sp.csr_array(np.array([[1.0, 1.0, 1.0], [0, 1.0, 0]])), 1, np.random.default_rng(0)).toarray().tolist()
    [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    rows = edge_rows(matrix)
    order = np.lexsort((draw.exponential(size=matrix.nnz) / matrix.data, rows))  # the first of so many clocks to ring
    rank = np.arange(matrix.nnz) - matrix.indptr[rows[order]]
    kept = np.sort(order[rank < count])
    starts = np.concatenate([[0], np.cumsum(np.minimum(np.diff(matrix.indptr), count))])
    return sp.csr_array((matrix.data[kept], matrix.indices[kept], starts), shape=matrix.shape)


def others_masked(targets: LabelMatrix, own: LabelMatrix, labels: NDArray[np.int64]) -> Tensor:
    """Return False where a label is a positive that was not drawn for the point: (B, K)."""
    import torch  # noqa: PLC0415

    rest = without(targets, own)
    mask = torch.ones((targets.shape[0], len(labels)), dtype=torch.bool)
    places = np.searchsorted(labels, rest.indices)
    inside = np.append(labels, -1)[places] == rest.indices
    mask[edge_rows(rest)[inside], places[inside]] = False
    return mask
