"""TEXT → LABELS BY VECTORS, as it is served: vectors of the wanted precision, all of them or where something leads.

A single text takes a way of its own, without matrices. Models with a guide (clusters, or what is near) keep it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.encoders.encoding import BagEncoding
from longtail.shortlists.exact import largest, top_products
from longtail.shortlists.hnsw import Graph
from longtail.shortlists.lists import Lists
from longtail.shortlists.stored import Stored
from longtail.shortlists.vectors import VectorIndex, answered
from longtail.types import Floats, Ints

DEEP = 2000  # for more labels than that all are looked at
ROWS = 16384  # label rows that are made floats at once


@dataclass(frozen=True, eq=False)
class Search:
    """An encoder and the label vectors that it is compared with."""

    vectors: VectorIndex
    labels: Stored
    near: Graph | Lists | None = None  # leads to most of the best; without it all are looked at

    @property
    def shares(self) -> bool:
        """Whether several threads may search side by side: torch and products with all labels have their own."""
        return self.near is not None and not self.vectors.encoding.needs_torch

    @property
    def guided(self) -> bool:
        """Whether the model has a way of its own to candidates."""
        return self.vectors.guide is not None

    def encode_one(self, text: str, words: Ints, weights: Floats) -> Floats:
        """Encode one text, given with its bag: (D,)."""
        encoding, head = self.vectors.encoding, self.vectors.head
        if not isinstance(encoding, BagEncoding):
            return np.asarray(self.vectors.encoded([text])[0], np.float32)
        vector: Floats = weights @ encoding.vectors.take(words, axis=0)
        if encoding.relu:
            np.maximum(vector, 0, out=vector)
        if not vector.any():
            return vector  # nothing to go by, as `VectorIndex.encoded` has it
        if head is not None:
            vector = head(vector)
        if self.vectors.cosine:
            length = math.sqrt(float(vector @ vector))
            return vector / np.float32(length) if length > 1e-12 else vector
        return vector

    def one(self, text: str, query: Floats, n: int) -> tuple[NDArray[Any], Floats]:
        """Find the n best labels of one encoded text, best first; none where no word is known."""
        if not query.any():
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        if self.guided:
            labels, scores = self.vectors.top([text], n)
            held = labels[0] >= 0
            return labels[0][held], scores[0][held]
        return self.labels.top(query, n, self.vectors.bias) if self._all(n) else self._led(query, n)

    def _all(self, n: int) -> bool:
        """Tell whether all labels are to be looked at."""
        return self.near is None or n > DEEP

    def _led(self, query: Floats, n: int) -> tuple[NDArray[Any], Floats]:
        """Find the n best labels of an encoded text where the graph or the clusters lead."""
        if isinstance(self.near, Lists):
            found = self.near.labels(query, n)
        elif self.near is not None:
            found, scores = (part[0] for part in self.near.nearest(query[None], n))
            if found[-1] < 0:
                scores, found = scores[found >= 0], found[found >= 0]
            if self._shared:
                return found, scores
            found = np.sort(found)
        places, scores = largest(self.some(query, found), n)
        return found[places], scores

    @property
    def _shared(self) -> bool:
        """Whether the graph holds the same rows, so that its scores are final."""
        return isinstance(self.near, Graph) and self.labels.rows is self.near.stored.rows

    def some(self, query: Floats, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for one encoded text."""
        return np.asarray(self.labels.scores(query, labels) + self.vectors.bias[labels], np.float32)

    def top(self, texts: Sequence[str], k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of many texts; places without one hold -1."""
        return self.vectors.top(texts, k) if self.guided else self.found(texts, k)[1:]

    def found(self, texts: Sequence[str], k: int) -> tuple[Floats, Ints, Floats]:
        """Encode texts, find their best labels, and multiply both: (N, D), (N, k), (N, k)."""
        if self.guided:
            return self.vectors.found(texts, k)
        encoded = self.vectors.encoded(texts)
        return encoded, *answered(encoded, *self._top(encoded, k))

    def _top(self, queries: Floats, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of encoded texts."""
        k = min(k, len(self.labels))
        if self._all(k):
            return self.exact(queries, k)
        if isinstance(self.near, Graph) and self._shared:
            found, scores = self.near.nearest(queries, k)
            return found.astype(np.int32), np.where(found < 0, -np.inf, scores).astype(np.float32)
        labels, values = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
        for row, query in enumerate(queries):
            own, best = self._led(query, k)
            labels[row, : len(own)], values[row, : len(own)] = own, best
        return labels, values

    def exact(self, queries: Floats, k: int) -> tuple[Ints, Floats]:
        """Look at all labels."""
        if self.labels.rows.dtype == np.float32:
            return top_products(queries, self.labels.rows, k, bias=self.vectors.bias)
        found, values = np.zeros((len(queries), 0), np.int32), np.zeros((len(queries), 0), np.float32)
        for start in range(0, len(self.labels), ROWS):
            some = slice(start, start + ROWS)
            labels, scores = top_products(queries, self.labels.take(some), k, bias=self.vectors.bias[some])
            found = np.concatenate([found, labels + start], axis=1)
            values = np.concatenate([values, scores], axis=1)
            order = np.argsort(-values, axis=1, kind="stable")[:, :k]  # smaller labels stand first
            found, values = np.take_along_axis(found, order, 1), np.take_along_axis(values, order, 1)
        return found.astype(np.int32), values

    def pairs(self, encoded: Floats, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: encoded text rows[i] with labels[i]; rows ascend."""
        scores = self.labels.pairs(encoded, rows, labels)
        return np.asarray(scores + self.vectors.bias[labels], np.float32)
