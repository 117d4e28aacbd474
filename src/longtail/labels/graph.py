"""LABEL MATRIX → WHAT LABELS KNOW OF EACH OTHER: conditionals, GLaS similarity, random walk, proximity.

Every graph is an (L, L) CSR of float32 with sorted indices; row j belongs to label j. Co-occurrence G = YᵀY is counted
on the pattern of stored entries: a soft target counts as one, so that a label always implies itself with weight 1.

G is never whole in memory. It is computed in blocks of rows of at most BLOCK multiply-adds and each block is cut to its
final edges at once: the peak is four times the indices of the label matrix, the blocks at work, 1.5 times the result.

References: [Gandalf] eq. (6), [GLaS], [ECLARE], [TailMix].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError, nearest
from longtail.labels.blocks import (
    Rows,
    assembled,
    built,
    check_cut,
    edge_rows,
    finished,
    pattern,
    same_edges,
)
from longtail.labels.walk import (
    HEAD,
    HOP_BYTES,
    HOPS,
    RESTART,
    TOP,
    VISIT_BYTES,
    WALKERS,
    normalised,
    random_walk,
    ratios,
    walked,
    without_head,
)
from longtail.machine import memory_usage, threads
from longtail.types import LabelMatrix

__all__ = [
    "KINDS",
    "Estimate",
    "conditionals",
    "estimate",
    "normalised",
    "one_row",
    "proximity",
    "random_walk",
    "ratios",
    "sigmoid_targets",
    "similarity",
]

BLOCK = 2**21  # multiply-adds of one block of the product
SAMPLE = 4096  # labels whose rows an estimate builds
PROCESS = 90 * 2**20  # the interpreter with numpy, scipy and pyarrow, where the system does not report memory usage


class Estimate(NamedTuple):
    """What a graph will take: the peak of a process like this one, with what it holds already, the time, the edges."""

    peak_bytes: int
    seconds: float
    entries: int


def conditionals(targets: LabelMatrix, *, threshold: float = 0.1, top: int | None = None) -> sp.csr_array:
    """Return P(label l | label j) = G_jl / G_jj in row j, where strictly greater than the threshold.

    The self edge is always kept and is 1, also for labels without a point. With `top`, only the strongest edges of a
    row (among equals the smaller label) and the self edge are kept.

    References: [Gandalf] eq. (6).

    >>> from longtail.types import label_matrix
    >>> conditionals(label_matrix(np.array([0, 2, 3]), np.array([0, 1, 0]), (2, 3))).toarray()
    array([[1. , 0.5, 0. ],
           [1. , 1. , 0. ],
           [0. , 0. , 1. ]], dtype=float32)
    """
    return _graph(targets, RULES["conditionals"], threshold, top)


def similarity(targets: LabelMatrix, *, threshold: float = 0.1, top: int | None = None) -> sp.csr_array:
    """Return the symmetric S_jl = ½ (G_jl / G_jj + G_jl / G_ll), where strictly greater than the threshold.

    The self edge is always kept and is 1, also for labels without a point. Keeping only the `top` edges of each row
    may break the symmetry.

    References: [GLaS].

    >>> from longtail.types import label_matrix
    >>> similarity(label_matrix(np.array([0, 2, 3]), np.array([0, 1, 0]), (2, 2))).toarray()
    array([[1.  , 0.75],
           [0.75, 1.  ]], dtype=float32)
    """
    return _graph(targets, RULES["glas"], threshold, top)


def sigmoid_targets(graph: sp.csr_array, *, own: bool = True) -> sp.csr_array:
    """Return σ(S) where S is stored and nothing elsewhere; `own` makes the self edges 1 instead of σ(1) = 0.73.

    Taken literally, σ(0) = ½ would tie every label to every other; the threshold of `similarity` masks those.

    >>> sigmoid_targets(sp.csr_array(np.array([[1, 0.5], [0.5, 1]], np.float32))).toarray().round(3)
    array([[1.   , 0.622],
           [0.622, 1.   ]], dtype=float32)
    """
    values = 1 / (1 + np.exp(-graph.data))
    if own:
        values[edge_rows(graph) == graph.indices] = 1
    return same_edges(graph, values)


def proximity(targets: LabelMatrix, *, top: int | None = None) -> sp.csr_array:
    """Return the binary graph of labels that share a point, without self edges; `top` keeps the most frequent pairs.

    Without `top` every pair of labels that ever met is kept: call `estimate` first where points have many labels.

    References: [TailMix].

    >>> from longtail.types import label_matrix
    >>> proximity(label_matrix(np.array([0, 2, 3]), np.array([0, 1, 0]), (2, 2))).toarray()
    array([[0., 1.],
           [1., 0.]], dtype=float32)
    """
    graph = _graph(targets, RULES["proximity"], 0, top)
    graph.data[:] = 1
    return graph


KINDS: Mapping[str, Callable[..., sp.csr_array]] = MappingProxyType(
    {"conditionals": conditionals, "glas": similarity, "walk": random_walk, "proximity": proximity}
)


def one_row(
    targets: LabelMatrix,
    kind: str,
    label: int,
    *,
    threshold: float = 0.1,
    top: int | None = None,
    seed: int = 0,
) -> sp.csr_array:
    """Return row `label` of a graph, (1, L), as the whole graph would have it, without building the other rows.

    `threshold` acts on conditionals and glas, `seed` on the walk, which has its default settings but for `top`.

    >>> from longtail.types import label_matrix
    >>> one_row(label_matrix(np.array([0, 2, 3]), np.array([0, 1, 0]), (2, 3)), "conditionals", 0).toarray()
    array([[1. , 0.5, 0. ]], dtype=float32)
    """
    _check(kind, threshold, top)
    owner = np.array([label])
    if kind == "walk":
        entries = pattern(without_head(targets, HEAD))
        row = walked(entries, owner, hops=HOPS, restart=RESTART, top=TOP if top is None else top, seed=seed)
    else:
        rule = RULES[kind]
        row = block_rows(_product(targets), owner, rule, threshold if rule.own else 0, top)
    values = np.ones_like(row.values) if kind == "proximity" else row.values
    starts = np.array([0, len(values)], np.int32)
    return sp.csr_array((values, row.columns, starts), shape=(1, targets.shape[1]))


def _check(kind: str, threshold: float, top: int | None) -> None:
    """Refuse an unknown kind of graph and a bad threshold or `top`."""
    if kind not in KINDS:
        raise DataError(f"{kind!r} is not a kind of graph", remedy=nearest(kind, KINDS))
    check_cut(threshold, top)


def estimate(
    targets: LabelMatrix, kind: str = "conditionals", *, threshold: float = 0.1, top: int | None = None
) -> Estimate:
    """Estimate what a graph will take by building the rows of SAMPLE labels drawn at random.

    `threshold` acts on conditionals and glas. A walk is estimated at its default settings.
    """
    _check(kind, threshold, top)
    labels = targets.shape[1]
    now, most = _memory(targets)
    random = np.random.default_rng((SAMPLE, labels, targets.nnz))  # not a seed that may also have made the targets
    sample = np.sort(random.permutation(labels)[:SAMPLE])
    trial = _walk_trial(targets, sample) if kind == "walk" else _product_trial(targets, sample, kind, threshold, top)
    entries = round(trial.edges / max(len(sample), 1) * labels)
    # Finished blocks hold 8 bytes an edge; joining them takes 4 more, when the buffers are free again.
    edges = max(trial.buffers + 8 * entries, 12 * entries)
    peak = max(most, now + trial.copies + edges + 32 * labels)
    return Estimate(peak, float(trial.seconds), entries)


def _memory(targets: LabelMatrix) -> tuple[int, int]:
    """Return the bytes of memory that the process uses with the label matrix, and the most it ever used."""
    targets.indices.max(initial=0)  # pages of a mapped file count from the first time they are read
    matrix_bytes = targets.indices.nbytes + targets.indptr.nbytes + targets.data.nbytes
    return memory_usage() or (PROCESS + matrix_bytes, PROCESS + matrix_bytes)


class _Trial(NamedTuple):
    """What the sampled rows took, and what all rows will take."""

    edges: int  # of the sample
    seconds: float  # of all
    copies: int  # bytes in use from begin to end
    buffers: int  # bytes at work in all threads


def _walk_trial(targets: LabelMatrix, sample: NDArray[Any]) -> _Trial:
    """Walk from the sampled labels."""
    began = time.perf_counter()
    rest = without_head(targets, HEAD)
    entries = pattern(rest)
    prepared = time.perf_counter()
    edges = int(walked(entries, sample, hops=HOPS, restart=RESTART, top=TOP, seed=0).sizes.sum())
    share = len(sample) / max(targets.shape[1], 1)
    seconds = prepared - began + (time.perf_counter() - prepared) / max(share, 1e-9) / threads()
    copies = 4 * rest.nnz + (0 if rest is targets else 5 * rest.nnz)
    some = sample[::16]
    visited = walked(entries, some, hops=HOPS, restart=RESTART, top=None, seed=0).sizes.sum() / max(len(some), 1)
    walker = HOPS * HOP_BYTES + round(visited * VISIT_BYTES)
    return _Trial(edges, seconds, copies, min(threads() * WALKERS, targets.shape[1]) * walker)


def _product_trial(targets: LabelMatrix, sample: NDArray[Any], kind: str, threshold: float, top: int | None) -> _Trial:
    """Multiply the sampled rows."""
    began = time.perf_counter()
    product = _product(targets)
    prepared = time.perf_counter()
    rule = RULES[kind]
    threshold = threshold if rule.own else 0
    edges = int(block_rows(product, sample, rule, threshold, top).sizes.sum())
    work = int(product.work.sum())
    share = product.work[sample].sum() / max(work, 1)
    seconds = prepared - began + (time.perf_counter() - prepared) / max(share, 1e-9) / threads()
    counts = product.labels[sample] @ product.points
    kept = np.count_nonzero(rule.weigh(counts, sample, product.frequencies) > threshold)
    blocks = min(threads() * BLOCK, work) / max(share * work, 1)  # those at work, in samples
    buffers = round(blocks * max(counts.nnz * rule.pair_bytes, 16 * counts.nnz + kept * rule.edge_bytes))
    buffers += threads() * 8 * targets.shape[1]
    copies = (8 if product.points.indices is targets.indices else 12) * targets.nnz + 12 * targets.shape[0]
    return _Trial(edges, seconds, copies, buffers)


def _conditional(counts: sp.csr_array, owners: NDArray[Any], frequencies: NDArray[np.int64]) -> NDArray[np.float64]:
    """Divide by the points of the row's label, in double precision: 3 / 30 is exactly the 0.1 of a threshold."""
    out: NDArray[np.float64] = counts.data / np.repeat(frequencies[owners], np.diff(counts.indptr))
    return out


