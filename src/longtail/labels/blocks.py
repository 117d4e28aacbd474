"""LABEL MATRIX → GRAPH, BLOCK BY BLOCK: what all label graphs share.

A graph is built in blocks of rows, one thread a core; each block is cut to its final edges before it is kept, so that
memory is bounded by the block and not by the number of pairs of labels that ever met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError
from longtail.machine import in_threads
from longtail.types import Floats, Ints, LabelMatrix, label_matrix


@dataclass(frozen=True, eq=False)
class Pattern:
    """The stored entries of a label matrix, read from points to labels and from labels to points."""

    shape: tuple[int, int]
    point_starts: NDArray[Any]  # (N + 1,)
    labels: NDArray[Any]  # the labels of point 0, of point 1 …
    label_starts: NDArray[Any]  # (L + 1,)
    points: NDArray[Any]  # the points of label 0, of label 1 …


class Rows(NamedTuple):
    """The finished edges of some rows of a graph, sorted."""

    sizes: NDArray[np.int64]
    columns: Ints
    values: Floats


def pattern(targets: LabelMatrix) -> Pattern:
    """Read the stored entries both ways; a soft target counts like a hard one and a repeated label counts once."""
    if not targets.has_canonical_format:
        targets = label_matrix(targets.indptr, targets.indices, targets.shape, targets.data)
    ones = np.ones(targets.nnz, np.int8)  # the transposition wants values: give it the smallest
    columns = assembled(ones, targets.indices, targets.indptr, targets.shape).tocsc()
    return Pattern(targets.shape, targets.indptr, targets.indices, columns.indptr, columns.indices)


def assembled(
    values: NDArray[Any], indices: NDArray[Any], starts: NDArray[Any], shape: tuple[int, int]
) -> sp.csr_array:
    """Assemble a CSR from its arrays as they are; scipy's constructor would copy those of a mapped file."""
    matrix = sp.csr_array(shape, dtype=values.dtype)
    matrix.data, matrix.indices, matrix.indptr = values, indices, starts
    return matrix


def finished(
    owners: NDArray[Any], rows: NDArray[Any], columns: Ints, values: NDArray[Any], *, top: int | None, own: bool = True
) -> Rows:
    """Sort the edges, keep the `top` of each row, and see to the self edge (1 where there was none).

    `owners` names the label of each row; `rows` (ascending) and `columns` place the values. Among equals the smaller
    label wins; with `own` the self edge stays whatever its value.
    """
    values = values.astype(np.float32)
    width = int(max(columns.max(initial=0), owners.max(initial=0))) + 1
    places = rows.astype(np.int64) * width + columns
    if (places[1:] < places[:-1]).any():
        order = np.argsort(places)
        rows, columns, values, places = rows[order], columns[order], values[order], places[order]
    if top is not None:
        keep = _strongest(rows, values, top, len(owners))
        if own:
            keep |= owners[rows] == columns
        rows, columns, values, places = rows[keep], columns[keep], values[keep], places[keep]
    sizes = np.bincount(rows, minlength=len(owners))
    if own:
        no_self = np.ones(len(owners), np.bool_)
        no_self[rows[owners[rows] == columns]] = False
        missing = np.flatnonzero(no_self)
        gaps = np.searchsorted(places, missing * width + owners[missing])
        columns, values = np.insert(columns, gaps, owners[missing]), np.insert(values, gaps, 1)
        sizes[missing] += 1
    return Rows(sizes, columns, values)


def _strongest(rows: NDArray[Any], values: Floats, top: int, count: int) -> NDArray[np.bool_]:
    """Mark the `top` largest positive values of each row, the first among equals.

    Row and value fit in one word (the bits of positive floats sort like the floats), so that one plain sort finds the
    smallest value each row may keep: far faster than ordering the edges themselves.
    """
    words = (rows.astype(np.uint64) << np.uint64(32)) | (~values.view(np.uint32)).astype(np.uint64)
    ends = np.cumsum(np.bincount(rows, minlength=count))
    begins = np.concatenate([[0], ends[:-1]])
    last = np.sort(words)[np.minimum(begins + top, ends)[rows] - 1]
    keep: NDArray[np.bool_] = words < last
    ties = words == last
    places = top - np.bincount(rows[keep], minlength=count)  # what is left for equals of the last value
    before = np.concatenate([[0], np.cumsum(ties)])
    keep |= ties & (before[1:] - before[begins][rows] <= places[rows])
    return keep


def built(blocks: Iterable[NDArray[Any]], build: Callable[[NDArray[Any]], Rows], labels: int) -> sp.csr_array:
    """Build consecutive blocks of rows in threads and join them to an (L, L) graph."""
    return _joined(in_threads(build, blocks), labels)


def _joined(parts: Iterator[Rows], labels: int) -> sp.csr_array:
    """Join blocks; the parts are freed one column at a time, so that not everything is in memory twice."""
    sizes, columns, values = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    for part in parts:
        sizes.append(part.sizes)
        columns.append(part.columns)
        values.append(part.values)
    starts = np.cumsum(np.concatenate(sizes))
    all_columns = np.concatenate(columns)
    columns.clear()
    all_values = np.concatenate(values)
    index_type = np.int32 if len(all_columns) < 2**31 else np.int64
    graph = sp.csr_array((all_values, all_columns, starts.astype(index_type)), shape=(labels, labels))
    graph.has_canonical_format = True
    return graph


def edge_rows(graph: sp.csr_array) -> NDArray[np.int64]:
    """Name the row of every stored edge."""
    return np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))


def laid_out(graph: sp.csr_array, values: NDArray[Any], fill: Any) -> NDArray[Any]:
    """Lay values of the edges of a graph (N, L) out in rows of one length: (N, most), `fill` where there are fewer.

    >>> laid_out(sp.csr_array(np.array([[0, 5], [0, 0], [6, 7]])), np.array([5, 6, 7]), -1).tolist()
    [[5, -1], [-1, -1], [6, 7]]
    """
    sizes = np.diff(graph.indptr)
    out = np.full((graph.shape[0], max(1, int(sizes.max(initial=0)))), fill, values.dtype)
    out[edge_rows(graph), np.arange(graph.nnz) - np.repeat(graph.indptr[:-1], sizes)] = values
    return out


def same_edges(graph: sp.csr_array, values: NDArray[Any]) -> sp.csr_array:
    """Give the edges of a graph new values."""
    return sp.csr_array((values.astype(np.float32), graph.indices.copy(), graph.indptr.copy()), shape=graph.shape)


def unit_rows(matrix: sp.csr_array) -> sp.csr_array:
    """Scale sparse rows to length one; empty rows stay empty."""
    rows = edge_rows(matrix)
    squares = np.bincount(rows, np.square(matrix.data, dtype=np.float64), matrix.shape[0])
    values = (matrix.data / np.sqrt(np.maximum(squares, 1e-24))[rows]).astype(np.float32)
    return assembled(values, matrix.indices, matrix.indptr, matrix.shape)


def check_cut(threshold: float, top: int | None) -> None:
    """Refuse a threshold or a number of edges that no graph can have."""
    if not 0 <= threshold <= 1:
        raise DataError(f"threshold {threshold}", remedy="use a number from 0 to 1")
    if top is not None and top < 1:
        raise DataError(f"top {top}", remedy="keep at least 1 edge a row, or None for all")
