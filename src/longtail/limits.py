"""SYSTEM → LIMITS OF MEMORY: how much this process may take, and which errors mean that it was too little.

Imports nothing that takes memory itself: it is asked before numpy and torch are there.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from longtail.system import address_space, memory

LEAST = 400 * 2**20  # bytes of address space that the libraries of every command take together
THREAD = 512 * 2**20  # bytes of address space that each further thread may take: its stack, its heap, its buffers
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_IO_THREADS")
CGROUPS, MINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
EARLIER, CURRENT = ("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current")  # of Linux
WORDS = (  # of libraries that raise something else than MemoryError
    "allocate memory", "unable to allocate", "bad_alloc", "out of memory", "not enough memory", "failed to map segment",
    "can't start new thread", "error return without exception set", "insufficient memory",
)  # fmt: skip


def cgroup() -> tuple[int, int] | None:
    """Return the bytes that the group of this process may take and those that it has, where a limit is set."""
    found = []
    for line in _lines(MINE):
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root, names = (CGROUPS / "memory", EARLIER) if kinds else (CGROUPS, CURRENT)
        inside = Path(place.lstrip("/"))
        for folder in (inside, *inside.parents):  # in a container, only the last may be there
            most, now = (_number(root / folder / name) for name in names)
            if most is not None and now is not None and most < memory():
                found.append((most, now))
    return min(found, default=None, key=lambda one: one[0] - one[1])


def in_words() -> str:
    """Say which limit of memory is set; empty where none is."""
    space, group = address_space(), cgroup()
    told = [] if space is None else [f"{space >> 20:,} MB of address space (ulimit -v)"]
    told += [] if group is None else [f"{group[0] >> 20:,} MB of memory (cgroup)"]
    return " and ".join(told)


def is_shortage(reason: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, means that there was too little memory.

    >>> is_shortage(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_shortage(RuntimeError("a bug"))
    (True, False)
    """
    seen: set[int] = set()
    while reason is not None and id(reason) not in seen:
        seen.add(id(reason))
        if isinstance(reason, MemoryError) or (isinstance(reason, OSError) and reason.errno == errno.ENOMEM):
            return True
        if isinstance(reason, RuntimeError | SystemError | ImportError | OSError):
            text = str(reason).lower()
            if any(words in text for words in WORDS):
                return True
        reason = reason.__cause__ or reason.__context__
    return False


def shortage() -> str:
    """Say in one line that there was too little memory."""
    limit = in_words()
    allowed = f": this process may take {limit}; allow more" if limit else ""
    return f"out of memory{allowed}, or give it less to do (`train --dry-run` estimates what it needs)"


def few_threads() -> None:
    """Let libraries start no more threads than the address space holds: they fail, or wait for ever, otherwise."""
    space = address_space()
    if space is not None:
        most = str(max(1, (space - 2**31) // THREAD))
        for name in THREADS:
            if not os.environ.get(name, "").isdecimal() or int(os.environ[name]) > int(most):
                os.environ[name] = most
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others reserve a gigabyte at once


def _number(path: Path) -> int | None:
    """Read a whole number of the kernel; None where there is none."""
    text = "".join(_lines(path)[:1])
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    """Read lines of the kernel; none where there is no such file."""
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
