"""LABEL VECTORS IN MEMORY, or mapped from a file: all of them are looked at, or where an HNSW graph or an IVF leads.

A single query takes a way of its own, without matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.search.exact import largest, top_products
from longtail.search.hnsw import HNSW
from longtail.search.ivf import IVF
from longtail.search.quantised import Quantised
from longtail.types import Floats, Ints

DEEP = 2000  # for more labels than that all are looked at
BLOCK = 16384  # rows that are made floats at once


@dataclass(frozen=True, eq=False)
class MemoryStore:
    """Label vectors of any precision, a bias each, and what leads to most of the best of them.

    >>> store = MemoryStore.of(np.array([[1, 0], [0, 1]], np.float32))
    >>> store.search_one(np.array([1, 0], np.float32), 1)[0].tolist()
    [0]
    """

    rows: Quantised  # (L, D)
    bias: Floats  # (L,)
    leader: HNSW | IVF | None = None  # without it all are looked at

    @classmethod
    def of(cls, vectors: Floats, bias: Floats | None = None) -> MemoryStore:
        """Store vectors as they are."""
        return cls(Quantised(vectors), np.zeros(len(vectors), np.float32) if bias is None else bias)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""
        return int(self.rows.rows.shape[1])

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side: products with all labels have their own."""
        return self.leader is not None

    def take(self, labels: NDArray[Any] | slice) -> Floats:
        """Return vectors as float32."""
        return self.rows.take(labels)

    def score(self, query: Floats, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for one query."""
        return np.asarray(self.rows.scores(query, labels) + self.bias[labels], np.float32)

    def pairs(self, queries: Floats, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: query rows[i] with labels[i]; rows ascend."""
        return np.asarray(self.rows.pairs(queries, rows, labels) + self.bias[labels], np.float32)

    def search_one(self, query: Floats, k: int) -> tuple[NDArray[Any], Floats]:
        """Find the k largest scores of one query, best first."""
        return self.rows.top(query, k, self.bias) if self._exact(k) else self._led(query, k)

    def search(self, queries: Floats, k: int) -> tuple[Ints, Floats]:
        """Find the k largest scores of each query (N, D)."""
        k = min(k, len(self))
        if self._exact(k):
            return self.exact(queries, k)
        if isinstance(self.leader, HNSW) and self._final:
            found, scores = self.leader.nearest(queries, k)
            return found.astype(np.int32), np.where(found < 0, -np.inf, scores).astype(np.float32)
        if isinstance(self.leader, IVF):
            return self.leader.search(queries, self.rows, k, self.bias)
        labels, values = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
        for row, query in enumerate(queries):
            own, best = self._led(query, k)
            labels[row, : len(own)], values[row, : len(own)] = own, best
        return labels, values

    def exact(self, queries: Floats, k: int) -> tuple[Ints, Floats]:
        """Look at all labels."""
        if self.rows.rows.dtype == np.float32:
            return top_products(queries, self.rows.rows, k, bias=self.bias)
        found, values = np.zeros((len(queries), 0), np.int32), np.zeros((len(queries), 0), np.float32)
        for start in range(0, len(self), BLOCK):
            some = slice(start, start + BLOCK)
            labels, scores = top_products(queries, self.rows.take(some), k, bias=self.bias[some])
            found = np.concatenate([found, labels + start], axis=1)
            values = np.concatenate([values, scores], axis=1)
            order = np.argsort(-values, axis=1, kind="stable")[:, :k]  # smaller labels stand first
            found, values = np.take_along_axis(found, order, 1), np.take_along_axis(values, order, 1)
        return found.astype(np.int32), values

    def _exact(self, k: int) -> bool:
        """Return whether all labels are to be looked at."""
        return self.leader is None or k > DEEP

    @property
    def _final(self) -> bool:
        """Whether the graph holds the same rows, so that its scores are final."""
        return isinstance(self.leader, HNSW) and self.rows.rows is self.leader.stored.rows

    def _led(self, query: Floats, k: int) -> tuple[NDArray[Any], Floats]:
        """Find the k best labels of a query where the graph or the clusters lead."""
        if isinstance(self.leader, IVF):
            labels = self.leader.rows(query, k)
        elif self.leader is not None:
            labels, scores = (part[0] for part in self.leader.nearest(query[None], k))
            if labels[-1] < 0:
                scores, labels = scores[labels >= 0], labels[labels >= 0]
            if self._final:
                return labels, scores
            labels = np.sort(labels)
        places, scores = largest(self.score(query, labels), k)
        return labels[places], scores
