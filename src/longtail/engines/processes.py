"""A TASK → A PROCESS that runs it for one item after the other, and whose death is noticed.

The pipe of a worker has two ends, one in each process: when either dies, the other reads the end of a file. So a worker
ends with its driver (after the item that it has), and a driver learns which item a worker died over.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from longtail.limits import THREADS

SPAWN = get_context("spawn")  # a fork would copy the threads' locks of the libraries


class Worker:
    """A process with a task."""

    def __init__(self, task: Callable[[str], Any]) -> None:
        self.pipe, there = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(task, there), daemon=True)
        with _one_thread():
            self._process.start()
        there.close()

    def send(self, item: str) -> bool:
        """Hand out an item; return whether the process is alive to take it."""
        try:
            self.pipe.send(item)
        except OSError:
            self.end()
            return False
        return True

    def receive(self) -> Any:
        """Return the result of the item; None where the process died over it."""
        try:
            result, failure = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            return None
        if failure:
            raise RuntimeError(f"a task failed in its worker:\n{failure}")
        return result

    def exit_code(self) -> int | None:
        """Return how the process ended; a negative number is a signal."""
        return self._process.exitcode

    def end(self) -> None:
        """End the process: what it was writing is not there, or whole."""
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def first_ready(workers: Iterable[Worker]) -> Worker:
    """Wait for a worker that has a result, or has died."""
    by_pipe = {worker.pipe: worker for worker in workers}
    ready: Any = wait(list(by_pipe))[0]
    return by_pipe[ready]


def _serve(task: Callable[[str], Any], pipe: Connection) -> None:
    """Run the task for every item that comes, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver hears it, and ends its workers
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = task(item), ""
        except Exception:  # told by the driver, which knows what to do
            answer = None, traceback.format_exc()
        try:
            pipe.send(answer)
        except OSError:  # the driver is gone
            return


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that are started here have one thread each: there is one a core."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
