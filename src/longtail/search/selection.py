"""NUMBERS → THE LARGEST OF THEM, compiled where there is a compiler: what the searches of a query choose by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.machine import compiled_if_possible
from longtail.types import Floats


@compiled_if_possible
def last_of(values: Floats, count: int) -> float:
    """Return the `count`-th largest value, by a heap of so many: most values are only compared with its root."""
    heap = values[:count].copy()
    for place in range(count):  # a leaf rises
        value, at = heap[place], place
        while at > 0 and heap[(at - 1) >> 1] > value:
            heap[at] = heap[(at - 1) >> 1]
            at = (at - 1) >> 1
        heap[at] = value
    for place in range(count, len(values)):
        value = values[place]
        if value <= heap[0]:
            continue
        at = 0  # the root sinks
        while True:
            child = 2 * at + 1
            if child >= count:
                break
            if child + 1 < count and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= value:
                break
            heap[at] = heap[child]
            at = child
        heap[at] = value
    return float(heap[0])


@compiled_if_possible
def insert(labels: NDArray[Any], scores: Floats, count: int, most: int, label: int, score: float | np.float32) -> int:
    """Insert into a list that descends by score, of at most `most`; the smaller of equals first. Returns its length."""
    if count == most:
        last = most - 1
        if score < scores[last] or (score == scores[last] and label > labels[last]):
            return count
        place = last
    else:
        place = count
        count += 1
    while place > 0 and (score > scores[place - 1] or (score == scores[place - 1] and label < labels[place - 1])):
        labels[place], scores[place] = labels[place - 1], scores[place - 1]
        place -= 1
    labels[place], scores[place] = label, score
    return count


@compiled_if_possible
def added(labels: NDArray[np.int64], scores: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Add up the scores of each label, in the order in which they stand: (labels ascending, sums)."""
    order = np.argsort(labels, kind="mergesort")
    names, sums, count = np.empty(len(labels), np.int64), np.empty(len(labels), np.float32), 0
    for place in order:
        if count and names[count - 1] == labels[place]:
            sums[count - 1] += scores[place]
        else:
            names[count], sums[count] = labels[place], scores[place]
            count += 1
    return names[:count], sums[:count]


@compiled_if_possible
def leading(
    labels: NDArray[Any], scores: Floats, n: int, twice: int
) -> tuple[NDArray[np.int64], Floats]:  # fmt: skip
    """Find the n best labels, the smaller first among equals; one may stand so many times, then its best counts."""
    most = min(n * twice, len(labels))
    best, values, count = np.empty(most, np.int64), np.empty(most, np.float32), 0
    for place in range(len(labels)):
        count = insert(best, values, count, most, labels[place], scores[place])
    kept = 0
    for place in range(count):
        new = kept < n
        for before in range(kept):
            new &= best[before] != best[place]
        if new:
            best[kept], values[kept] = best[place], values[place]
            kept += 1
    return best[:kept], values[:kept]