def _symmetric(counts: sp.csr_array, owners: NDArray[Any], frequencies: NDArray[np.int64]) -> NDArray[np.float64]:
    """Take the mean of both directions."""
    out = _conditional(counts, owners, frequencies)
    out += counts.data / frequencies[counts.indices]
    out /= 2
    return out


def _others(counts: sp.csr_array, owners: NDArray[Any], frequencies: NDArray[np.int64]) -> NDArray[np.float64]:
    """Leave the counts, but none for a label with itself."""
    out: NDArray[np.float64] = counts.data.astype(np.float64)
    out[np.repeat(owners, np.diff(counts.indptr)) == counts.indices] = 0
    return out


class Rule(NamedTuple):
    """How co-occurrence counts become the values of edges, and whether a label has an edge to itself."""

    weigh: Callable[[sp.csr_array, NDArray[Any], NDArray[np.int64]], NDArray[np.float64]]
    own: bool
    pair_bytes: int  # of buffers, for each pair of labels that met, while it is weighed
    edge_bytes: int  # of buffers, for each pair that is kept, while it is put in order


RULES = {
    "conditionals": Rule(_conditional, own=True, pair_bytes=32, edge_bytes=80),
    "glas": Rule(_symmetric, own=True, pair_bytes=40, edge_bytes=80),
    "proximity": Rule(_others, own=False, pair_bytes=24, edge_bytes=48),
}


