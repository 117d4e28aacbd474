"""LABEL VECTORS IN MILVUS: a collection for each model, on a server or embedded (milvus-lite, one process at a time).

A collection is filled under another name and renamed when it is whole. What was measured is kept with it.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, ModelError, StoreDown, one_line
from longtail.labels.journal import Journal
from longtail.machine import need
from longtail.search.exact import largest
from longtail.stores.engine import Engine, EngineStore, with_bias
from longtail.stores.memory import MemoryStore
from longtail.types import Progress

LINKS, EF_CONSTRUCT = 16, 200  # of the graph
CHUNK = 1000  # labels that are handed over at once
MOST = 16_384  # labels that Milvus finds at once
TIMEOUT = 5.0  # seconds for an answer
FACTS = "longtail.facts"  # the property of a collection that says what was measured
AWAY = {1, 2, 14}  # codes of a server that cannot be reached


@dataclass(frozen=True, eq=False)
class MilvusStore(EngineStore):
    """Label vectors that Milvus searches."""

    place: Any = None  # MilvusPlace

    def nearest(self, query: list[float], k: int, allow: NDArray[Any] | None) -> list[int]:
        """Ask Milvus, with a filter of what is allowed; all labels are looked at in the rows that are here."""
        if self.ef_search is None or k > MOST:
            labels = np.arange(len(self)) if allow is None else np.asarray(allow)
            places, _ = largest(self.score(np.array(query[:-1], np.float32), labels), k)
            return [int(label) for label in labels[places]]
        within = "" if allow is None else f"label in {[int(label) for label in allow]}"
        params = {"metric_type": "IP", "params": {"ef": max(self.ef_search, k)}}
        with answered():
            (found,) = self.place.client.search(
                self.place.collection, [query], filter=within, limit=k, search_params=params, output_fields=["label"],
                timeout=TIMEOUT,
            )  # fmt: skip
        return [int(hit["label"]) for hit in found]

    def close(self) -> None:
        """Let Milvus go."""
        self.place.close()


@dataclass(frozen=True)
class MilvusPlace:
    """A collection of a Milvus server, or of a folder that milvus-lite holds."""

    address: str
    hash: str
    name: ClassVar[Engine] = "milvus"

    def __str__(self) -> str:
        return f"collection {self.collection}"

    @property
    def collection(self) -> str:
        """The collection of the model."""
        return f"longtail_{self.hash}"

    @cached_property
    def client(self) -> Any:
        """The connection, made when it is first used."""
        parts = urlsplit(self.address)
        if not parts.netloc:
            need("milvus_lite", "milvus")
        need("pymilvus", "milvus")
        from pymilvus import MilvusClient  # noqa: PLC0415  (an extra)

        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what goes wrong is told once, by us
        with answered():
            if not parts.netloc:
                return MilvusClient(parts.path, timeout=TIMEOUT)
            token = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
            return MilvusClient(f"http://{parts.hostname}:{parts.port or 19530}", token=token, timeout=TIMEOUT)

    def close(self) -> None:
        """Let Milvus go; whoever asks next connects again."""
        if "client" in vars(self):
            vars(self).pop("client").close()

    def facts(self) -> Mapping[str, Any] | None:
        """Read what was measured."""
        with answered():
            if not self.client.has_collection(self.collection):
                return None
            kept = dict(self.client.describe_collection(self.collection).get("properties") or {}).get(FACTS)
        return None if kept is None else dict(json.loads(kept))

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Write what was measured."""
        with answered():
            self.client.alter_collection_properties(self.collection, {FACTS: json.dumps(dict(facts))})

    def build(self, model: MemoryStore, progress: Progress | None = None) -> None:
        """Fill a collection of another name and rename it; of several that try, one does it."""
        from pymilvus import DataType, MilvusClient  # noqa: PLC0415

        client, partial = self.client, f"{self.collection}_{secrets.token_hex(4)}"
        with answered():
            if client.has_collection(self.collection):
                return
            schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("label", DataType.INT64, is_primary=True)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=model.dim + 1)
            graph, settings = client.prepare_index_params(), {"M": LINKS, "efConstruction": EF_CONSTRUCT}
            graph.add_index("vector", index_type="HNSW", metric_type="IP", params=settings)
            client.create_collection(partial, schema=schema, index_params=graph)
        try:
            with answered():
                for start in range(0, len(model), CHUNK):
                    rows = with_bias(model, slice(start, start + CHUNK)).tolist()
                    client.insert(partial, [{"label": place, "vector": row} for place, row in enumerate(rows, start)])
                    if progress is not None:
                        progress("handing labels over", min(start + CHUNK, len(model)), len(model))
                client.flush(partial)
                if not client.has_collection(self.collection):
                    client.rename_collection(partial, self.collection)
        finally:
            self._sweep()

    def _sweep(self) -> None:
        """Remove what this or a killed command left under another name, once the collection is there."""
        with answered():
            if self.client.has_collection(self.collection):
                for other in self.client.list_collections():
                    if other.startswith(f"{self.collection}_"):
                        self.client.drop_collection(other)

    def open(self, model: MemoryStore) -> MilvusStore:
        """Look whether the collection holds the labels of the model."""
        with answered():
            self.client.load_collection(self.collection)
            (counted,) = self.client.query(self.collection, output_fields=["count(*)"])
        if (count := int(counted["count(*)"])) != len(model):
            raise ModelError(f"{self.collection}: holds {count} labels, the model {len(model)}; make it again")
        return MilvusStore(model.rows, model.bias, place=self)

    def journal(self, folder: Path, model: str, current: Callable[[], str]) -> Journal:
        """Open the file beside the model, which replicas must share: Milvus has no transactions."""
        return Journal(folder, model, current)


@contextmanager
def answered() -> Iterator[None]:
    """Turn what Milvus raises into one line: a server that is away, or a refusal."""
    need("pymilvus", "milvus")
    from pymilvus.exceptions import MilvusException  # noqa: PLC0415

    try:
        yield
    except MilvusException as reason:
        if reason.code in AWAY:
            raise StoreDown(f"Milvus does not answer ({one_line(reason)}); start it, or ask again") from None
        raise DataError(f"Milvus refused: {one_line(reason)}", remedy="see its log") from None
