"""VECTORS → NEAREST ROWS: exact up to some hundred thousand rows, in the nearest clusters beyond."""

from __future__ import annotations

from collections.abc import Callable

from longtail.errors import DataError
from longtail.search.exact import top_products, unit
from longtail.search.ivf import IVF
from longtail.search.quantised import Quantised
from longtail.types import Floats, Ints

EXACT = 200_000  # rows up to which every one is looked at unless asked otherwise
PROBES = 8  # clusters that are looked into for every five rows that are wanted

Hits = tuple[Ints, Floats]  # (N, k) rows, -1 where there is none, and their similarities
Find = Callable[[Floats, int], Hits]


def nearest(queries: Floats, rows: Floats, k: int, *, cosine: bool = True, exact: bool | None = None) -> Hits:
    """Find the k rows (R, D) nearest to each query (N, D), best first: by cosine, or by inner product.

    `exact` looks at every row, and is the choice up to EXACT rows; else most of the nearest are found.

    >>> import numpy as np
    >>> nearest(np.array([[2, 1]], np.float32), np.array([[0, 9], [1, 0], [1, 1]], np.float32), 2)[0].tolist()
    [[2, 1]]
    """
    return among(rows, cosine=cosine, exact=exact)(queries, k)


def among(rows: Floats, *, cosine: bool = True, exact: bool | None = None) -> Find:
    """Make ready to find rows again and again, as `nearest` does."""
    stored = unit(rows) if cosine else rows
    ivf = None
    if not (exact if exact is not None else len(rows) <= EXACT):
        ivf = IVF.balanced(stored).searching(PROBES)

    def find(queries: Floats, k: int) -> Hits:
        if queries.shape[1:] != rows.shape[1:]:
            raise DataError(f"queries {queries.shape}, rows {rows.shape}", remedy="give both the same dimensions")
        queries = unit(queries) if cosine else queries
        return top_products(queries, stored, k) if ivf is None else ivf.search(queries, Quantised(stored), k)

    return find
