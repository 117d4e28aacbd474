"""LABEL MATRIX → GRAPH FILE, by way of the disk: graphs of label matrices that do not fit into memory.

The stored entries are written once, from points to labels and from labels to points, and memory-mapped by whoever
builds rows: a block of rows reads the entries of its own points alone. Finished rows are kept in files, which become
one graph. Every row has the bits that `graph` and `walk` give it in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.files import map_arrays, read_arrays, write_arrays
from longtail.labels.blocks import Pattern, Rows, assembled
from longtail.labels.graph import BLOCK, RULES, block_rows, runs
from longtail.labels.walk import HEAD, HOPS, RESTART, TOP, WALKERS, walked
from longtail.types import LabelMatrix, label_matrix
from longtail.whole import whole_file

CHUNK = 2**22  # entries that are turned round at a time
PART = 2**25  # multiply-adds of the rows of one file
PART_WALKERS = 2**15  # walks of one file


@dataclass(frozen=True)
class GraphSettings:
    """Which graph: a kind, and what its function in `graph.KINDS` takes."""

    kind: str = "conditionals"
    threshold: float = 0.1
    top: int | None = None
    seed: int = 0


def write_entries(path: Path, targets: LabelMatrix, head: int = 0) -> None:
    """Write the entries of a label matrix both ways, without labels of more than `head` points (0: with all)."""
    if not targets.has_canonical_format:
        targets = label_matrix(targets.indptr, targets.indices, targets.shape, targets.data)
    points, labels = targets.shape
    frequencies = np.zeros(labels, np.int64)
    for chunk in _chunks(targets, None):
        frequencies += np.bincount(chunk.labels, minlength=labels)
    common = frequencies > head if head else np.zeros(labels, np.bool_)
    frequencies[common] = 0
    entries = int(frequencies.sum())
    specs = {"point_starts": ("i8", (points + 1,)), "label_starts": ("i8", (labels + 1,)), "work": ("i8", (labels,))}
    with whole_file(path) as partial:
        arrays = map_arrays(partial, specs | {"labels": ("i4", (entries,)), "points": ("i4", (entries,))})
        arrays["label_starts"][1:] = np.cumsum(frequencies)
        cursor, work, place = arrays["label_starts"][:-1].copy(), np.zeros(labels), 0
        for chunk in _chunks(targets, common if common.any() else None):
            stop = place + len(chunk.labels)
            arrays["labels"][place:stop] = chunk.labels
            ends = place + np.cumsum(chunk.sizes)
            arrays["point_starts"][chunk.first + 1 : chunk.first + 1 + len(ends)] = ends
            owners = np.repeat(np.arange(len(chunk.sizes)), chunk.sizes)
            work += np.bincount(chunk.labels, chunk.sizes[owners], labels)
            order = np.argsort(chunk.labels, kind="stable")
            ordered = chunk.labels[order]
            within = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
            arrays["points"][cursor[ordered] + within] = chunk.first + owners[order]
            cursor += np.bincount(chunk.labels, minlength=labels)
            place = stop
        arrays["work"][:] = work.astype(np.int64)


class _Chunk(NamedTuple):
    """Some points with their labels."""

    first: int
    sizes: NDArray[np.int64]
    labels: NDArray[Any]


def _chunks(targets: LabelMatrix, dropped: NDArray[np.bool_] | None) -> Iterator[_Chunk]:
    """Yield points of about CHUNK entries together, without the labels that are dropped."""
    starts, row = targets.indptr, 0
    while row < targets.shape[0]:
        stop = max(row + 1, int(np.searchsorted(starts, starts[row] + CHUNK, "right")) - 1)
        labels = np.array(targets.indices[starts[row] : starts[stop]])
        sizes = np.diff(starts[row : stop + 1]).astype(np.int64)
        if dropped is not None:
            keep = ~dropped[labels]
            sizes = np.bincount(np.repeat(np.arange(len(sizes)), sizes)[keep], minlength=len(sizes))
            labels = labels[keep]
        yield _Chunk(row, sizes, labels)
        row = stop


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a label matrix in a mapped file: what `graph.Product` wants, and what walks want."""

    pattern: Pattern
    work: NDArray[np.int64]

    @classmethod
    def open(cls, path: Path) -> Entries:
        """Map a file of `write_entries`."""
        arrays = read_arrays(path)
        names = ("point_starts", "labels", "label_starts", "points")
        shape = len(arrays["point_starts"]) - 1, len(arrays["label_starts"]) - 1
        return cls(Pattern(shape, *(arrays[name] for name in names)), arrays["work"])

    @cached_property
    def frequencies(self) -> NDArray[np.int64]:
        """The points of each label, (L,)."""
        return np.diff(self.pattern.label_starts)

    def counts(self, owners: NDArray[Any]) -> sp.csr_array:
        """Count what consecutive labels share with all others: (B, L), unsorted; reads their own points alone."""
        starts = np.array(self.pattern.label_starts[owners[0] : owners[-1] + 2])
        mine = self.pattern.points[starts[0] : starts[-1]]
        points, places = np.unique(mine, return_inverse=True)
        begins = self.pattern.point_starts[points]
        sizes = self.pattern.point_starts[points + 1] - begins
        ends = np.cumsum(sizes)
        labels = self.pattern.labels[np.arange(sizes.sum()) + np.repeat(begins - (ends - sizes), sizes)]
        ones = np.ones(max(len(labels), len(places)), np.int32)
        left = assembled(ones[: len(places)].copy(), places, starts - starts[0], (len(owners), len(points)))
        right = assembled(
            ones[: len(labels)].copy(), labels, np.concatenate([[0], ends]), (len(points), self.pattern.shape[1])
        )
        counts: sp.csr_array = left @ right
        return counts

    def parts(self, kind: str) -> list[tuple[int, int]]:
        """Cut all labels into runs whose rows become one file each."""
        labels = len(self.work)
        if kind == "walk":
            return [(start, min(start + PART_WALKERS, labels)) for start in range(0, labels, PART_WALKERS)]
        return [(int(run[0]), int(run[-1]) + 1) for run in runs(self.work, PART)]

    def rows(self, start: int, stop: int, settings: GraphSettings) -> Iterator[Rows]:
        """Build rows of a graph, block by block."""
        if settings.kind == "walk":
            top = TOP if settings.top is None else settings.top
            for first in range(start, stop, WALKERS):
                owners = np.arange(first, min(first + WALKERS, stop))
                yield walked(self.pattern, owners, hops=HOPS, restart=RESTART, top=top, seed=settings.seed)
            return
        rule = RULES[settings.kind]
        for run in runs(self.work[start:stop], BLOCK):
            yield block_rows(self, start + run, rule, settings.threshold if rule.own else 0, settings.top)


