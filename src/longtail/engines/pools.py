"""TASK × ITEMS → RESULTS: the same function on local processes, Dask, Ray or Spark.

A task is a function that can be pickled; it gets one item, writes what it makes whole or not at all, and returns a
small JSON object. So it may run twice, and an engine only has to repeat the items whose worker died. When RETRIES + 1
workers have died over one item, the run ends. Errors that the user can mend come back as results with the key `error`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from longtail.engines.processes import Worker, first_ready
from longtail.errors import LongtailError, ResourceError, nearest, one_line
from longtail.machine import need

RETRIES = 3
POLL = 0.1  # seconds between two looks at the results of Spark
Result = dict[str, Any]
Task = Callable[[str], Result]


@dataclass(frozen=True)
class Cluster:
    """Where workers are: so many processes of this machine, or a cluster that runs already."""

    workers: int
    address: str | None = None  # of Dask's scheduler, of Ray's head or of Spark's master


Engine = Callable[[Task, Sequence[str], Cluster], Iterator[Result]]


@dataclass(frozen=True)
class _Guarded:
    """A task whose expected errors are results: every engine wraps exceptions in its own way."""

    task: Task

    def __call__(self, item: str) -> Result:
        """Run the task."""
        try:
            return self.task(item)
        except (LongtailError, OSError) as reason:
            return {"item": item, "error": str(reason)}


def run(engine: str, task: Task, items: Sequence[str], cluster: Cluster) -> Iterator[Result]:
    """Run a task for every item and yield the results as they come, in any order.

    >>> list(run("local", str.upper, [], Cluster(2)))
    []
    """
    if engine not in ENGINES:
        raise ResourceError(f"{engine!r} is not an engine; {nearest(engine, ENGINES)}")
    if items:
        yield from ENGINES[engine](_Guarded(task), items, cluster)


def died(item: str, how: str) -> ResourceError:
    """Say that workers die over an item."""
    return ResourceError(
        f"{RETRIES + 1} workers died over {item} ({how}); probably memory: allow more, or take fewer --workers. "
        "The same command goes on"
    )


def local(task: Task, items: Sequence[str], cluster: Cluster) -> Iterator[Result]:
    """Run tasks in processes of this machine; one that dies is replaced, and the others never notice."""
    if cluster.address is not None:
        raise ResourceError("--address is for dask, ray and spark; leave it out, or choose an --engine")
    waiting, deaths = deque(items), Counter[str]()
    idle: list[Worker] = []
    busy: dict[Worker, str] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < cluster.workers:
                worker = idle.pop() if idle else Worker(task)
                if worker.send(waiting[0]):  # else it died while it had nothing to do
                    busy[worker] = waiting.popleft()
            worker = first_ready(busy)
            item = busy.pop(worker)
            result = worker.receive()
            if result is None:
                deaths[item] += 1
                if deaths[item] > RETRIES:
                    raise died(item, f"exit code {worker.exit_code()}")
                waiting.appendleft(item)
                continue
            idle.append(worker)
            yield result
    finally:
        for worker in (*idle, *busy):
            worker.end()


def dask(task: Task, items: Sequence[str], cluster: Cluster) -> Iterator[Result]:
    """Run tasks on a Dask cluster, or on processes of this machine that Dask starts."""
    need("distributed", "dask")
    from distributed import Client, KilledWorker, LocalCluster, as_completed  # noqa: PLC0415  (an extra)

    @contextmanager
    def started() -> Iterator[Any]:
        if cluster.address is not None:
            yield cluster.address
            return
        options = {"threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
        with LocalCluster(n_workers=min(cluster.workers, len(items)), **options) as machine:
            yield machine

    with started() as place, Client(place) as client:
        futures = client.map(task, list(items), pure=False, key=[f"longtail-{n}" for n in range(len(items))])
        try:
            for _, result in as_completed(futures, with_results=True):
                yield result
        except KilledWorker as reason:
            raise died("one item", str(reason)) from None


def ray(task: Task, items: Sequence[str], cluster: Cluster) -> Iterator[Result]:
    """Run tasks on a Ray cluster, or on one that Ray starts here."""
    need("ray", "ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray as engine  # noqa: PLC0415  (an extra)

    own = not engine.is_initialized()
    if own:
        there = cluster.address is not None or "RAY_ADDRESS" in os.environ
        place = {"address": cluster.address} if there else {"num_cpus": cluster.workers, "include_dashboard": False}
        try:
            engine.init(log_to_driver=False, logging_level="ERROR", **place)
        except Exception as reason:  # Ray raises nothing more special when a busy machine takes too long to start it
            raise ResourceError(f"Ray did not start ({one_line(reason)}); the same command tries it again") from None
    try:
        shared = engine.put(task)
        remote = engine.remote(num_cpus=1, max_retries=RETRIES)(_called)
        waiting, running = deque(items), dict[Any, str]()
        most = 2 * max(cluster.workers, int(engine.cluster_resources().get("CPU", 1)))  # so that none waits for an item
        while waiting or running:
            while waiting and len(running) < most:
                item = waiting.popleft()
                running[remote.remote(shared, item)] = item
            (ready, *_), _ = engine.wait(list(running))
            item = running.pop(ready)
            try:
                result = engine.get(ready)
            except engine.exceptions.WorkerCrashedError as reason:
                raise died(item, type(reason).__name__) from None
            yield result
    finally:
        if own:
            engine.shutdown()


def _called(task: Task, item: str) -> Result:
    """Run a task."""
    return task(item)


def spark(task: Task, items: Sequence[str], cluster: Cluster) -> Iterator[Result]:
    """Run tasks as the partitions of one Spark job; results come through an accumulator, each once."""
    need("pyspark", "spark")
    from pyspark.accumulators import AccumulatorParam  # noqa: PLC0415  (an extra)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    class Lists(AccumulatorParam):  # type: ignore[misc]
        def zero(self, value: list[Result]) -> list[Result]:
            return []

        def addInPlace(self, value1: list[Result], value2: list[Result]) -> list[Result]:  # noqa: N802
            value1.extend(value2)
            return value1

    own = SparkSession.getActiveSession() is None
    master = cluster.address or f"local[{cluster.workers},{RETRIES + 1}]"
    builder = SparkSession.builder.appName("longtail").master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.pyspark.python", sys.executable).getOrCreate()
    context = session.sparkContext
    results = context.accumulator([], Lists())
    failure: list[Exception] = []

    def job() -> None:
        try:
            context.parallelize(list(items), len(items)).foreach(lambda item: results.add([task(item)]))
        except Exception as reason:  # told by the thread that waits
            failure.append(reason)

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    told = 0
    try:
        while thread.is_alive() or told < len(results.value):
            now = len(results.value)
            yield from results.value[told:now]
            told = now
            time.sleep(POLL)
        if failure:
            raise died("one item", str(failure[0]).splitlines()[0]) from None
    finally:
        if own:
            context.cancelAllJobs()
            session.stop()


ENGINES: Mapping[str, Engine] = MappingProxyType({"local": local, "dask": dask, "ray": ray, "spark": spark})
