"""LABEL VECTORS IN QDRANT, embedded: a folder that qdrant-edge searches, beside the vectors of a model.

Scores are products plus a bias: the bias is one more dimension, which is 1 in every query. The folder is made whole and
never changed, so that it needs no log, and any number of processes may read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ModelError, one_line
from longtail.machine import need
from longtail.search.exact import largest
from longtail.stores.memory import MemoryStore
from longtail.types import Floats, Ints, Progress
from longtail.whole import whole_folder

LINKS, EF_CONSTRUCT = 16, 100  # of the graph
SMALL = 1000  # kilobytes of vectors up to which all are looked at
CHUNK = 1000  # labels that are handed over at once


@dataclass(frozen=True, eq=False)
class QdrantStore(MemoryStore):
    """Label vectors whose search is Qdrant's; chosen labels are scored by the rows of the model itself."""

    shard: Any = None  # qdrant_edge.EdgeShard
    ef_search: int | None = None  # how far the graph is followed; None: all labels are looked at

    @classmethod
    def open(cls, folder: Path, model: MemoryStore, *, ef_search: int | None = None) -> QdrantStore:
        """Open a folder that `build_qdrant` has made of a model's vectors."""
        need("qdrant_edge", "qdrant")
        import qdrant_edge as engine  # noqa: PLC0415  (an extra)

        try:
            shard = engine.EdgeShard.load(str(folder))
            count = shard.count(engine.CountRequest())
        except Exception as reason:  # qdrant-edge raises nothing more special
            raise ModelError(f"{folder}: Qdrant cannot open it ({one_line(reason)}); make it again") from None
        if count != len(model):
            raise ModelError(f"{folder}: holds {count} labels, the model {len(model)}; make it again")
        return cls(model.rows, model.bias, shard=shard, ef_search=ef_search)

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""
        return True

    def searching(self, ef_search: int) -> QdrantStore:
        """Return the same store that follows its graph so far; 0: that looks at all labels."""
        return replace(self, ef_search=ef_search or None)

    def search_one(self, query: Floats, k: int) -> tuple[NDArray[Any], Floats]:
        """Find the k largest scores of one query, best first; among equals the smaller label."""
        return self.search_within(query, k)

    def search_within(self, query: Floats, k: int, allow: NDArray[Any] | None = None) -> tuple[NDArray[Any], Floats]:
        """Find the k largest scores of one query, among the labels that are allowed."""
        import qdrant_edge as engine  # noqa: PLC0415

        chosen = None if allow is None else engine.Filter(must=[engine.HasIdCondition({*map(int, allow)})])
        params = engine.SearchParams(exact=self.ef_search is None, hnsw_ef=self.ef_search)
        nearest = engine.Query.Nearest([*query.tolist(), 1.0])
        found = self.shard.query(engine.QueryRequest(limit=k, query=nearest, filter=chosen, params=params))
        labels = np.sort(np.array([point.id for point in found], np.int64))
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

    def close(self) -> None:
        """Let the folder go."""
        self.shard.close()


def build_qdrant(folder: Path, model: MemoryStore, *, progress: Progress | None = None) -> None:
    """Make the folder of a model's vectors, whole or not at all; one that is there is refused."""
    need("qdrant_edge", "qdrant")
    import qdrant_edge as engine  # noqa: PLC0415  (an extra)

    graph = engine.HnswIndexConfig(LINKS, EF_CONSTRUCT, SMALL)
    vectors = engine.EdgeVectorParams(size=model.dim + 1, distance=engine.Distance.Dot, hnsw_config=graph)
    limits = engine.EdgeOptimizersConfig(indexing_threshold=SMALL)
    with whole_folder(folder) as partial:
        shard = engine.EdgeShard.create(
            str(partial), engine.EdgeConfig(vectors=vectors, optimizers=limits, wal_enabled=False)
        )
        try:
            for start in range(0, len(model), CHUNK):
                some = slice(start, start + CHUNK)
                rows = np.concatenate([model.take(some), model.bias[some, None]], axis=1).tolist()
                points = [engine.Point(start + place, row) for place, row in enumerate(rows)]
                shard.update(engine.UpdateOperation.upsert_points(points))
                if progress is not None:
                    progress("handing labels over", min(start + CHUNK, len(model)), len(model))
            shard.optimize()
            shard.flush()
        finally:
            shard.close()
