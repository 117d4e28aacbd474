"""SCORER → SCORER: what scorers share that change what another one has found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from longtail.parts import LabelStore, Near, Query, Retriever
from longtail.types import Floats, Ints

Ranked = tuple[NDArray[Any], Floats]  # labels and scores, best first


@dataclass(frozen=True, eq=False)
class Wrapped(ABC):
    """A scorer over another; a subclass has `top`, `pairs`, `operations` and `arrays`."""

    first: Any  # Scorer

    def __len__(self) -> int:
        return len(self.first)

    @property
    def store(self) -> LabelStore:
        """The label vectors that are searched."""
        store: LabelStore = self.first.store
        return store

    @property
    def retriever(self) -> Retriever | None:
        """What proposes labels."""
        retriever: Retriever | None = self.first.retriever
        return retriever

    @property
    def searchable(self) -> bool:
        """Whether labels are found by a search in the store."""
        return bool(self.first.searchable)

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""
        return bool(self.first.shares_threads)

    def led(self, retriever: Retriever) -> Self:
        """Let the first scorer score what a retriever proposes."""
        return replace(self, first=self.first.led(retriever))

    def with_store(self, store: LabelStore) -> Self:
        """Let the first scorer search label vectors that are kept elsewhere."""
        return replace(self, first=self.first.with_store(store))

    def join(self, others: Sequence[Any], weights: Sequence[float]) -> Any:
        """Join the first scorers: what is on top of them is not joined."""
        return self.first.join(others, weights)

    def additive(self, scores: Floats) -> Floats:
        """Turn scores into what the members of an ensemble add up."""
        added: Floats = self.first.additive(scores)
        return added

    @abstractmethod
    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text."""

    @abstractmethod
    def pairs(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""

    def top_one(self, query: Query, n: int) -> Ranked:
        """Find the n best labels of the only text, best first."""
        if not self.knows(query):
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        labels, scores = self.top(query, n)
        mask = labels[0] >= 0
        return labels[0][mask], scores[0][mask]

    def score_one(self, query: Query, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for the only text."""
        order = np.argsort(labels, kind="stable")
        scores = np.empty(len(labels), np.float32)
        scores[order] = self.pairs(query, np.zeros(len(labels), np.int64), labels[order])
        return scores

    def knows(self, query: Query) -> bool:
        """Whether the first scorer's encoder knows anything of the only text."""
        return bool(self.first.knows(query))

    def encoded_one(self, query: Query) -> Floats:
        """Encode the only text as the first scorer does."""
        vector: Floats = self.first.encoded_one(query)
        return vector

    def rows_for(self, texts: Sequence[str], near: Near | None = None) -> Floats:
        """Make vectors of new labels as the first scorer does."""
        rows: Floats = self.first.rows_for(texts, near)
        return rows

    def score_rows(self, query: Query, rows: Floats, bias: float, best: float) -> Floats:
        """Score vectors of new labels as the first scorer does."""
        scores: Floats = self.first.score_rows(query, rows, bias, best)
        return scores
