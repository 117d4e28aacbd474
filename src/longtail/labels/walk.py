"""LABEL MATRIX → VISITS OF RANDOM WALKS: label to point to label, with restarts.

References: [ECLARE] label correlation graph; methods §3.3.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError
from longtail.labels.blocks import Pattern, Rows, built, check_cut, edge_rows, finished, pattern, same_edges
from longtail.types import Ints, LabelMatrix

HOPS, RESTART, TOP, HEAD = 400, 0.8, 10, 500  # the settings of ECLARE
WALKERS = 2**11  # labels that walk together: few enough that their state stays in the cache
HOP_BYTES, VISIT_BYTES = 9, 70  # buffers of a block, for each walker and hop, and for each label that it visits
GOLDEN = 0x9E3779B97F4A7C15  # the increment of the SplitMix64 generator
WORD = 2**64 - 1

Bits = NDArray[np.uint64]


def random_walk(
    targets: LabelMatrix,
    *,
    hops: int = HOPS,
    restart: float = RESTART,
    top: int | None = TOP,
    head: int = HEAD,
    seed: int = 0,
) -> sp.csr_array:
    """Count the visits of one walk of `hops` hops from each label that restarts there now and then.

    A hop picks a point of the present label, then a label of that point, both uniformly; before each hop the walk goes
    back to its own label with probability `restart`. Labels with more than `head` points (0: none) are taken out before
    and finally get only a self edge of weight 1. The `top` visits of each row and its self edge are kept (None: all);
    a self edge that was never walked is set to 1. A row depends on the targets, the seed and its label, not on blocks
    or threads.

    References: [ECLARE] label correlation graph.

    >>> from longtail.types import label_matrix
    >>> random_walk(label_matrix(np.array([0, 1, 2]), np.array([0, 1]), (2, 2)), hops=5).toarray()
    array([[5., 0.],
           [0., 5.]], dtype=float32)
    """
    check_cut(0, top)
    if hops < 1 or head < 0 or not 0 <= restart <= 1:
        raise DataError(
            f"a walk of {hops} hops with restart {restart} and head {head}",
            remedy="use at least 1 hop, a restart from 0 to 1, and a head of 0 (off) or more points",
        )
    entries = pattern(without_head(targets, head))
    labels = entries.shape[1]
    blocks = (np.arange(start, min(start + WALKERS, labels)) for start in range(0, labels, WALKERS))
    return built(blocks, partial(walked, entries, hops=hops, restart=restart, top=top, seed=seed), labels)


def ratios(walk: sp.csr_array) -> sp.csr_array:
    """Divide each row of visits by its self edge and clip to 1: a walk may see a neighbour more often than its home.

    >>> ratios(sp.csr_array(np.array([[4, 2], [6, 3]], np.float32))).toarray()
    array([[1. , 0.5],
           [1. , 1. ]], dtype=float32)
    """
    home = walk.diagonal()
    if not (home > 0).all():
        raise DataError(f"row {int(np.argmin(home))} has no self edge", remedy="pass what random_walk returned")
    return same_edges(walk, np.minimum(walk.data / home[edge_rows(walk)], 1))


def normalised(graph: sp.csr_array) -> sp.csr_array:
    """Return D_r^-½ W D_c^-½ with the row and the column sums of W; it is symmetric only where W is.

    References: [ECLARE].

    >>> normalised(sp.csr_array(np.array([[1, 3], [0, 1]], np.float32))).toarray()
    array([[0.5 , 0.75],
           [0.  , 0.5 ]], dtype=float32)
    """
    rows = edge_rows(graph)
    row_sums = np.bincount(rows, graph.data, graph.shape[0])
    column_sums = np.bincount(graph.indices, graph.data, graph.shape[1])
    return same_edges(graph, graph.data / np.sqrt(row_sums[rows] * column_sums[graph.indices]))


def without_head(targets: LabelMatrix, head: int) -> LabelMatrix:
    """Take out the labels with more than `head` points (0: none) from the pattern of a label matrix."""
    common = np.bincount(targets.indices, minlength=targets.shape[1]) > (head or targets.shape[0])
    if not common.any():
        return targets
    dropped = common[targets.indices]
    starts = targets.indptr - np.searchsorted(np.flatnonzero(dropped), targets.indptr).astype(targets.indptr.dtype)
    kept = targets.indices[~dropped]
    return sp.csr_array((np.ones(len(kept), np.int8), kept, starts), shape=targets.shape)


def walked(entries: Pattern, owners: NDArray[Any], *, hops: int, restart: float, top: int | None, seed: int) -> Rows:
    """Walk from a block of labels and count; labels without a point stay alone."""
    walkers = np.flatnonzero(entries.label_starts[owners + 1] > entries.label_starts[owners])
    if len(walkers) == 0:
        return finished(owners, walkers, np.zeros(0, np.int32), np.zeros(0), top=top)
    visits = np.ascontiguousarray(_visits(entries, owners[walkers], hops, restart, seed).T)  # (B, hops)
    visits.sort(axis=1)
    new = np.ones(visits.shape, np.bool_)
    np.not_equal(visits[:, 1:], visits[:, :-1], out=new[:, 1:])
    begins = np.flatnonzero(new)
    counts = np.diff(begins, append=visits.size)
    return finished(owners, walkers[begins // hops], visits.ravel()[begins], counts, top=top)


def _visits(entries: Pattern, homes: NDArray[Any], hops: int, restart: float, seed: int) -> Ints:
    """Return the label that each walker reaches at each hop, (hops, B)."""
    visits = np.empty((hops, len(homes)), np.int32)
    stream = _mixed(_mixed(np.array([seed & WORD], np.uint64)) + homes.astype(np.uint64) * np.uint64(GOLDEN))
    here = homes
    for hop in range(hops):
        if hop:
            coin = _draw(stream, 2 * hop) >> np.uint64(11)
            here = np.where(coin * 2.0**-53 < restart, homes, here)
        choice = _draw(stream, 2 * hop + 1)
        point = _pick(choice >> np.uint64(32), entries.label_starts, entries.points, here)
        here = _pick(choice & np.uint64(2**32 - 1), entries.point_starts, entries.labels, point)
        visits[hop] = here
    return visits


def _pick(bits: Bits, starts: NDArray[Any], items: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Choose one stored item of each row: 32 random bits times the size of the row, without the lower 32."""
    begin = starts.take(rows)
    size = (starts.take(rows + 1) - begin).astype(np.uint64)
    chosen: NDArray[Any] = items.take(begin + ((bits * size) >> np.uint64(32)).astype(np.int64))
    return chosen


def _draw(stream: Bits, number: int) -> Bits:
    """Return the given number of each walker's own stream of random words."""
    return _mixed(stream + np.uint64(number * GOLDEN & WORD))


def _mixed(state: Bits) -> Bits:
    """Mix the bits of a SplitMix64 state: a generator that can be asked for any draw of any label, in any order."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
