"""LABEL VECTORS IN QDRANT, embedded: a folder that qdrant-edge searches, beside the vectors of a model.

The folder is made whole and needs no log, so that two processes can open it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from longtail.errors import ModelError, one_line
from longtail.files import read_json, write_json
from longtail.labels.journal import Journal
from longtail.machine import need
from longtail.stores.engine import Engine, EngineStore, with_bias
from longtail.stores.memory import MemoryStore
from longtail.types import Progress
from longtail.whole import whole_folder

LINKS, EF_CONSTRUCT = 16, 100  # of the graph
SMALL = 1000  # kilobytes of vectors up to which all are looked at
CHUNK = 1000  # labels that are handed over at once


@dataclass(frozen=True, eq=False)
class QdrantStore(EngineStore):
    """Label vectors that an embedded Qdrant searches."""

    shard: Any = None  # qdrant_edge.EdgeShard

    def nearest(self, query: list[float], k: int, allow: NDArray[Any] | None) -> list[int]:
        """Ask Qdrant; its filter leaves out what is not allowed."""
        import qdrant_edge as engine  # noqa: PLC0415

        chosen = None if allow is None else engine.Filter(must=[engine.HasIdCondition({*map(int, allow)})])
        params = engine.SearchParams(exact=self.ef_search is None, hnsw_ef=self.ef_search)
        wanted = engine.QueryRequest(limit=k, query=engine.Query.Nearest(query), filter=chosen, params=params)
        return [point.id for point in self.shard.query(wanted)]

    def close(self) -> None:
        """Let the folder go."""
        self.shard.close()


@dataclass(frozen=True)
class QdrantPlace:
    """A folder of an embedded Qdrant, and a file beside it."""

    folder: Path
    name: ClassVar[Engine] = "qdrant"

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def _facts(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def facts(self) -> Mapping[str, Any] | None:
        """Read what was measured."""
        return read_json(self._facts) if self._facts.is_file() else None

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Write what was measured."""
        write_json(self._facts, facts)

    def build(self, model: MemoryStore, progress: Progress | None = None) -> None:
        """Make the folder, whole or not at all."""
        engine = _engine()
        if self.folder.exists():
            return
        graph = engine.HnswIndexConfig(LINKS, EF_CONSTRUCT, SMALL)
        vectors = engine.EdgeVectorParams(size=model.dim + 1, distance=engine.Distance.Dot, hnsw_config=graph)
        limits = engine.EdgeOptimizersConfig(indexing_threshold=SMALL)
        with whole_folder(self.folder) as partial:
            shard = engine.EdgeShard.create(
                str(partial), engine.EdgeConfig(vectors=vectors, optimizers=limits, wal_enabled=False)
            )
            try:
                for start in range(0, len(model), CHUNK):
                    rows = with_bias(model, slice(start, start + CHUNK)).tolist()
                    points = [engine.Point(start + place, row) for place, row in enumerate(rows)]
                    shard.update(engine.UpdateOperation.upsert_points(points))
                    if progress is not None:
                        progress("handing labels over", min(start + CHUNK, len(model)), len(model))
                shard.optimize()
                shard.flush()
            finally:
                shard.close()

    def open(self, model: MemoryStore) -> QdrantStore:
        """Open the folder."""
        engine = _engine()
        try:
            shard = engine.EdgeShard.load(str(self.folder))
            count = shard.count(engine.CountRequest())
        except Exception as reason:  # qdrant-edge raises nothing more special
            raise ModelError(f"{self.folder}: Qdrant cannot open it ({one_line(reason)}); make it again") from None
        if count != len(model):
            raise ModelError(f"{self.folder}: holds {count} labels, the model {len(model)}; make it again")
        return QdrantStore(model.rows, model.bias, shard=shard)

    def journal(self, folder: Path, model: str, current: Callable[[], str]) -> Journal:
        """Open the file beside the model: an embedded store is on the same machine."""
        return Journal(folder, model, current)


def _engine() -> Any:
    """Import qdrant-edge, an extra."""
    need("qdrant_edge", "qdrant")
    import qdrant_edge  # noqa: PLC0415

    return qdrant_edge
