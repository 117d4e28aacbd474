"""VECTORS × VECTORS → BEST PRODUCTS: every row is looked at, in blocks; little more than the k best are ever sorted.

The k-th largest of the maxima of groups of scores cannot lie above the k-th largest score. Scores below it are dropped
in one pass, which is an order of magnitude quicker than to partition all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longtail.types import Floats, Ints

QUERIES = 256  # of a block
CELLS = 2**24  # scores held at once
GROUP = 64  # scores of a group at most


def top_products(
    queries: Floats, rows: Floats, k: int, bias: Floats | None = None, *, block: int = QUERIES, cells: int = CELLS
) -> tuple[Ints, Floats]:
    """Find the k largest products of each query (N, D) with the rows (R, D), exactly: (N, k) rows and their scores.

    `bias` (R,) is added to the scores. The best come first; equal scores go to the smaller row. Where there are fewer
    rows than k, the results have as many columns as there are rows; a query that is not a number finds row -1.

    >>> places, scores = top_products(np.eye(2, dtype=np.float32), np.array([[1, 0], [2, 3], [3, 3]], np.float32), 2)
    >>> places.tolist(), scores.tolist()
    ([[2, 1], [1, 2]], [[3.0, 2.0], [3.0, 3.0]])
    """
    k = min(k, len(rows))
    found, values = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
    for start in range(0, len(queries), block):
        some = queries[start : start + block]
        width = max(cells // len(some), 1)
        for first in range(0, len(rows), width):
            scores = some @ rows[first : first + width].T
            if bias is not None:
                scores += bias[first : first + width]
            known = min(first, k)  # columns that the chunks before have filled
            for row, own in enumerate(scores, start):
                places, best = largest(own, k)
                if known:
                    places = np.append(found[row, :known], places + first)
                    best = np.append(values[row, :known], best)
                    order = np.argsort(-best, kind="stable")[:k]  # the smaller rows stand first
                    places, best = places[order], best[order]
                found[row, : len(places)], values[row, : len(best)] = places, best
    return found, values


def largest(scores: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """Find the k largest scores of (R,), best first, the smaller place among equals; all where there are fewer.

    >>> largest(np.array([1, 3, 2, 3], np.float32), 3)[0].tolist()
    [1, 3, 2]
    """
    size = min(GROUP, len(scores) // (3 * k)) if k else 0
    if size > 1:
        groups = len(scores) // size  # at least 3 k: enough that the bound is close
        tops = scores[: groups * size].reshape(size, groups).max(axis=0)
        places = np.flatnonzero(scores >= np.partition(tops, groups - k)[groups - k])
    else:
        places = np.arange(len(scores))
    order = np.argsort(-scores[places], kind="stable")[:k]
    places = places[order]
    return places, scores[places]


def unit(vectors: Floats) -> Floats:
    """Scale rows to length one, without a copy where they are so already; zero rows stay zero."""
    squares = np.einsum("rd,rd->r", vectors, vectors)
    if ((np.abs(squares - 1) < 1e-5) | (squares == 0)).all():
        return vectors
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)
