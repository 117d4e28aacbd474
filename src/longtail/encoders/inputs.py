"""TEXTS AS NUMBERS: what an encoder takes, bags (N, V) or word ids in order (N, T), with the same few operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.parts import Replace
from longtail.types import rows_of


@dataclass(frozen=True, eq=False)
class Bags:
    """TF-IDF bags; rows have length one."""

    matrix: sp.csr_array  # (N, V)

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def take(self, rows: NDArray[np.int64]) -> Bags:
        """Select rows."""
        return Bags(self.matrix[rows])

    def words(self) -> NDArray[np.int32]:
        """All word numbers that occur, with repetition."""
        words: NDArray[np.int32] = self.matrix.indices
        return words

    def bags(self, width: int) -> sp.csr_array:
        """Return the weights of the words of each row: (N, V)."""
        return self.matrix

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
        matrix = self.matrix
        return Bags(sp.csr_array((matrix.data, replace(matrix.indices), matrix.indptr), shape=matrix.shape))


@dataclass(frozen=True, eq=False)
class Ordered:
    """Word ids in order, right padded with 0."""

    ids: NDArray[np.int32]  # (N, T)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: NDArray[np.int64]) -> Ordered:
        """Select rows."""
        return Ordered(self.ids[rows])

    def words(self) -> NDArray[np.int32]:
        """All word ids that occur, with repetition."""
        return self.ids.ravel()

    def bags(self, width: int) -> sp.csr_array:
        """Count the words of each row, padding left out: (N, width)."""
        bags = rows_of(np.where(self.ids > 0, self.ids, -1), np.ones(self.ids.shape), width)
        bags.sum_duplicates()
        return bags

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
