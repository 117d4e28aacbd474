"""LABEL VECTORS IN AN ENGINE: it finds the labels, the rows of the model score them.

Scores are products plus a bias: the bias is one more dimension, which is 1 in every query. What an engine holds is made
whole and never changed, so that any number of processes may read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from longtail.labels.journal import Journal
from longtail.search.exact import largest
from longtail.stores.memory import MemoryStore
from longtail.types import Floats, Ints, Progress

Engine = Literal["qdrant", "postgresql", "milvus", "shards"]


@dataclass(frozen=True, eq=False)
class EngineStore(MemoryStore, ABC):
    """Label vectors whose search is an engine's; chosen labels are scored by the rows of the model itself."""

    has_graph: ClassVar[bool] = True  # whether it matters how far a graph is followed
    ef_search: int | None = None  # how far the graph is followed; None: all labels are looked at

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""
        return True

    def searching(self, ef_search: int) -> Self:
        """Return the same store that follows its graph so far; 0: that looks at all labels."""
        return replace(self, ef_search=ef_search or None)

    @abstractmethod
    def nearest(self, query: list[float], k: int, allow: NDArray[Any] | None) -> list[int]:
        """Find the k labels with the largest products, among those that are allowed, in any order."""

    def search_one(self, query: Floats, k: int) -> tuple[NDArray[Any], Floats]:
        """Find the k largest scores of one query, best first; among equals the smaller label."""
        return self.search_within(query, k)

    def search_within(self, query: Floats, k: int, allow: NDArray[Any] | None = None) -> tuple[NDArray[Any], Floats]:
        """Find the k largest scores of one query, among the labels that are allowed."""
        labels = np.sort(np.array(self.nearest([*query.tolist(), 1.0], k, allow), np.int64))
        places, scores = largest(self.score(query, labels), k)
        return labels[places], scores

    def search(self, queries: Floats, k: int) -> tuple[Ints, Floats]:
        """Find the k largest scores of each query (N, D)."""
        k = min(k, len(self))
        labels, values = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
        for row, query in enumerate(queries):
            own, best = self.search_one(query, k)
            labels[row, : len(own)], values[row, : len(own)] = own, best
        return labels, values

    @abstractmethod
    def close(self) -> None:
        """Let the engine go."""


class Place(Protocol):
    """Where an engine keeps the vectors of one model, and what was measured there."""

    name: ClassVar[Engine]

    def facts(self) -> Mapping[str, Any] | None:
        """Return what was measured; None where the model is not there, or not yet measured."""

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Keep what was measured."""

    def build(self, model: MemoryStore, progress: Progress | None) -> None:
        """Hand vectors over, all or none; nothing is done where they are there."""

    def open(self, model: MemoryStore) -> EngineStore:
        """Open what was handed over."""

    def journal(self, folder: Path, model: str, current: Callable[[], str]) -> Journal:
        """Open the changes of the model's labels."""


def with_bias(model: MemoryStore, some: slice) -> Floats:
    """Return vectors with their bias as the last dimension."""
    return np.concatenate([model.take(some), model.bias[some, None]], axis=1)