def head_of(kind: str) -> int:
    """Return how many points a label may have to be in a graph; 0: any number."""
    return HEAD if kind == "walk" else 0


def write_rows(path: Path, rows: Iterator[Rows], kind: str) -> int:
    """Write finished rows to a file, whole or not at all; return how many edges they have."""
    parts = list(rows)
    values = np.concatenate([part.values for part in parts])
    if kind == "proximity":
        values[:] = 1
    sizes, columns = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    write_arrays(path, {"sizes": sizes.astype(np.int64), "columns": columns.astype(np.int32), "values": values})
    return len(values)


def join_rows(paths: Sequence[Path], out: Path, labels: int) -> int:
    """Join files of rows, in order, to the file of a graph, one at a time; return how many edges it has."""
    sizes = np.concatenate([np.zeros(1, np.int64), *(read_arrays(path)["sizes"] for path in paths)])
    starts = np.cumsum(sizes)
    edges = int(starts[-1])
    index = "i4" if edges < 2**31 else "i8"
    with whole_file(out) as partial:
        specs = {"indptr": (index, (labels + 1,)), "indices": ("i4", (edges,)), "values": ("f4", (edges,))}
        arrays = map_arrays(partial, specs | {"shape": ("i8", (2,))})
        arrays["shape"][:] = labels
        arrays["indptr"][:] = starts
        place = 0
        for path in paths:
            rows = read_arrays(path)
            stop = place + len(rows["values"])
            arrays["indices"][place:stop], arrays["values"][place:stop] = rows["columns"], rows["values"]
            place = stop
    return edges
