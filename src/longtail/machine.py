"""WORK → DONE ON ALL CORES: how many threads there may be, work that they share, and the memory in use."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import longtail
from longtail.errors import MissingExtra
from longtail.types import Floats

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
MOST_THREADS = 8  # every thread has buffers of its own
TURN = 0.0005  # seconds between turns of Python's threads, where two things are done at once
SMALL = 2**18  # multiplications that OpenBLAS does in one thread
COMPILER = 110_000_000  # bytes that numba takes
Item = TypeVar("Item")
Result = TypeVar("Result")
Other = TypeVar("Other")
Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def commit() -> str:
    """Return the commit of this code, with a + if the sources were changed since; outside a clone, the version."""
    git = ["git", "-C", str(Path(longtail.__file__).parent)]
    try:
        answers = [
            subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout.strip()
            for command in (
                ("ls-files", "--error-unmatch", "__init__.py"),  # a package that is installed inside another clone
                ("rev-parse", "--short", "HEAD"),
                ("status", "--porcelain", "--", "."),
            )
        ]
    except (OSError, subprocess.CalledProcessError):
        return f"longtail {longtail.__version__}"
    return answers[1] + ("+" if answers[2] else "")


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that decide numbers; None of one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("torch", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


class _ThreadState(threading.local):
    """Whether this thread is one of several that share the cores, and what it works beside."""

    sharing = False
    beside: _Beside | None = None


@dataclass
class _Beside:
    """Two things that are done at once."""

    both: bool = True  # whether neither has ended
    stopped: bool = False  # whether the second shall end, since the first has failed


_state = _ThreadState()


def processors() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Count the cores that the threads of this process may use, up to OMP_NUM_THREADS and MOST_THREADS."""
    available = processors()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(available, int(limit) if limit.isdecimal() and int(limit) else available, MOST_THREADS)


def threads() -> int:
    """Count the threads that a step may start: one a core, but one in all where `in_threads` has started them."""
    if _state.sharing:
        return 1
    return max(1, cores() // 2) if _state.beside is not None and _state.beside.both else cores()


def halved() -> bool:
    """Return whether the cores are shared with something that is done beside."""
    return _state.beside is not None and _state.beside.both


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Work on items in one thread a core, and yield the results in order."""

    def share() -> None:
        _state.sharing = True

    both = _state.beside
    with ThreadPoolExecutor(threads(), initializer=share) as pool:
        for result in pool.map(work, items):
            if both is not None and both.stopped:
                raise CancelledError
            yield result


def beside(first: Callable[[], Result], second: Callable[[], Other]) -> tuple[Result, Other]:
    """Do two things at once, each with half of the cores; the second in a thread, with all of them once it is alone.

    >>> beside(lambda: threads() <= cores(), lambda: 2)
    (True, 2)
    """
    if cores() == 1:
        return first(), second()
    both, interval, before = _Beside(), sys.getswitchinterval(), _state.beside

    def aside() -> Other:
        _state.beside = both
        return second()

    with ThreadPoolExecutor(1, "longtail-beside") as pool:
        _state.beside = both
        sys.setswitchinterval(TURN)  # small steps of the first wait for turns of the second
        try:
            other = pool.submit(aside)
            one = first()
        except BaseException:
            both.stopped = True
            raise
        finally:
            both.both, _state.beside = False, before
            sys.setswitchinterval(interval)
        return one, other.result()


def product(left: Floats, right: Floats) -> Floats:
    """Multiply (N, D) and (D, E).

    Threads of `in_threads` multiply a few rows at a time: BLAS would start threads of its own for more, and these wait
    for the next product at full speed, on the cores of the others.
    """
    if not _state.sharing:
        return np.asarray(left @ right, np.float32)
    rows = max(1, SMALL // max(1, right.size))
    out = np.empty((len(left), right.shape[1]), np.float32)
    for start in range(0, len(left), rows):
        np.matmul(left[start : start + rows], right, out=out[start : start + rows])
    return out


@cache
def compiles() -> bool:
    """Return whether there is a compiler, without importing it."""
    return find_spec("numba") is not None


def need(package: str, extra: str) -> None:
    """Say which extra brings a package that is not there, without importing it."""
    if sys.modules.get(package) is None and find_spec(package) is None:
        raise MissingExtra(package, extra)


def compiled(function: Function) -> Function:
    """Compile a function of numbers and arrays when it is first called, once for all processes; it holds no lock.

    Divisions by zero are infinite, as in numpy: to look for them keeps the compiler from doing several at once.
    """
    need("numba", "linear")
    import numba  # noqa: PLC0415  (an extra, which takes half a second to import)

    fastmath = {"reassoc", "contract", "arcp", "nsz"}
    kernel: Any = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath)(function)
    return kernel  # type: ignore[no-any-return]


def compiled_if_possible(function: Function) -> Function:
    """Compile a function where there is a compiler; elsewhere it is as right, and some tens of times slower."""
    return compiled(function) if compiles() else function


def keep_freed_memory() -> None:
    """Ask glibc not to give memory back to the system between two steps: to get it anew takes a tenth of a training."""
    for option, size in ((M_MMAP_THRESHOLD, 32 * 2**20), (M_TRIM_THRESHOLD, 512 * 2**20), (M_TOP_PAD, 32 * 2**20)):
        _glibc("mallopt", option, size)


def release_freed_memory() -> None:
    """Give memory that was kept back to the system."""
    _glibc("malloc_trim", 0)


def _glibc(function: str, *arguments: int) -> None:
    """Call a function of glibc; where the C library is another one, nothing happens."""
    try:
        call = ctypes.CDLL(None)[function]
    except (AttributeError, OSError, TypeError):
        return
    call(*arguments)


def memory_usage() -> tuple[int, int] | None:
    """Return the bytes of memory that this process uses now and the most it ever used, where the system says."""
    sizes = numbers("/proc/self/status")
    return (sizes["VmRSS"] * 1024, sizes["VmHWM"] * 1024) if {"VmRSS", "VmHWM"} <= sizes.keys() else None


def numbers(path: str) -> dict[str, int]:
    """Read what the kernel tells in lines of a name and a number; nothing where the system has no such file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = ((name, value.split()) for name, _, value in (line.partition(":") for line in lines))
    return {name: int(values[0]) for name, values in pairs if values and values[0].isdecimal()}
