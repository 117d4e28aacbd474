"""SYSTEM → WHAT IT HAS: locks, flags, signals and sizes that Linux has and others lack, each with what replaces it.

Imports nothing that takes memory. Where nothing can be locked, one writer at a time is up to the user.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from contextlib import suppress
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # not Windows
    msvcrt = None  # type: ignore[assignment]


def flags(*names: str) -> int:
    """Join the flags of `os.open` that this system has.

    >>> flags("O_RDONLY", "O_OF_ANOTHER_SYSTEM") == os.O_RDONLY
    True
    """
    found = 0
    for name in names:
        found |= vars(os).get(name, 0)
    return found


def signals(*names: str) -> tuple[signal.Signals, ...]:
    """List the signals that this system has.

    >>> [one.name for one in signals("SIGTERM", "SIGOTHER")]
    ['SIGTERM']
    """
    return tuple(signal.Signals[name] for name in names if name in signal.Signals.__members__)


QUIET = flags("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")  # not inherited, no link is followed, no pipe is waited for
FORKS = hasattr(os, "fork")
OPENS_FOLDERS = os.name != "nt"  # whether a folder can be opened, locked and forced to the disk
LOCKLESS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # of file systems that have no locks
BEHIND = 2**30  # the byte of a file that stands for all of it, where only bytes are locked


def lock(handle: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file until it is closed; BlockingIOError where another has it and nobody waits.

    Returns False where the system, or its file system, has no locks.
    """
    try:
        if fcntl is not None:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        elif msvcrt is not None:
            _lock_byte(handle, msvcrt, wait=wait)
        else:
            return False
    except OSError as reason:
        if reason.errno in LOCKLESS:
            return False
        raise
    return True


def unlock(handle: int) -> None:
    """Let others have a file that stays open."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_UN)
    elif msvcrt is not None:
        _at_byte(handle, lambda: msvcrt.locking(handle, msvcrt.LK_UNLCK, 1))


def _lock_byte(handle: int, windows: Any, *, wait: bool) -> None:
    """Lock the byte that stands for a file, which nobody can share."""
    while True:
        try:
            _at_byte(handle, lambda: windows.locking(handle, windows.LK_LOCK if wait else windows.LK_NBLCK, 1))
        except OSError as reason:
            if not wait:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process has it") from None
            if reason.errno != errno.EDEADLK:  # what Windows says after ten tries
                raise
        else:
            return


def _at_byte(handle: int, work: Any) -> None:
    """Do something at the byte that stands for a file, and go back to where it was read or written."""
    before = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, BEHIND, os.SEEK_SET)
    try:
        work()
    finally:
        os.lseek(handle, before, os.SEEK_SET)


def write_at(handle: int, data: bytes, place: int) -> int:
    """Write bytes at a place of a file; return how many were written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(handle, data, place)
    os.lseek(handle, place, os.SEEK_SET)
    return os.write(handle, data)


def read_at(handle: int, count: int, place: int) -> bytes:
    """Read bytes at a place of a file."""
    if hasattr(os, "pread"):
        return os.pread(handle, count, place)
    os.lseek(handle, place, os.SEEK_SET)
    return os.read(handle, count)


def address_space() -> int | None:
    """Return the bytes of address space that this process may take (`ulimit -v`); None: any."""
    if resource is None:
        return None
    limit = min(resource.getrlimit(resource.RLIMIT_AS), key=lambda value: (value == resource.RLIM_INFINITY, value))
    return None if limit == resource.RLIM_INFINITY else limit


def allow_open_files() -> None:
    """Let this process open as many files as it is ever allowed to."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):  # where even that is not allowed
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def memory() -> float:
    """Return the bytes of memory of this machine; without end where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return float("inf")
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


PR_SET_PDEATHSIG = 1  # of Linux


def end_with(parent: int) -> None:
    """Ask Linux to end this process with the one that waits for it."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError, TypeError):  # another system
        return
    if os.getppid() != parent:  # it ended before it could be asked
        sys.exit(1)
