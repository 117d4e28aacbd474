"""QUERIES × GRAPH OF NEIGHBOURS → NEAREST ROWS, compiled: the search of HNSW over rows of bytes.

From the entry the way leads to the nearest neighbour, level by level; on the lowest level the best so far are kept in
sight, and the neighbours of the best of them that was not looked at yet come next. Rows of neighbours that are new are
asked for together, so that the memory is waited for once.

References: Malkov and Yashunin 2018, "Efficient and robust approximate nearest neighbor search", algorithms 2 and 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.machine import compiled
from longtail.search.prefetching import prefetch
from longtail.types import Floats, Ints

Bytes = NDArray[np.uint8]
LINE = 64  # bytes that come from the memory at once
AHEAD = 8  # rows that are asked for before they are needed
OLDEST = 255  # marks of rows that were seen before all of them are cleared


@compiled
def product(query: Floats, row: Bytes) -> np.float32:
    """Multiply a query and a row."""
    total = np.float32(0)
    for at in range(len(query)):
        total += query[at] * np.float32(row[at])
    return total


@compiled
def products(query: Floats, rows: Bytes, places: NDArray[Any], out: Floats) -> None:
    """Multiply a query and chosen rows."""
    for place in places:
        for at in range(0, rows.shape[1], LINE):
            prefetch(rows, place * rows.shape[1] + at)
    for at in range(len(places)):
        out[at] = product(query, rows[places[at]])


@compiled
def pair_products(queries: Floats, owners: NDArray[Any], rows: Bytes, places: NDArray[Any], out: Floats) -> None:
    """Multiply pairs: query owners[i] with row places[i]."""
    for pair in range(len(places)):
        if pair + AHEAD < len(places):
            for at in range(0, rows.shape[1], LINE):
                prefetch(rows, places[pair + AHEAD] * rows.shape[1] + at)
        out[pair] = product(queries[owners[pair]], rows[places[pair]])


@compiled
def place_in(scores: Floats, count: int, score: float) -> int:
    """Find where a score stands in a list that descends, behind its equals."""
    place = count
    while place > 0 and scores[place - 1] < score:
        place -= 1
    return place


@compiled
def search(
    queries: Floats, rows: Bytes, neighbours: Ints, starts: NDArray[np.int64], m: int, entry: int, top: int, ef: int,
    seen: Bytes, found: NDArray[np.int64], values: Floats,
) -> None:  # fmt: skip
    """Find the rows with the largest products, as many as `found` (N, n) has place for, n at most `ef`; best first.

    The lists of row r begin at starts[r]: 2 m neighbours on the lowest level, m on each of those up to `top`. `seen`
    (R + 1,) holds the mark of the last query that saw a row, and behind them the last mark; zeros to begin with.
    """
    best, scores, done = np.empty(ef + 1, np.int64), np.empty(ef + 1, np.float32), np.empty(ef + 1, np.bool_)
    fresh, fresh_scores = np.empty(2 * m, np.int64), np.empty(2 * m, np.float32)
    for number in range(len(queries)):
        query, at = queries[number], entry
        score = product(query, rows[at])
        for level in range(top, 0, -1):
            moved = True
            while moved:
                begin, moved = starts[at] + (level + 1) * m, False
                for place in range(begin, begin + m):
                    other = neighbours[place]
                    if other < 0:
                        break
                    own = product(query, rows[other])
                    if own > score:
                        at, score, moved = other, own, True
        mark = seen[len(rows)] + 1
        if mark > OLDEST:
            seen[:] = 0
            mark = 1
        seen[len(rows)] = mark
        best[0], scores[0], done[0], count, seen[at] = at, score, False, 1, mark
        place = 0
        while place < count:
            begin, new = starts[best[place]], 0
            done[place] = True
            for step in range(begin, begin + 2 * m):
                other = neighbours[step]
                if other < 0:
                    break
                fresh[new] = other
                new += seen[other] != mark
                seen[other] = mark
            products(query, rows, fresh[:new], fresh_scores)
            next_place = place + 1
            for step in range(new):
                own = fresh_scores[step]
                if count == ef and own <= scores[ef - 1]:
                    continue
                into = place_in(scores, count, own)
                for later in range(min(count, ef - 1), into, -1):
                    best[later], scores[later], done[later] = best[later - 1], scores[later - 1], done[later - 1]
                best[into], scores[into], done[into] = fresh[step], own, False
                count = min(count + 1, ef)
                next_place = min(next_place, into)
            place = next_place
            while place < count and done[place]:
                place += 1
        for place in range(min(count, found.shape[1])):
            found[number, place], values[number, place] = best[place], scores[place]
