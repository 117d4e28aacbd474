"""BYTES → DISK, whole or not at all: temporary names, locks, and folders that change places in one step.

Everything is written under a temporary name, forced to the disk, and renamed. A writer holds a lock on what it writes:
so what a killed one left behind is told from what is being written, and the next writer sweeps it away.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longtail import system
from longtail.errors import DataError, Occupied
from longtail.system import QUIET, flags, lock

WRITTEN = re.compile(  # every name that longtail gives to a file of a model or of a data set in any format
    r"(config|dataset|augmentation|metrics|signature|tokenizer|encoder)\.json|README\.md|log\.csv|\w+\.(safetensors|arrow)|"
    r"(trn|tst|val|train|test|validation|lbl|labels?|filter_labels|Xf?|Yf?|Z)([._]\w+)*"
    r"\.(jsonl|json|csv|tsv|parquet|txt|npz)(\.gz)?"
)
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp(\.\w+)?")
EARLIER = re.compile(r"\.(config\.json|index_[0-9a-f]+\.safetensors)\.[a-z0-9_]{8}\.\w+")  # as they were named before
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux
DAY = 24 * 60 * 60  # seconds after which nobody is writing any more, where there are no locks
UNABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # of a kernel or a file system that cannot exchange


@contextmanager
def whole_file(path: str | Path, *, mode: int = 0o644) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there when the block succeeds, remove it when it fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    partial, handle = _made(path, folder=False)
    try:
        yield partial
        partial.chmod(mode)
        synced(partial)
        partial.replace(path)
        synced(path.parent)
    finally:
        partial.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def whole_folder(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; move it there when the block succeeds, remove it when it fails.

    With `force` a folder that longtail wrote is replaced, in one step; any other content is never touched.
    """
    path = Path(path).resolve()
    check_target(path, force=force)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    partial, handle = _made(path, folder=True)
    try:
        yield partial
        partial.chmod(0o755)
        for entry in (*partial.rglob("*"), partial):
            synced(entry)
        check_target(path, force=force)
        if path.exists():
            exchange(partial, path)
        else:
            partial.rename(path)
        synced(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # what is there now: the half-written folder, or the old one
        os.close(handle)


def check_target(path: Path, *, force: bool = False) -> None:
    """Refuse to write to a folder that holds something; with `force`, something that longtail did not write."""
    path = path.resolve()
    restored(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not force:
        raise Occupied("exists already", file=path, remedy="choose another folder, or replace this one: force=True")
    if path.is_file() or not _written_by_us(path) or Path.cwd().is_relative_to(path.resolve()):
        raise DataError("holds other things than longtail writes", file=path, remedy="choose another folder")


def restored(path: Path) -> bool:
    """Put the old folder back where a kill came while it was replaced in two steps; return whether it was so."""
    if path.exists() or not path.parent.is_dir():
        return False
    for old in path.parent.glob(f".{path.name}.*.tmp.old"):
        old.rename(path)
        return True
    return False


def _written_by_us(folder: Path) -> bool:
    """Return whether a folder holds nothing but files that longtail names so, and a config.json only of a model."""
    for entry in folder.iterdir():
        own = any(kind.fullmatch(entry.name) for kind in (WRITTEN, TEMPORARY, EARLIER))
        if not own or not entry.is_file():
            return False
    config = folder / "config.json"
    try:
        return not config.exists() or {"schema", "recipe", "files"} <= json.loads(config.read_text("utf-8")).keys()
    except (ValueError, AttributeError, RecursionError):
        return False


def synced(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    if not system.OPENS_FOLDERS and path.is_dir():
        return  # the system keeps names by itself
    handle = os.open(path, os.O_RDONLY if system.OPENS_FOLDERS else os.O_RDWR)  # only what may be written is forced
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def exchange(one: Path, two: Path) -> None:
    """Let two folders change places: in one step where the system can, else so that `check_target` can mend it."""
    try:
        _exchange(one, two)
    except OSError as reason:
        if reason.errno not in UNABLE:
            raise
        old = one.with_name(f"{one.name}.old")
        two.replace(old)
        try:
            one.replace(two)
        except OSError:
            old.replace(two)
            raise
        old.replace(one)


def _exchange(one: Path, two: Path) -> None:
    """Ask Linux to exchange two names."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, TypeError):  # another system, or an old library
        raise OSError(errno.ENOSYS, "cannot exchange names") from None
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(two), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(two))


def _made(path: Path, *, folder: bool) -> tuple[Path, int]:
    """Make a temporary file or folder beside `path`, and hold its lock."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp{'' if folder else path.suffix}")
        if folder:
            partial.mkdir(0o700)
        else:
            os.close(os.open(partial, flags("O_WRONLY", "O_CREAT", "O_EXCL", "O_CLOEXEC"), 0o600))
        handle = hold(partial)
        if handle is not None:
            return partial, handle


def hold(path: Path, *, wait: bool = False, shared: bool = False) -> int | None:
    """Lock a file or folder until the handle is closed; None where another holds it, or where it is gone."""
    if not system.OPENS_FOLDERS and path.is_dir():
        return os.open(os.devnull, os.O_RDONLY)  # it cannot be locked either
    try:
        handle = os.open(path, os.O_RDONLY | QUIET)
    except FileNotFoundError:
        return None
    try:
        lock(handle, shared=shared, wait=wait)
        mine = os.path.samestat(os.fstat(handle), path.stat(follow_symlinks=False))
    except (BlockingIOError, FileNotFoundError):  # another has it, or it was renamed meanwhile
        mine = False
    except OSError:
        os.close(handle)
        raise
    if mine:
        return handle
    os.close(handle)
    return None


@contextmanager
def held(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Wait for the lock of a folder and keep it; one that is not there needs none."""
    handle, folder = None, folder.resolve()
    while handle is None and folder.is_dir():
        handle = hold(folder, wait=True, shared=shared)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def sweep(folder: Path, name: str = "") -> None:
    """Remove what writers that were killed left of `name`, or of anything, in a folder."""
    for entry in folder.iterdir():
        own = TEMPORARY.fullmatch(entry.name)
        if own and (not name or own[1] == name):
            _remove(entry)


def _remove(entry: Path) -> None:
    """Remove a temporary file or folder that nobody is writing: nobody holds its lock, or it is old where none are."""
    if not _lockable(entry) and time.time() - entry.lstat().st_mtime < DAY:
        return
    handle = hold(entry)
    if handle is None:
        return
    try:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _lockable(path: Path) -> bool:
    """Return whether the system and its file system lock what is here."""
    if not system.OPENS_FOLDERS and path.is_dir():
        return False
    try:
        handle = os.open(path, os.O_RDONLY | QUIET)
    except OSError:  # gone meanwhile
        return True
    try:
        return lock(handle, shared=True, wait=False)
    except BlockingIOError:  # another holds it
        return True
    finally:
        os.close(handle)


def _mine(path: Path) -> bool:
    """Return whether a file is this user's; where there are no users, temporary folders are nobody else's."""
    return not hasattr(os, "getuid") or path.lstat().st_uid == os.getuid()


def discard(folder: Path) -> None:
    """Remove a folder: first its name, so that a kill leaves nothing half removed under it."""
    gone = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def temporary(what: str) -> Iterator[Path]:
    """Yield a folder among the system's temporary ones, gone afterwards; those of killed processes are swept."""
    place = Path(tempfile.gettempdir())
    for entry in place.glob(f".longtail-{what}.*.tmp"):
        if TEMPORARY.fullmatch(entry.name) and _mine(entry):
            _remove(entry)
    folder, handle = _made(place / f"longtail-{what}", folder=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
