"""LABEL VECTORS IN POSTGRESQL, by pgvector: a table for each model, filled and indexed in one transaction.

Labels that are added and removed are there too when they are acknowledged, so that machines which share no folder see
the changes of each other. A server that is away is told as such (`StoreDown`) and asked again with the next query. Each
thread has a connection of its own.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, ModelError, StoreDown, one_line
from longtail.labels.journal import FILE, Journal
from longtail.machine import need
from longtail.stores.engine import Engine, EngineStore, with_bias
from longtail.stores.memory import MemoryStore
from longtail.types import Progress

log = logging.getLogger("longtail")
FACTS = "longtail_models"  # what was measured: a row for each table
CHANGES = "longtail_changes"  # of labels: the lines of the journals of all models
EVERY = 0.5  # seconds between two looks at the changes of others
WIDEST = 2000  # dimensions that pgvector's graph can have
CHUNK = 1000  # labels that are handed over at once
TIMEOUT = 5  # seconds to connect


class Held:
    """A connection, which is closed with the thread that has it."""

    def __init__(self, address: str) -> None:
        import psycopg  # noqa: PLC0415  (an extra)

        self.connection = psycopg.connect(address, connect_timeout=TIMEOUT, autocommit=True)
        weakref.finalize(self, self.connection.close)


class Connections(threading.local):
    """The connection of each thread to a server, made when it is first used and again after it was lost."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.held: Held | None = None

    def __reduce__(self) -> tuple[type[Connections], tuple[str]]:
        return Connections, (self.address,)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Give a cursor inside of a transaction."""
        import psycopg  # noqa: PLC0415

        try:
            self.held = self.held or Held(self.address)
            with self.held.connection.transaction(), self.held.connection.cursor() as cursor:
                yield cursor
        except (psycopg.OperationalError, psycopg.InterfaceError) as reason:
            self.close()
            raise StoreDown(f"PostgreSQL does not answer ({one_line(reason)}); start it, or ask again") from None
        except psycopg.Error as reason:
            raise DataError(f"PostgreSQL refused: {one_line(reason)}", remedy="see its log") from None

    def close(self) -> None:
        """Let the server go, as far as this thread is concerned."""
        self.held = None


@dataclass(frozen=True, eq=False)
class PostgresStore(EngineStore):
    """Label vectors that PostgreSQL searches."""

    table: str = ""
    connections: Any = None

    def nearest(self, query: list[float], k: int, allow: NDArray[Any] | None) -> list[int]:
        """Ask PostgreSQL; what is not allowed is left out there, however far the graph must be followed for it."""
        within = "" if allow is None else "WHERE label = ANY(%(allow)s)"
        given = {"query": _literal(query), "k": k, "allow": None if allow is None else [int(one) for one in allow]}
        with self.connections.transaction() as cursor:
            if self.ef_search is None:
                cursor.execute("SET LOCAL enable_indexscan = off")
            else:
                cursor.execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(self.ef_search, k))}")
                cursor.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            cursor.execute(
                f"SELECT label FROM {self.table} {within} ORDER BY vector <#> %(query)s::vector LIMIT %(k)s", given
            )
            return [label for (label,) in cursor.fetchall()]

    def close(self) -> None:
        """Let the server go."""
        self.connections.close()


@dataclass(frozen=True)
class PostgresPlace:
    """A table of a PostgreSQL server that has pgvector."""

    address: str
    hash: str
    name: ClassVar[Engine] = "postgresql"
    connections: Connections = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        need("psycopg", "postgres")
        object.__setattr__(self, "connections", Connections(self.address))

    def __str__(self) -> str:
        return f"table {self.table}"

    @property
    def table(self) -> str:
        """The table of the model."""
        return f"longtail_{self.hash}"

    def facts(self) -> Mapping[str, Any] | None:
        """Read what was measured."""
        with self.connections.transaction() as cursor:
            if not _there(cursor, FACTS):
                return None
            cursor.execute(f"SELECT facts FROM {FACTS} WHERE name = %s", [self.table])
            found = cursor.fetchone()
        return None if found is None else dict(found[0])

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Write what was measured."""
        with self.connections.transaction() as cursor:
            _alone(cursor, FACTS)
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {FACTS} (name text PRIMARY KEY, facts jsonb NOT NULL)")
            cursor.execute(
                f"INSERT INTO {FACTS} VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET facts = EXCLUDED.facts",
                [self.table, json.dumps(dict(facts))],
            )

    def build(self, model: MemoryStore, progress: Progress | None = None) -> None:
        """Make the table and its graph, in one transaction; of several that try, one does it."""
        wide = model.dim + 1
        with self.connections.transaction() as cursor:
            _alone(cursor, FACTS)
            if _there(cursor, self.table):
                return
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            cursor.execute(f"CREATE TABLE {self.table} (label integer PRIMARY KEY, vector vector({wide}) NOT NULL)")
            with cursor.copy(f"COPY {self.table} (label, vector) FROM STDIN") as copy:
                for start in range(0, len(model), CHUNK):
                    for place, row in enumerate(with_bias(model, slice(start, start + CHUNK)).tolist(), start):
                        copy.write_row((place, _literal(row)))
                    if progress is not None:
                        progress("handing labels over", min(start + CHUNK, len(model)), len(model))
            if wide <= WIDEST:
                cursor.execute(f"CREATE INDEX ON {self.table} USING hnsw (vector vector_ip_ops)")

    def open(self, model: MemoryStore) -> PostgresStore:
        """Look whether the table holds the labels of the model."""
        with self.connections.transaction() as cursor:
            if not _there(cursor, self.table):
                raise ModelError(f"PostgreSQL has no table {self.table}; make it again")
            cursor.execute(f"SELECT count(*) FROM {self.table}")
            (count,) = cursor.fetchone()
        if count != len(model):
            raise ModelError(f"{self.table}: holds {count} labels, the model {len(model)}; make it again")
        return PostgresStore(model.rows, model.bias, table=self.table, connections=self.connections)

    def journal(self, folder: Path, model: str, current: Callable[[], str]) -> TableJournal:
        """Open the changes of the model's labels, which all machines share; those beside the model do not count."""
        if (folder / FILE).is_file():
            log.warning(
                "%s: its changes of labels are not in the store, and do not count; make them again", folder / FILE
            )
        return TableJournal(self, folder, model, current)


