"""QUERY → NEAREST ROWS, most of them: a graph of neighbours (HNSW of faiss) over vectors of one byte a number.

The graph is kept as plain arrays and put together when it is opened: nothing that a stranger wrote is handed to a
parser of faiss, and every edge is checked to stay inside.

References: Malkov and Yashunin 2018, "Efficient and robust approximate nearest neighbor search".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.arrays import Array, checked
from longtail.errors import MissingExtra, ModelError
from longtail.files import released
from longtail.machine import compiles, threads
from longtail.search.inverted import Scratch
from longtail.search.quantised import REMEDY, Quantised
from longtail.types import Floats, Ints, Progress

M, EF_CONSTRUCTION = 32, 200
MAX_LEVELS, MAX_EF = 6, 2**16  # levels that faiss gives to a row with M links at most
BEST = 5  # results that ef_search is chosen for; for more it grows with their number
QUICK = 512  # rows kept in sight at most by our own search, which keeps them in order
BLOCK = 65536  # rows that are linked at once; in smaller blocks the graph gets worse
SCHEMA = (
    Array("hnsw.levels", ("labels",), ("int32",), 1, MAX_LEVELS),
    Array("hnsw.neighbours", ("edges",), ("int32",), -1, below="labels"),
    Array("hnsw.settings", (3,), ("int64",), 0, 2**31),
)


@dataclass(frozen=True, eq=False)
class HNSW:
    """Vectors as bytes, and the neighbours of each on every level that it stands on.

    >>> rows = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    >>> graph = HNSW.build(rows, np.zeros(200, np.float32))
    >>> graph.nearest(rows[:1] * 9, 3)[0].shape
    (1, 3)
    """

    stored: Quantised  # (R, D), or (R, D + 2): bias, and what is missing to the largest length
    neighbours: Ints  # all lists, one row after the other, level by level; -1 where there are fewer
    levels: Ints  # (R,) on how many levels each row stands
    entry: int
    m: int
    ef_search: int = 64  # how many are kept in sight, for the BEST results
    seen: Scratch = field(default_factory=Scratch, repr=False)

    @classmethod
    def build(
        cls, vectors: Floats, bias: Floats, *, m: int = M, ef_construction: int = EF_CONSTRUCTION,
        progress: Progress | None = None,
    ) -> HNSW:  # fmt: skip
        """Link every row to others that are near."""
        faiss = _faiss()
        stored = Quantised.of(_extended(vectors, bias), "int8")
        index = _empty(stored, m)
        index.hnsw.efConstruction = ef_construction
        for start in range(0, len(vectors), BLOCK):
            if progress:
                progress("linking labels", start, len(vectors))
            index.add(stored.take(slice(start, start + BLOCK)))
        neighbours = faiss.vector_to_array(index.hnsw.neighbors).astype(np.int32)
        levels = faiss.vector_to_array(index.hnsw.levels).astype(np.int32)
        return cls(stored, neighbours, levels, int(index.hnsw.entry_point), m)

    def searching(self, ef_search: int) -> HNSW:
        """Keep more or fewer in sight: a larger ef_search finds more and takes longer."""
        changed = replace(self, ef_search=ef_search)
        changed.__dict__["index"] = self.index
        return changed

    def plain(self, dim: int) -> bool:
        """Return whether the rows are the vectors, with nothing added."""
        return bool(self.stored.rows.shape[1] == dim)

    @cached_property
    def index(self) -> Any:
        """The graph in faiss."""
        faiss = _faiss()
        index = _empty(self.stored, self.m)
        index.storage.ntotal = index.ntotal = len(self.levels)
        faiss.copy_array_to_vector(
            np.ascontiguousarray(self.stored.rows).ravel(), faiss.downcast_index(index.storage).codes
        )
        graph = index.hnsw
        faiss.copy_array_to_vector(self.neighbours, graph.neighbors)
        faiss.copy_array_to_vector(self.levels, graph.levels)
        faiss.copy_array_to_vector(self._offsets().astype(np.uint64), graph.offsets)
        graph.entry_point, graph.max_level = self.entry, self._top
        released(self.neighbours)  # faiss has a copy
        return index

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where the list of each row begins."""
        return self._offsets()

    @cached_property
    def _top(self) -> int:
        """The highest level."""
        return int(self.levels.max(initial=1)) - 1

    def _offsets(self) -> NDArray[np.int64]:
        """Where the list of each row begins, and the end: 2 M neighbours on the lowest level, M on the others."""
        return np.append(0, np.cumsum((self.levels.astype(np.int64) + 1) * self.m))

    def nearest(self, queries: Floats, n: int, *, ef: int | None = None) -> tuple[NDArray[np.int64], Floats]:
        """Find most of the n rows with the largest scores, best first: (N, n), -1 where nothing was found.

        `ef` is taken instead of `ef_search`, which grows with n.
        """
        width = self.stored.rows.shape[1]
        if width > queries.shape[1]:
            added = np.zeros((len(queries), 2), np.float32)
            added[:, 0] = 1
            queries = np.concatenate([queries, added], axis=1)
        ef = max(n, ef or scale_ef(self.ef_search, n))
        if compiles() and ef <= QUICK:
            return self._compiled(queries, min(n, len(self.levels)), ef)
        faiss = _faiss()
        if threads() == 1:  # this thread shares the cores with others; faiss is to start none for it
            faiss.omp_set_num_threads(1)
        settings = faiss.SearchParametersHNSW(efSearch=ef)
        queries = np.ascontiguousarray(queries, np.float32)
        scores, found = self.index.search(queries, min(n, len(self.levels)), params=settings)
        return found, scores

    def _compiled(self, queries: Floats, n: int, ef: int) -> tuple[NDArray[np.int64], Floats]:
        """Find them without faiss, whose calls take longer than the search for one query."""
        from longtail.search.graph import search  # noqa: PLC0415  (numba is an extra)

        low, step, rows = self.stored.low, self.stored.step, self.stored.rows
        assert low is not None and step is not None
        found, scores = np.full((len(queries), n), -1, np.int64), np.full((len(queries), n), -np.inf, np.float32)
        search(
            queries * step, rows, self.neighbours, self._starts, self.m, self.entry, self._top, ef,
            self.seen.zeros(len(rows) + 1, np.uint8), found, scores,
        )  # fmt: skip
        scores += (queries @ low)[:, None]
        return found, scores

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name the arrays for a model file."""
        settings = np.array([self.entry, self.m, self.ef_search], np.int64)
        arrays: dict[str, NDArray[Any]] = {"neighbours": self.neighbours, "levels": self.levels, "settings": settings}
        arrays |= self.stored.arrays()
        return {f"hnsw.{name}": array for name, array in arrays.items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], labels: int, width: int) -> HNSW | None:
        """Put the arrays of an index file together, if it has them: over vectors of that width, or of two more."""
        if "hnsw.levels" not in arrays:
            return None
        more = 2 if "hnsw.rows" in arrays and arrays["hnsw.rows"].shape[1:] == (width + 2,) else 0
        stored = Quantised.of_arrays(arrays, labels, width + more, "hnsw.")
        levels, edges, settings = checked(arrays, SCHEMA, remedy=REMEDY, labels=labels)
        entry, m, ef_search = (int(number) for number in settings)
        graph = cls(stored, edges, levels, entry, m, ef_search)
        if not graph._sound():
            raise ModelError(f"the graph of the index is damaged; {REMEDY}")
        return graph

    def _sound(self) -> bool:
        """Return whether every edge leads to a row that stands on the level of the edge."""
        m, levels, edges = self.m, self.levels, self.neighbours
        if m != M or self.entry >= len(levels) or not 1 <= self.ef_search <= MAX_EF or self.stored.step is None:
            return False
        starts = self._offsets()
        if levels[self.entry] != levels.max() or len(edges) != starts[-1]:
            return False
        for level in range(1, int(levels.max())):
            high = np.flatnonzero(levels > level)
            some = edges[(starts[high] + (level + 1) * m)[:, None] + np.arange(m)]
            if (levels[some[some >= 0]] <= level).any():
                return False
        return True


def scale_ef(ef_search: int, n: int) -> int:
    """Return how far to look for n results.

    >>> scale_ef(12, 5), scale_ef(12, 1), scale_ef(12, 20)
    (12, 12, 48)
    """
    return max(ef_search, ef_search * n // BEST)


def _extended(vectors: Floats, bias: Floats) -> Floats:
    """Give all rows the same length, so that the largest product is the nearest row; rows that have it stay."""
    squares = np.einsum("rd,rd->r", vectors, vectors) + bias**2
    if not bias.any() and np.ptp(squares) < 1e-3 * squares.max(initial=1e-12):
        return vectors
    missing = np.sqrt(np.maximum(squares.max(initial=0) - squares, 0))
    return np.column_stack([vectors, bias, missing]).astype(np.float32)


def _empty(stored: Quantised, m: int) -> Any:
    """Make a graph without rows that knows what the bytes stand for."""
    faiss = _faiss()
    if stored.low is None or stored.step is None:
        raise ModelError("a graph needs rows of bytes; make the index again")
    index = faiss.IndexHNSWSQ(stored.rows.shape[1], faiss.ScalarQuantizer.QT_8bit, m, faiss.METRIC_INNER_PRODUCT)
    storage = faiss.downcast_index(index.storage)
    ranges = np.concatenate([stored.low - stored.step / 2, stored.step * 255]).astype(np.float32)
    faiss.copy_array_to_vector(ranges, storage.sq.trained)
    index.is_trained = storage.is_trained = True
    return index


def _faiss() -> Any:
    """Import faiss, an extra."""
    try:
        import faiss  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("faiss-cpu", "ann") from None
    return faiss
