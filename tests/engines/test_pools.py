"""Processes that run a task: replaced when they die, ended with their driver."""

from __future__ import annotations

import os
import signal
import time

import pytest
from killing import always_die, double, fail

from longtail.engines.pools import Cluster, local
from longtail.engines.processes import Worker
from longtail.errors import ResourceError


def test_every_item_is_done_by_processes_of_one_thread() -> None:
    results = list(local(double, [str(n) for n in range(9)], Cluster(2)))
    assert sorted(result["twice"] for result in results) == [2 * str(n) for n in range(9)]
    assert {result["threads"] for result in results} == {"1"}
    assert os.getpid() not in {result["process"] for result in results}
    for result in results:
        with pytest.raises(ProcessLookupError):
            os.kill(result["process"], 0)


def test_an_item_that_kills_every_worker_ends_the_run() -> None:
    with pytest.raises(ResourceError, match=r"4 workers died over x \(exit code -9\); probably memory"):
        list(local(always_die, ["x"], Cluster(1)))


def test_a_mistake_in_a_task_is_told_at_once() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)failed in its worker.*ZeroDivisionError"):
        list(local(fail, ["x"], Cluster(1)))


def test_an_idle_worker_that_died_takes_nothing() -> None:
    worker = Worker(double)
    assert worker.send("a") and worker.receive()["twice"] == "aa"
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.join()
    time.sleep(0.05)
    assert not worker.send("b")


def test_an_address_is_for_clusters() -> None:
    with pytest.raises(ResourceError, match="--address is for dask"):
        list(local(double, ["x"], Cluster(1, "tcp://localhost:1")))