class TableJournal(Journal):
    """The changes of one model's labels in a table; writers of all machines take turns."""

    def __init__(self, place: PostgresPlace, folder: Path, model: str, current: Callable[[], str]) -> None:
        super().__init__(folder, model, current)
        self.path, self._place, self._next = f"table {CHANGES}", place, 0.0

    def refresh(self) -> bool:
        """Read what was appended, unless that was done a moment ago."""
        if self._stamp is not None and time.monotonic() < self._next:
            return False
        changed = super().refresh()
        self._next = time.monotonic() + EVERY
        return changed

    def stamp(self) -> int:
        """Count the lines."""
        with self._place.connections.transaction() as cursor:
            if not _there(cursor, CHANGES):
                return 0
            cursor.execute(f"SELECT count(*) FROM {CHANGES} WHERE name = %s", [self._place.table])
            return int(cursor.fetchone()[0])

    def content(self) -> tuple[int, bytes]:
        """Read the lines."""
        with self._place.connections.transaction() as cursor:
            if not _there(cursor, CHANGES):
                return 0, b""
            cursor.execute(f"SELECT line FROM {CHANGES} WHERE name = %s ORDER BY number", [self._place.table])
            lines = [line for (line,) in cursor.fetchall()]
        return len(lines), "".join(f"{line}\n" for line in lines).encode()

    @contextmanager
    def changing(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Keep other writers away, read what they wrote, and yield a function that appends a record."""
        before = self.changes
        try:
            with self._place.connections.transaction() as cursor:
                _alone(cursor, CHANGES)
                columns = "name text, number integer, line text NOT NULL, PRIMARY KEY (name, number)"
                cursor.execute(f"CREATE TABLE IF NOT EXISTS {CHANGES} ({columns})")
                self._ready()
                yield lambda record: self._insert(cursor, record)
        except BaseException:
            self.changes, self._stamp = before, None  # what was read in there may not have come to stay
            raise

    def _insert(self, cursor: Any, record: dict[str, Any]) -> None:
        """Append a record; it counts when the transaction ends."""
        for number, line in enumerate(self.lines(record), int(self._stamp)):
            given = [self._place.table, number, line.decode().rstrip("\n")]
            cursor.execute(f"INSERT INTO {CHANGES} VALUES (%s, %s, %s)", given)
        self._read()


def _alone(cursor: Any, what: str) -> None:
    """Wait until no other transaction has this to itself, and have it until the end of this one."""
    cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [what])


def _there(cursor: Any, table: str) -> bool:
    """Return whether there is a table."""
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [table])
    return bool(cursor.fetchone()[0])


def _literal(values: list[float]) -> str:
    """Write a vector as pgvector reads it."""
    return "[" + ",".join(map(repr, np.asarray(values, np.float32).tolist())) + "]"
