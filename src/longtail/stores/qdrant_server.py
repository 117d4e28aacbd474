"""LABEL VECTORS ON A QDRANT SERVER: a collection for each model, which has its name as an alias once it is whole.

What was measured is a point of one more collection, which holds no vectors.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from numpy.typing import NDArray

from longtail.errors import DataError, ModelError, StoreDown, one_line
from longtail.labels.journal import Journal
from longtail.machine import need
from longtail.stores.engine import Engine, EngineStore, with_bias
from longtail.stores.memory import MemoryStore
from longtail.stores.qdrant import CHUNK, EF_CONSTRUCT, LINKS
from longtail.types import Progress

SECURE = "qdrant+https"  # the scheme of an address that is asked by TLS
PORT, TIMEOUT = 6333, 5
FACTS = "longtail_models"  # what was measured: a point for each model
LOOK = 0.5  # seconds between two looks at how far a graph is
SERVER_ERROR = 500


@dataclass(frozen=True, eq=False)
class QdrantServerStore(EngineStore):
    """Label vectors that a Qdrant server searches."""

    place: Any = None  # QdrantServerPlace

    def nearest(self, query: list[float], k: int, allow: NDArray[Any] | None) -> list[int]:
        """Ask the server; its filter leaves out what is not allowed."""
        models = _models()
        chosen = None
        if allow is not None:
            chosen = models.Filter(must=[models.HasIdCondition(has_id=[int(label) for label in allow])])
        params = models.SearchParams(exact=self.ef_search is None, hnsw_ef=self.ef_search)
        with answered():
            found = self.place.client.query_points(
                self.place.alias, query=query, limit=k, query_filter=chosen, search_params=params, with_payload=False
            )
        return [int(point.id) for point in found.points]

    def close(self) -> None:
        """Let the server go."""
        self.place.close()


@dataclass(frozen=True)
class QdrantServerPlace:
    """A collection of a Qdrant server."""

    address: str
    hash: str
    name: ClassVar[Engine] = "qdrant"

    def __str__(self) -> str:
        return f"collection {self.alias}"

    @property
    def alias(self) -> str:
        """What the collection of the model is called once it is whole."""
        return f"longtail_{self.hash}"

    @cached_property
    def client(self) -> Any:
        """The connection, made when it is first used."""
        need("qdrant_client", "qdrant")
        from qdrant_client import QdrantClient  # noqa: PLC0415  (an extra)

        parts, key = urlsplit(self.address), None
        if parts.password:
            key = unquote(parts.password)
        return QdrantClient(
            host=parts.hostname, port=parts.port or PORT, https=parts.scheme == SECURE, api_key=key, timeout=TIMEOUT,
            check_compatibility=False,
        )  # fmt: skip

    def close(self) -> None:
        """Let the server go; whoever asks next connects again."""
        if "client" in vars(self):
            vars(self).pop("client").close()

    def facts(self) -> Mapping[str, Any] | None:
        """Read what was measured."""
        with answered():
            if not self.client.collection_exists(FACTS):
                return None
            found = self.client.retrieve(FACTS, [self.hash])
        return dict(found[0].payload) if found else None

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Write what was measured."""
        point = _models().PointStruct(id=self.hash, vector={}, payload=dict(facts))
        with answered():
            if not self.client.collection_exists(FACTS):
                self.client.create_collection(FACTS, vectors_config={})
            self.client.upsert(FACTS, [point])

    def build(self, model: MemoryStore, progress: Progress | None = None) -> None:
        """Fill a collection of another name, wait for its graph, and give it the alias, which is one step."""
        models, partial = _models(), f"{self.alias}_{secrets.token_hex(4)}"
        with answered():
            if self._behind() is not None:
                return
            graph = models.HnswConfigDiff(m=LINKS, ef_construct=EF_CONSTRUCT)
            size = models.VectorParams(size=model.dim + 1, distance=models.Distance.DOT, hnsw_config=graph)
            self.client.create_collection(partial, vectors_config=size)
        try:
            with answered():
                for start in range(0, len(model), CHUNK):
                    rows = with_bias(model, slice(start, start + CHUNK)).tolist()
                    ids = list(range(start, start + len(rows)))
                    self.client.upsert(partial, models.Batch(ids=ids, vectors=rows))
                    if progress is not None:
                        progress("handing labels over", start + len(rows), len(model))
                while self.client.get_collection(partial).status == models.CollectionStatus.YELLOW:
                    time.sleep(LOOK)
                if self._behind() is None:
                    named = models.CreateAlias(collection_name=partial, alias_name=self.alias)
                    self.client.update_collection_aliases([models.CreateAliasOperation(create_alias=named)])
        finally:
            self._sweep()

    def _behind(self) -> str | None:
        """Return the collection that has the alias."""
        every = self.client.get_aliases().aliases
        return next((one.collection_name for one in every if one.alias_name == self.alias), None)

    def _sweep(self) -> None:
        """Remove what this or a killed command left without the alias, once there is one that has it."""
        with answered():
            if (behind := self._behind()) is not None:
                for other in self.client.get_collections().collections:
                    if other.name.startswith(f"{self.alias}_") and other.name != behind:
                        self.client.delete_collection(other.name)

    def open(self, model: MemoryStore) -> QdrantServerStore:
        """Look whether the collection holds the labels of the model."""
        with answered():
            if self._behind() is None:
                raise ModelError(f"Qdrant has no collection {self.alias}; make it again")
            count = self.client.count(self.alias).count
        if count != len(model):
            raise ModelError(f"{self.alias}: holds {count} labels, the model {len(model)}; make it again")
        return QdrantServerStore(model.rows, model.bias, place=self)

    def journal(self, folder: Path, model: str, current: Callable[[], str]) -> Journal:
        """Open the file beside the model, which replicas must share: Qdrant has no transactions."""
        return Journal(folder, model, current)


@contextmanager
def answered() -> Iterator[None]:
    """Turn what the client raises into one line: a server that is away, or a refusal."""
    need("qdrant_client", "qdrant")
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse  # noqa: PLC0415

    try:
        yield
    except ResponseHandlingException as reason:
        raise StoreDown(f"Qdrant does not answer ({one_line(reason)}); start it, or ask again") from None
    except UnexpectedResponse as reason:
        if (reason.status_code or SERVER_ERROR) >= SERVER_ERROR:
            raise StoreDown(f"Qdrant cannot answer ({one_line(reason)}); ask again") from None
        raise DataError(f"Qdrant refused: {one_line(reason)}", remedy="see its log") from None


def _models() -> Any:
    """Import what the client is told, an extra."""
    need("qdrant_client", "qdrant")
    from qdrant_client import models  # noqa: PLC0415

    return models
