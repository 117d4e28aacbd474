"""CORES AND MEMORY: how many threads may work, work that is shared among them, and what the process holds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

MOST_THREADS = 8  # every thread has buffers of its own
Item = TypeVar("Item")
Made = TypeVar("Made")


class _Here(threading.local):
    """Whether this thread is one of several that share the cores."""

    sharing = False


class _Alone:
    """How many pools are at work, and what gives BLAS its threads back after the last."""

    def __init__(self) -> None:
        self.lock, self.pools = threading.Lock(), 0
        self.limit: Any = None


_here, _alone = _Here(), _Alone()


def cores() -> int:
    """Count the cores that this process may use, up to OMP_NUM_THREADS and MOST_THREADS."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(own, int(asked) if asked.isdecimal() and int(asked) else own, MOST_THREADS)


def threads() -> int:
    """Count the threads that a step may start: one a core, but one in all where `in_threads` has started them."""
    return 1 if _here.sharing else cores()


def in_threads(work: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """Work on items in one thread a core, and yield what they make, in order."""

    def share() -> None:
        _here.sharing = True

    with _blas_alone(), ThreadPoolExecutor(threads(), initializer=share) as pool:
        yield from pool.map(work, items)


@contextmanager
def _blas_alone() -> Iterator[None]:
    """Keep BLAS to one thread: its threads wait for the next product at full speed, on the cores of others."""
    with _alone.lock:
        _alone.pools += 1
        if _alone.pools == 1:
            _alone.limit = _libraries().limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _alone.lock:
            _alone.pools -= 1
            if _alone.pools == 0:
                _alone.limit.restore_original_limits()


@cache
def _libraries() -> Any:
    """Look once for the libraries with threads: numpy's is loaded, and a look takes milliseconds."""
    return ThreadpoolController()


def held() -> tuple[int, int] | None:
    """Return the bytes of memory that this process holds now and the most it ever held, where the system tells."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    if "VmRSS" not in sizes or "VmHWM" not in sizes:
        return None
    now, most = (int(sizes[name][0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, most
