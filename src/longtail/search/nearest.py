"""VECTORS → NEAREST ROWS: exact up to some hundred thousand rows, by HNSW beyond."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from longtail.errors import DataError
from longtail.search.exact import top_products, unit
from longtail.search.hnsw import HNSW
from longtail.search.quantised import Quantised
from longtail.types import Floats, Ints

EXACT = 200_000  # rows up to which every one is looked at unless asked otherwise
M, EF_CONSTRUCTION, EF_SEARCH = 100, 300, 400

Hits = tuple[Ints, Floats]  # (N, k) rows, -1 where there is none, and their similarities
Find = Callable[[Floats, int], Hits]


def nearest(queries: Floats, rows: Floats, k: int, *, cosine: bool = True, exact: bool | None = None) -> Hits:
    """Find the k rows (R, D) nearest to each query (N, D), best first: by cosine, or by inner product.

    `exact` looks at every row, and is the choice up to EXACT rows; else HNSW finds most of the nearest, and what it
    does not find is padded with -1 and -inf.

    >>> nearest(np.array([[2, 1]], np.float32), np.array([[0, 9], [1, 0], [1, 1]], np.float32), 2)[0].tolist()
    [[2, 1]]
    """
    return among(rows, cosine=cosine, exact=exact)(queries, k)


def among(rows: Floats, *, cosine: bool = True, exact: bool | None = None) -> Find:
    """Make ready to find rows again and again, as `nearest` does."""
    stored = unit(rows) if cosine else rows
    graph = None
    if not (exact if exact is not None else len(rows) <= EXACT):
        graph = HNSW.build(stored, np.zeros(len(rows), np.float32), m=M, ef_construction=EF_CONSTRUCTION)

    def find(queries: Floats, k: int) -> Hits:
        if queries.shape[1:] != rows.shape[1:]:
            raise DataError(f"queries {queries.shape}, rows {rows.shape}", remedy="give both the same dimensions")
        queries = unit(queries) if cosine else queries
        return top_products(queries, stored, k) if graph is None else _led(graph, queries, stored, k)

    return find


def _led(graph: HNSW, queries: Floats, rows: Floats, k: int) -> Hits:
    """Find most of the k best rows by a graph over bytes, and score them by the rows themselves."""
    found, _ = graph.nearest(queries, min(k, len(rows)), ef=max(EF_SEARCH, k))
    scores = np.full(found.shape, -np.inf, np.float32)
    owners, places = np.nonzero(found >= 0)
    scores[owners, places] = Quantised(rows).pairs(queries, owners, found[owners, places])
    order = np.lexsort((found, -scores), axis=1)  # best first, the smaller row among equals
    return np.take_along_axis(found, order, 1).astype(np.int32), np.take_along_axis(scores, order, 1)
