"""VECTORS → FEWER BYTES: rows (R, D) as float32, as float16, or as bytes with a range for each dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from longtail.arrays import Array, checked
from longtail.machine import compiles
from longtail.search.exact import largest
from longtail.types import Floats

Precision = Literal["fp32", "fp16", "int8"]
TYPES: dict[Precision, Any] = {"fp32": np.float32, "fp16": np.float16, "int8": np.uint8}
REMEDY = "make the index again: longtail index"
CELLS = 2**22  # numbers that are made floats at once


@dataclass(frozen=True, eq=False)
class Quantised:
    """Rows as they lie in memory; bytes stand for low + step · byte.

    >>> stored = Quantised.of(np.array([[0, 1], [1, 0], [0.5, 0.5]], np.float32), "int8")
    >>> stored.rows.nbytes, stored.take(np.array([2])).round(2).tolist() == [[0.5, 0.5]]
    (6, True)
    """

    rows: NDArray[Any]  # (R, D)
    low: Floats | None = None  # (D,)
    step: Floats | None = None  # (D,)

    @classmethod
    def of(cls, vectors: Floats, precision: Precision) -> Quantised:
        """Store vectors."""
        if precision != "int8":
            return cls(np.asarray(vectors, TYPES[precision]))
        least = vectors.min(axis=0) if len(vectors) else np.zeros(vectors.shape[1], np.float32)
        width = (vectors.max(axis=0) if len(vectors) else least) - least
        rows = np.empty(vectors.shape, np.uint8)
        for start in range(0, len(vectors), 65536):
            some = (vectors[start : start + 65536] - least) / np.maximum(width, 1e-12)
            rows[start : start + 65536] = (255 * some).clip(0, 255)
        step = (width / 255).astype(np.float32)
        return cls(rows, (least + step / 2).astype(np.float32), step)  # a byte stands for the middle of its range

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def precision(self) -> Precision:
        """How the rows are stored."""
        return next(name for name, kind in TYPES.items() if self.rows.dtype == kind)

    def take(self, places: NDArray[Any] | slice) -> Floats:
        """Return rows as float32."""
        rows = self.rows[places]
        if rows.dtype == np.float32:
            return rows
        out = rows.astype(np.float32)
        if self.step is not None and self.low is not None:
            out *= self.step
            out += self.low
        return out

    def scores(self, query: Floats, places: NDArray[Any] | slice) -> Floats:
        """Multiply some rows with a query (D,)."""
        if self.low is not None and self.step is not None and isinstance(places, np.ndarray) and compiles():
            from longtail.search.graph import products  # noqa: PLC0415  (numba is an extra)

            out = np.empty(len(places), np.float32)
            products(query * self.step, self.rows, places, out)
            return np.asarray(out + query @ self.low, np.float32)
        rows = self.rows.take(places, axis=0) if isinstance(places, np.ndarray) else self.rows[places]
        if self.step is None or self.low is None:
            return np.asarray(rows, np.float32) @ query
        return np.asarray(rows.astype(np.float32) @ (query * self.step) + query @ self.low, np.float32)

    def pairs(self, queries: Floats, owners: NDArray[Any], places: NDArray[Any]) -> Floats:
        """Multiply pairs: query owners[i] with row places[i]; owners ascend."""
        out = np.empty(len(owners), np.float32)
        if self.low is not None and self.step is not None and compiles():
            from longtail.search.graph import pair_products  # noqa: PLC0415

            pair_products(queries * self.step, owners, self.rows, places, out)
            return np.asarray(out + (queries @ self.low)[owners], np.float32)
        bounds = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))  # where the pairs of each query begin and end
        for start, end in pairwise(bounds.tolist()):
            out[start:end] = self.scores(queries[owners[start]], places[start:end])
        return out

    def all(self, query: Floats) -> Floats:
        """Multiply all rows with a query (D,)."""
        if self.rows.dtype == np.float32:
            return np.asarray(self.rows @ query, np.float32)
        out = np.empty(len(self), np.float32)
        block = max(1, CELLS // max(1, self.rows.shape[1]))
        for start in range(0, len(self), block):
            some = slice(start, start + block)
            out[some] = self.scores(query, some)
        return out

    def top(self, query: Floats, k: int, bias: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Look at all rows for the k largest products plus bias, best first."""
        return largest(self.all(query) + bias, k)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name the arrays for a model file."""
        arrays = {"rows": self.rows}
        return arrays if self.low is None or self.step is None else arrays | {"low": self.low, "step": self.step}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], labels: int, width: int, name: str = "") -> Quantised:
        """Put the arrays of an index file together, whose names begin with `name`; bytes have a range each."""
        shape, ranges = ("labels", "width"), (Array(f"{name}low", ("width",)), Array(f"{name}step", ("width",), low=0))
        schema: tuple[Array, ...] = (Array(f"{name}rows", shape, ("uint8",), 0, 255), *ranges)
        if not any(own.name in arrays for own in ranges):
            schema = (Array(f"{name}rows", shape, ("float16", "float32")),)
        return cls(*checked(arrays, schema, remedy=REMEDY, labels=labels, width=width))
