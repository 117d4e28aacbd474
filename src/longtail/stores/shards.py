"""LABEL VECTORS BEHIND OTHER SERVICES: each searches a part of the labels, and the best of all are kept.

The parts are `longtail serve` processes, here or on other machines, that serve the same model; who asks says which part
each searches, so that a service needs no setting for it. A part looks at all of its labels: nothing is missed.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, ModelError, StoreDown, one_line
from longtail.labels.journal import Journal
from longtail.stores.engine import Engine, EngineStore
from longtail.stores.memory import MemoryStore
from longtail.types import Floats, Ints, Progress

PATH, PORT, TIMEOUT = "/v1/nearest", 8000, 10.0
MOST, DEEPEST = 256, 1000  # queries and labels of a request
ALLOWED = 10_000  # labels that a request may name; more are left to the rows that are here


@dataclass(frozen=True, eq=False)
class PartQuery:
    """Vectors, and the part of the labels that they are compared with: the labels are cut into `parts` equal ones."""

    vectors: str  # numbers of four bytes, little-endian, row by row, in base64
    k: int
    part: int = 0
    parts: int = 1
    allow: Sequence[int] | None = None  # only these labels

    @classmethod
    def of(cls, queries: Floats, k: int, **more: Any) -> PartQuery:
        """Write vectors (N, D) as text.

        >>> store = MemoryStore.of(np.eye(4, dtype=np.float32))
        >>> PartQuery.of(np.array([[1, 2, 3, 4]], np.float32), 1, parts=2).search(store)[0].tolist()
        [[1]]
        """
        return cls(base64.b64encode(np.ascontiguousarray(queries, "<f4").tobytes()).decode(), k, **more)

    def search(self, store: Any) -> tuple[Ints, Floats]:
        """Find the k largest scores of each query in this part of a model's vectors."""
        if not isinstance(store, MemoryStore):
            raise DataError("the model has no label vectors", remedy="ask for texts: /v1/predict")
        first, end = self.bounds(len(store))
        some: Any = slice(first, end)
        labels = np.arange(first, end)
        if self.allow is not None:
            some = labels = np.unique(np.array([label for label in self.allow if first <= label < end], np.int64))
        own = MemoryStore.of(store.take(some), store.bias[some])
        found, scores = own.exact(self._read(store.dim), min(self.k, len(labels)))
        return labels[found].astype(np.int32), scores

    def bounds(self, count: int) -> tuple[int, int]:
        """Return the first of so many labels that are in this part, and the one behind the last."""
        return count * self.part // self.parts, count * (self.part + 1) // self.parts

    def fits(self, labels: NDArray[Any], scores: Floats, rows: int, count: int) -> bool:
        """Return whether this may be the answer for so many vectors and labels: those of the part, each once a row."""
        first, end = self.bounds(count)
        if labels.ndim != 2 or labels.shape != scores.shape or len(labels) != rows or not np.isfinite(scores).all():
            return False
        own = min(self.k, end - first)  # as many as it finds, unless only some are allowed
        if labels.shape[1] > own or (self.allow is None and labels.shape[1] < own):
            return False
        inside = bool(((labels >= first) & (labels < end)).all())
        return inside and bool((np.diff(np.sort(labels, axis=1), axis=1) > 0).all())

    def _read(self, dim: int) -> Floats:
        """Read the vectors (N, D)."""
        try:
            content = base64.b64decode(self.vectors, validate=True)
        except ValueError:
            content = b""
        vectors = np.frombuffer(content[: len(content) // 4 * 4], "<f4").astype(np.float32)
        if not len(vectors) or len(content) % (4 * dim) or not np.isfinite(vectors).all():
            raise DataError(f"vectors: not whole rows of {dim} finite numbers", remedy="ask the model that made them")
        return vectors.reshape(-1, dim)


@dataclass(frozen=True, eq=False)
class ShardStore(EngineStore):
    """Label vectors that other services search, a part each."""

    has_graph: ClassVar[bool] = False
    place: Any = None  # ShardsPlace

    def nearest(self, query: list[float], k: int, allow: NDArray[Any] | None) -> list[int]:
        """Ask all parts for one query."""
        asked = PartQuery.of(np.array([query[:-1]], np.float32), k, allow=None if allow is None else allow.tolist())
        here = k > DEEPEST or len(asked.allow or ()) > ALLOWED
        labels, _ = asked.search(self) if here else self.place.ask(asked, 1, len(self))
        return [int(label) for label in labels[0]]

    def search(self, queries: Floats, k: int) -> tuple[Ints, Floats]:
        """Ask all parts for many queries at once, and keep the best."""
        k = min(k, len(self))
        if k > DEEPEST:
            return self.exact(queries, k)
        cut = [queries[at : at + MOST] for at in range(0, len(queries), MOST)]
        blocks = [self.place.ask(PartQuery.of(block, k), len(block), len(self)) for block in cut]
        empty = np.zeros((0, k))
        labels, scores = zip(*blocks, strict=True) if blocks else ((empty,), (empty,))
        return np.concatenate(labels).astype(np.int32), np.concatenate(scores).astype(np.float32)

    def close(self) -> None:
        """Let the services go."""
        self.place.connections.close()


class Held:
    """A connection to each service, which are closed with the thread that has them."""

    def __init__(self, hosts: Sequence[tuple[str, int]]) -> None:
        self.all = [http.client.HTTPConnection(*host, timeout=TIMEOUT) for host in hosts]
        for one in self.all:
            weakref.finalize(self, one.close)


class Connections(threading.local):
    """The connections of each thread, made when they are first used and again after they were lost."""

    def __init__(self, hosts: Sequence[tuple[str, int]]) -> None:
        self.hosts = hosts
        self.held: Held | None = None

    def __reduce__(self) -> tuple[type[Connections], tuple[Any]]:
        return Connections, (self.hosts,)

    def each(self) -> list[http.client.HTTPConnection]:
        """Return a connection to each service."""
        self.held = self.held or Held(self.hosts)
        return self.held.all

    def close(self) -> None:
        """Let the services go, as far as this thread is concerned."""
        self.held = None


@dataclass(frozen=True)
class ShardsPlace:
    """Services that serve a model, each for a part of its labels: shards://host1:8000,host2:8000."""

    address: str
    hash: str
    name: ClassVar[Engine] = "shards"
    connections: Connections = field(init=False, repr=False, compare=False)
    headers: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        credentials, _, hosts = urlsplit(self.address).netloc.rpartition("@")
        try:
            parts = [urlsplit(f"//{host}") for host in hosts.split(",")]
            found = [(str(part.hostname or ""), part.port or PORT) for part in parts]
        except ValueError:
            found = [("", 0)]
        if not all(host for host, _ in found):
            raise DataError("no hosts in the address of the shards", remedy="write shards://host1:8000,host2:8000")
        key = unquote(credentials.partition(":")[2])
        object.__setattr__(self, "connections", Connections(found))
        object.__setattr__(self, "headers", {"Content-Type": "application/json"} | ({"X-API-Key": key} if key else {}))

    def __str__(self) -> str:
        return f"{len(self.connections.hosts)} shards"

    def ask(self, asked: PartQuery, rows: int, count: int) -> tuple[Ints, Floats]:
        """Ask every service for its part of so many labels, all at once, about so many vectors.

        The k best are kept, among equals the smaller.
        """
        hosts = len(self.connections.hosts)
        every = [replace(asked, part=part, parts=hosts) for part in range(hosts)]
        again = self.connections.held is not None  # a service may have closed what was idle
        try:
            for own, connection in zip(every, self.connections.each(), strict=True):
                body = json.dumps(vars(own) | {"hash": self.hash})
                connection.request("POST", PATH, body, dict(self.headers))
            answers = [
                self._answer(connection, own, rows, count)
                for own, connection in zip(every, self.connections.each(), strict=True)
            ]
        except (OSError, http.client.HTTPException) as reason:
            self.connections.close()
            if again:
                return self.ask(asked, rows, count)
            raise StoreDown(f"a shard does not answer ({one_line(reason)}); start it, or ask again") from None
        except BaseException:
            self.connections.close()  # what the others would have said is not read any more
            raise
        labels, scores = (np.concatenate(part, axis=1) for part in zip(*answers, strict=True))
        order = np.argsort(-scores, axis=1, kind="stable")[:, : asked.k]  # parts come in the order of their labels
        return np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)

    def _answer(
        self, connection: http.client.HTTPConnection, asked: PartQuery, rows: int, count: int
    ) -> tuple[NDArray[np.int64], Floats]:  # fmt: skip
        """Read the answer of one service: labels and scores."""
        response = connection.getresponse()
        content = response.read()
        if response.status in (404, 409, 429, 503):  # it serves another model for a moment, or has too much to do
            raise StoreDown(f"the shard {connection.host}:{connection.port}: {_detail(content)}")
        if response.status != http.HTTPStatus.OK:
            raise DataError(
                f"the shard {connection.host}:{connection.port} refused: {_detail(content)}",
                remedy="its API key goes into the address: shards://:KEY@host1,host2",
            )
        try:
            answer = json.loads(content)
            labels, scores = np.array(answer["labels"]), np.array(answer["scores"], np.float32)
            labels = labels if labels.size else labels.astype(np.int64)
            sound = labels.dtype == np.int64 and asked.fits(labels, scores, rows, count)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            sound = False
        if not sound:
            raise DataError(
                f"the shard {connection.host}:{connection.port} did not answer with labels of this model",
                remedy="serve the same model there",
            )
        return labels, scores

    def facts(self) -> Mapping[str, Any] | None:
        """Nothing is measured: a part looks at all of its labels."""
        return {
            "precision": "fp32", "search": self.name, "recall": 1.0, "wanted": 1.0, "texts": 0, "ef_search": 0,
        }  # fmt: skip

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Keep nothing."""

    def build(self, model: MemoryStore, progress: Progress | None = None) -> None:
        """Hand nothing over: see whether every service has the model."""
        self.open(model)

    def open(self, model: MemoryStore) -> ShardStore:
        """Ask every service for one label."""
        labels, _ = self.ask(PartQuery.of(np.zeros((1, model.dim), np.float32), 1), 1, len(model))
        if len(model) and not labels.size:
            raise ModelError("the shards have no labels; serve the model there")
        return ShardStore(model.rows, model.bias, place=self)

    def journal(self, folder: Path, model: str, current: Callable[[], str]) -> Journal:
        """Open the file beside the model."""
        return Journal(folder, model, current)


def _detail(content: bytes) -> str:
    """Read what a service complains about."""
    try:
        return str(json.loads(content)["detail"])
    except (ValueError, KeyError, TypeError):
        return "no answer that can be read"
