"""TEXTS AS NUMBERS: what an encoder takes, bags (N, V) or word ids in order (N, T), with the same few operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Replace = Callable[[NDArray[Any]], NDArray[Any]]


class Inputs(Protocol):
    """Rows of texts that were turned into word numbers."""

    def __len__(self) -> int: ...

    def take(self, rows: NDArray[np.int64]) -> Self:
        """Select rows."""

    def words(self) -> NDArray[np.int64]:
        """All word numbers that occur, with repetition."""

    def followed(self, others: Self, rows: NDArray[np.int64]) -> Self:
        """Append row rows[i] of `others` to row i; -1 leaves it as it is."""

    def replaced(self, replace: Replace) -> Self:
        """Exchange words for others."""


@dataclass(frozen=True, eq=False)
class Bags:
    """TF-IDF bags; rows have length one."""

    matrix: sp.csr_array  # (N, V)

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def take(self, rows: NDArray[np.int64]) -> Bags:
        """Select rows."""
        return Bags(self.matrix[rows])

    def words(self) -> NDArray[np.int64]:
        """All word numbers that occur, with repetition."""
        return self.matrix.indices.astype(np.int64)

    def followed(self, others: Bags, rows: NDArray[np.int64]) -> Bags:
        """Add the other bags and scale to length one again."""
        mixed = rows >= 0
        choice = sp.csr_array(
            (np.ones(mixed.sum(), np.float32), rows[mixed], np.concatenate([[0], np.cumsum(mixed)])),
            shape=(len(rows), len(others)),
        )
        added = sp.csr_array(self.matrix + choice @ others.matrix)
        lengths = np.sqrt(np.asarray(added.multiply(added).sum(axis=1)).ravel())
        added.data = (added.data / np.repeat(np.maximum(lengths, 1e-12), np.diff(added.indptr))).astype(np.float32)
        return Bags(added)

    def replaced(self, replace: Replace) -> Bags:
        """Exchange words for others; weights stay."""
        held = self.matrix
        return Bags(sp.csr_array((held.data, replace(held.indices), held.indptr), shape=held.shape))


@dataclass(frozen=True, eq=False)
class Ordered:
    """Word ids in order, right padded with 0."""

    ids: NDArray[np.int32]  # (N, T)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: NDArray[np.int64]) -> Ordered:
        """Select rows."""
        return Ordered(self.ids[rows])

    def words(self) -> NDArray[np.int64]:
        """All word ids that occur, with repetition."""
        return self.ids.ravel().astype(np.int64)

    def followed(self, others: Ordered, rows: NDArray[np.int64]) -> Ordered:
        """Write the other words behind the own ones, as far as there is room."""
        width = self.ids.shape[1]
        after = np.where((rows >= 0)[:, None], others.ids[np.maximum(rows, 0)], 0)
        joined = np.concatenate([self.ids, after], axis=1)
        order = np.argsort(joined == 0, axis=1, kind="stable")[:, :width]  # words first, padding last
        return Ordered(np.take_along_axis(joined, order, axis=1))

    def replaced(self, replace: Replace) -> Ordered:
        """Exchange words for others; padding stays."""
        return Ordered(np.where(self.ids > 0, replace(self.ids), 0))