class Product(Protocol):
    """What counts the points that labels share, wherever its factors are."""

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """The points of each label, (L,)."""

    def counts(self, owners: NDArray[Any]) -> sp.csr_array:
        """Multiply some rows of Yᵀ with Y: (B, L), unsorted."""


@dataclass(frozen=True, eq=False)
class _Product:
    """The factors of YᵀY as counts, which share one array of ones, and what each row costs."""

    points: sp.csr_array  # (N, L)
    labels: sp.csr_array  # (L, N)
    frequencies: NDArray[np.int64]  # (L,) points of each label
    work: NDArray[np.int64]  # (L,) multiply-adds of each row: the sizes of all points of the label

    def counts(self, owners: NDArray[Any]) -> sp.csr_array:
        """Multiply some rows of Yᵀ with Y: (B, L), unsorted."""
        counts: sp.csr_array = self.labels[owners] @ self.points
        return counts


def runs(work: NDArray[np.int64], most: int) -> Iterator[NDArray[Any]]:
    """Cut labels into runs of about `most` multiply-adds; a label with more is a run of its own.

    >>> [run.tolist() for run in runs(np.array([1, 1, 9, 0]), 4)]
    [[0, 1], [2], [3]]
    """
    cumulative = np.cumsum(work + 1)  # an empty row costs something too
    start, before = 0, 0
    while start < len(cumulative):
        stop = max(start + 1, int(np.searchsorted(cumulative, before + most, "right")))
        yield np.arange(start, stop)
        start, before = stop, int(cumulative[stop - 1])


