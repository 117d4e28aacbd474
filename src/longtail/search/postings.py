"""QUERIES × LISTS OF WORDS → NEAREST ROWS, compiled: what `inverted` does, without the lock of Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.machine import compiled
from longtail.search.prefetching import prefetch
from longtail.search.selection import added, insert, last_of
from longtail.types import Floats, Ints

Starts = NDArray[Any]
Places = NDArray[np.int64]


@compiled
def rarest(words: Ints, list_starts: Starts, limit: int) -> Places:
    """Choose the words whose lists are read, shortest list first: places among the words of a query."""
    order = np.empty(len(words), np.int64)
    for place in range(len(words)):
        size = list_starts[words[place] + 1] - list_starts[words[place]]
        at = place
        while at > 0:
            before = words[order[at - 1]]
            other = list_starts[before + 1] - list_starts[before]
            if other < size or (other == size and list_starts[before] <= list_starts[words[place]]):
                break
            order[at] = order[at - 1]
            at -= 1
        order[at] = place
    read, chosen = 0, 0
    for at in range(len(words)):
        word = words[order[at]]
        size = list_starts[word + 1] - list_starts[word]
        read += size
        if size > 0 and (read <= limit or read == size):
            order[chosen] = order[at]
            chosen += 1
    return order[:chosen]


@compiled
def similar(row: int, row_starts: Starts, row_words: Ints, row_weights: Floats, query: Floats) -> np.float32:
    """Multiply a row and a query with a number for every word, to six digits."""
    total = 0.0
    for at in range(row_starts[row], row_starts[row + 1]):
        total += np.float64(row_weights[at]) * np.float64(query[row_words[at]])
    return np.float32(np.rint(total * 1e6) / 1e6)


@compiled
def similarities(
    words: Ints, weights: Floats, rows: Places, row_starts: Starts, row_words: Ints, row_weights: Floats,
    query: Floats, out: Floats,
) -> None:  # fmt: skip
    """Multiply chosen rows and one query; `query` is zeros for every word, and is so again afterwards."""
    for at in range(len(words)):
        query[words[at]] = weights[at]
    for place in range(len(rows)):
        out[place] = similar(rows[place], row_starts, row_words, row_weights, query)
    for at in range(len(words)):
        query[words[at]] = 0


@compiled
def nearest(
    query_starts: Starts, query_words: Ints, query_weights: Floats, first: int,
    list_starts: Starts, list_rows: NDArray[Any], list_weights: Floats,
    row_starts: Starts, row_words: Ints, row_weights: Floats,
    limit: int, spare: int, sums: Floats, query: Floats, found: Ints, values: Floats,
) -> None:  # fmt: skip
    """Find the nearest rows of queries from the `first` on, as many as `found` (N, n) has place for, best first.

    `sums` and `query` are zeros for every row and every word, and are so again afterwards.
    """
    n = found.shape[1]
    wide = n + spare
    for place in range(len(found)):
        begin, end = query_starts[first + place], query_starts[first + place + 1]
        words, weights = query_words[begin:end], query_weights[begin:end]
        chosen = rarest(words, list_starts, limit)
        read = 0
        for at in chosen:
            read += list_starts[words[at] + 1] - list_starts[words[at]]
        touched, count = np.empty(read, np.uintp), 0
        for at in chosen:
            weight = weights[at]
            for entry in range(list_starts[words[at]], list_starts[words[at] + 1]):
                row, part = np.uintp(list_rows[entry]), weight * list_weights[entry]  # no place from the end
                touched[count] = row
                count += (sums[row] == 0) & (part > 0)  # a branch would wait for the memory
                sums[row] += part
        favour = np.empty(count, np.float32)
        for at in range(count):
            favour[at] = sums[touched[at]]
            sums[touched[at]] = 0
        least = last_of(favour, wide) if count > wide else -1.0
        kept = touched[:count][favour >= least].astype(np.int64)
        for at in range(len(words)):
            query[words[at]] = weights[at]
        for row in kept:
            prefetch(row_starts, row)
        for row in kept:
            prefetch(row_words, row_starts[row])
            prefetch(row_weights, row_starts[row])
        filled = 0
        for row in kept:
            value = similar(row, row_starts, row_words, row_weights, query)
            if value > 0:
                filled = insert(found[place], values[place], filled, n, row, value)
        for at in range(len(words)):
            query[words[at]] = 0


@compiled
def votes(
    near: NDArray[Any], worth: Floats, starts: Starts, columns: Ints, weights: Floats
) -> tuple[Places, Places, Floats]:
    """Add up chosen rows (N, n) of a matrix, each times its worth, up to the first -1: where each sum ends, and all."""
    size = 0
    for row in near.flat:
        size += starts[row + 1] - starts[row] if row >= 0 else 0
    ends, names, values, count = (
        np.zeros(len(near) + 1, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.float32),
        0,
    )
    for query in range(len(near)):
        first = last = count
        for place in range(near.shape[1]):
            row = near[query, place]
            if row < 0:
                break
            for entry in range(starts[row], starts[row + 1]):
                names[last], values[last] = columns[entry], worth[query, place] * weights[entry]
                last += 1
        own, sums = added(names[first:last], values[first:last])
        count += len(own)
        names[first:count], values[first:count], ends[query + 1] = own, sums, count
    return ends, names[:count], values[:count]
