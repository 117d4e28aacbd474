"""TEXT → LABELS BY VECTORS, as it is served: vectors of the wanted precision, all of them or through a graph.

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
from longtail.shortlists.exact import top_products
from longtail.shortlists.hnsw import Graph
from longtail.shortlists.stored import Stored
from longtail.shortlists.vectors import VectorIndex
from longtail.types import Floats, Ints

DEEP = 2000  # more labels than that are not looked for in a graph
BLOCK = 1024  # texts that are encoded at once
ROWS = 16384  # label rows that are made floats at once


@dataclass(frozen=True, eq=False)
class Search:
    """An encoder and the label vectors that it is compared with."""

    vectors: VectorIndex
    labels: Stored
    graph: Graph | None = None

    @property
    def guided(self) -> bool:
        """Whether the model has a way of its own to candidates."""
        return self.vectors.guide is not None

    def encode(self, texts: Sequence[str]) -> Floats:
        """Encode texts, ready for the product with label vectors: (N, D)."""
        blocks = (texts[start : start + BLOCK] for start in range(0, max(1, len(texts)), BLOCK))
        return np.concatenate([self.vectors.encode(self.vectors.encoding.inputs(block)) for block in blocks])

    def encode_one(self, text: str, words: Ints, weights: Floats) -> Floats:
        """Encode one text, given with its bag: (D,)."""
        encoding, head = self.vectors.encoding, self.vectors.head
        if not isinstance(encoding, BagEncoding):
            return np.asarray(self.encode([text])[0], np.float32)
        vector: Floats = weights @ encoding.vectors.take(words, axis=0)
        if encoding.relu:
            np.maximum(vector, 0, out=vector)
        if head is not None:
            vector = head(vector)
        if self.vectors.cosine:
            length = math.sqrt(float(vector @ vector))
            return vector / np.float32(length) if length > 1e-12 else vector
        return vector

    def one(self, text: str, query: Floats, n: int) -> tuple[NDArray[Any], Floats]:
        """Find the n best labels of one encoded text, best first."""
        if self.guided:
            labels, scores = self.vectors.top([text], n)
            held = labels[0] >= 0
            return labels[0][held], scores[0][held]
        if self.graph is None or n > DEEP:
            return self.labels.top(query, n, self.vectors.bias)
        found, scores = self.graph.nearest(query[None], n)
        return self._rescored(query, found[0], scores[0])

    def _rescored(self, query: Floats, found: NDArray[Any], scores: Floats) -> tuple[NDArray[Any], Floats]:
        """Score what a graph found with the stored vectors; the graph did so itself where they are the same."""
        if found[-1] < 0:
            scores, found = scores[found >= 0], found[found >= 0]
        if self.graph is None or self.labels.rows is self.graph.stored.rows:
            return found, scores
        scores = self.some(query, found)
        order = np.lexsort((found, -scores))
        return found[order], scores[order]

    def some(self, query: Floats, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for one encoded text."""
        return np.asarray(self.labels.scores(query, labels) + self.vectors.bias[labels], np.float32)

    def top(self, texts: Sequence[str], k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of many texts; places without one hold -1."""
        return self.vectors.top(texts, k) if self.guided else self._top(self.encode(texts), k)

    def found(self, texts: Sequence[str], k: int) -> tuple[Floats, Ints, Floats]:
        """Encode texts, find their best labels, and multiply both: (N, D), (N, k), (N, k)."""
        if self.guided:
            return self.vectors.found(texts, k)
        encoded = self.encode(texts)
        return encoded, *self._top(encoded, k)

    def _top(self, queries: Floats, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of encoded texts."""
        k = min(k, len(self.labels))
        if self.graph is None or k > DEEP:
            return self.exact(queries, k)
        found, scores = self.graph.nearest(queries, k)
        labels, values = found.astype(np.int32), np.where(found < 0, -np.inf, scores).astype(np.float32)
        if self.labels.rows is not self.graph.stored.rows:
            for row, query in enumerate(queries):
                own, best = self._rescored(query, found[row], scores[row])
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