def _product(targets: LabelMatrix) -> _Product:
    """Prepare the factors."""
    entries = pattern(targets)
    ones = np.ones(len(entries.labels), np.int32)
    points = assembled(ones, _owned(entries.labels), _owned(entries.point_starts), entries.shape)
    sizes = np.diff(entries.point_starts).astype(np.int64)
    work = np.zeros(entries.shape[1])
    for start in range(0, len(sizes), 2**17):  # in parts, because the weights are wider than the indices
        part = sizes[start : start + 2**17]
        begin, end = entries.point_starts[[start, start + len(part)]]
        work += np.bincount(entries.labels[begin:end], np.repeat(part, part), len(work))
    return _Product(
        points,
        assembled(ones, entries.points, entries.label_starts, entries.shape[::-1]),
        np.diff(entries.label_starts).astype(np.int64),
        work.astype(np.int64),
    )


def _owned(array: NDArray[Any]) -> NDArray[Any]:
    """Copy a view: scipy would copy the view of a far larger array, such as a mapped file, again at every product."""
    return array if array.base is None else array.copy()


def _graph(targets: LabelMatrix, rule: Rule, threshold: float, top: int | None) -> sp.csr_array:
    """Build the graph of one rule."""
    check_cut(threshold, top)
    product = _product(targets)
    build = partial(block_rows, product, rule=rule, threshold=threshold, top=top)
    return built(runs(product.work, BLOCK), build, targets.shape[1])


def block_rows(product: Product, owners: NDArray[Any], rule: Rule, threshold: float, top: int | None) -> Rows:
    """Multiply some rows of Yᵀ with Y, weigh the counts and keep what is above the threshold."""
    counts = product.counts(owners)
    if not rule.own:
        counts.sort_indices()  # nearly all stay: in place is faster than when finished
    values = rule.weigh(counts, owners, product.frequencies)
    kept = np.flatnonzero(values > threshold)
    rows = np.searchsorted(counts.indptr, kept, "right") - 1
    return finished(owners, rows, counts.indices[kept], values[kept], top=top, own=rule.own)
