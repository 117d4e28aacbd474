"""CHANGES OF LABELS ↔ DISK: an append-only file beside a model, one JSON record a line, each with a checksum.

A record is on the disk before a change counts. The checksum of a record covers the one before it, so that no record can
be changed, dropped or put elsewhere unseen. A record that a crash cut off at the end of the file is ignored, and
overwritten by the next change. Writers of several processes take turns; readers never wait.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.errors import DataError, ModelError, ResourceError
from longtail.system import flags, lock, write_at
from longtail.whole import held

FILE = "labels.journal.jsonl"
LARGEST = 2**30  # bytes of a journal that is still read
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@dataclass(frozen=True)
class Added:
    """New labels."""

    texts: tuple[str, ...]
    ids: tuple[str, ...] | None = None  # raw ids


@dataclass(frozen=True)
class Removed:
    """Labels that are never predicted again."""

    labels: tuple[int, ...]


Change = Added | Removed


@dataclass(frozen=True)
class Stamp:
    """One state of a journal file; None of it while there is no file."""

    inode: int = 0
    size: int = 0
    changed: int = 0


class Journal:
    """The changes of one model's labels. `model` identifies the model: any other refuses the journal."""

    def __init__(self, folder: Path, model: str, current: Callable[[], str]) -> None:
        self.path: Path | str = folder / FILE
        self._folder, self._model, self._current = folder, model, current
        self.changes: tuple[Change, ...] = ()  # in force, the oldest first
        self._end, self._last = 0, ""
        self._stamp: Any = Stamp()

    @property
    def state(self) -> str:
        """The checksum of the last record, which covers all before it; empty where there is none."""
        return self._last

    def refresh(self) -> bool:
        """Read what was appended; return whether the changes in force differ from before."""
        if self.stamp() == self._stamp:
            return False
        before = self.changes
        self._read()
        return self.changes != before

    def append(self, change: Change | Callable[[Sequence[Change]], Change]) -> None:
        """Write a change, or what a function makes of those in force, and wait until the disk has it."""
        with self.changing() as write:
            change = change if isinstance(change, Change) else change(self.changes)
            record: dict[str, Any] = {"do": "add"} if isinstance(change, Added) else {"do": "remove"}
            write(record | {name: value and list(value) for name, value in vars(change).items()})

    def undo(self) -> Change:
        """Take the last change in force back, and return it."""
        nothing = DataError("there is no change of the labels to undo", file=self.path)
        self.refresh()
        if not self.changes:
            raise nothing
        with self.changing() as write:
            if not self.changes:
                raise nothing
            last = self.changes[-1]
            write({"do": "undo"})
        return last

    @contextmanager
    def changing(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Keep other writers away, read what they wrote, and yield a function that appends a record."""
        with held(self._folder, shared=True):  # while the folder is replaced, nothing is written to the old one
            handle = self._locked()
            try:
                self._ready()
                yield lambda record: self._write(handle, record)
            finally:
                os.close(handle)

    def _ready(self) -> None:
        """Read what others wrote, unless it is for another model."""
        if self._current() != self._model:
            raise ModelError(f"{self._folder}: the model was replaced; open it again")
        self._read()

    def _locked(self) -> int:
        """Open the file and wait for the turn; when the file was replaced meanwhile, take the new one."""
        while True:
            handle = os.open(self.path, flags("O_RDWR", "O_CREAT", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"), 0o644)
            lock(handle)
            if os.fstat(handle).st_ino == self.stamp().inode:
                return handle
            os.close(handle)

    def _write(self, handle: int, record: dict[str, Any]) -> None:
        """Append a record behind the last whole one; a full disk changes nothing."""
        lines = b"".join(self.lines(record))
        try:
            os.ftruncate(handle, self._end)  # what a crash cut off
            done = 0
            while done < len(lines):
                done += write_at(handle, lines[done:], self._end + done)
            os.fsync(handle)
        except OSError as reason:
            os.ftruncate(handle, self._end)
            if reason.errno in FULL:
                raise ResourceError(f"{self.path}: no space left ({reason.strerror}); nothing was changed") from None
            raise
        if self._end == 0:
            folder = os.open(self._folder, os.O_RDONLY)
            os.fsync(folder)  # the name of the new file
            os.close(folder)
        self._read()

    def lines(self, record: dict[str, Any]) -> list[bytes]:
        """Return what is to be appended for a record: a line, and another before it that begins a journal."""
        lines, last = [], self._last
        for entry in [record] if self._end else [{"do": "open", "model": self._model}, record]:
            last = _checksum(last, entry)
            lines.append(json.dumps({"sum": last, **entry}).encode() + b"\n")
        return lines

    def stamp(self) -> Any:
        """Return what changes whenever the journal does."""
        return _stamp(Path(self.path))

    def content(self) -> tuple[Any, bytes]:
        """Return the whole journal, and its stamp."""
        stamp = self.stamp()
        try:
            raw = Path(self.path).read_bytes() if 0 < stamp.size <= LARGEST else b""
        except FileNotFoundError:
            raw, stamp = b"", Stamp()
        if stamp.size > LARGEST:
            raise ModelError(f"{self.path}: {stamp.size >> 20} MB are no journal of labels; remove it")
        return stamp, raw

    def _read(self) -> None:
        """Read all of it; journals are short."""
        changes: list[Change] = []
        last, end = "", 0
        stamp, raw = self.content()
        lines = raw.split(b"\n")
        tail = lines.pop()  # empty, or cut off
        for number, line in enumerate(lines, 1):
            record = _record(line, last)
            if record is None:
                if number == len(lines) and not tail:
                    break  # the last record, cut off by a crash whose newline came through
                raise ModelError(f"{self.path}:{number}: changed since it was written; restore it, or remove the file")
            last, end = record["sum"], end + len(line) + 1
            self._apply(record, changes, number)
        self.changes, self._stamp, self._end, self._last = tuple(changes), stamp, end, last

    def _apply(self, record: dict[str, Any], changes: list[Change], number: int) -> None:
        """Carry a record out on the list of changes."""
        kind = record.get("do")
        if (kind == "open") != (number == 1):
            raise ModelError(f"{self.path}:{number}: a record in the wrong place; restore the file, or remove it")
        if kind == "open":
            if record.get("model") != self._model:
                raise ModelError(f"{self.path}: written for another model; remove it, or restore the model it is for")
        elif kind == "undo" and changes:
            changes.pop()
        elif kind == "add" and _is_texts(record.get("texts")) and (record["ids"] is None or _is_texts(record["ids"])):
            texts, ids = tuple(record["texts"]), None if record["ids"] is None else tuple(record["ids"])
            if ids is not None and len(ids) != len(texts):
                raise ModelError(f"{self.path}:{number}: {len(ids)} ids for {len(texts)} labels; restore the file")
            changes.append(Added(texts, ids))
        elif kind == "remove" and _is_labels(record.get("labels")):
            changes.append(Removed(tuple(record["labels"])))
        else:
            raise ModelError(f"{self.path}:{number}: not a record that longtail writes; restore the file, or remove it")


def _checksum(last: str, record: dict[str, Any]) -> str:
    """Hash a record together with the checksum of the one before it."""
    body = json.dumps(record, sort_keys=True)
    return hashlib.sha256(f"{last}\n{body}".encode()).hexdigest()[:32]


def _record(line: bytes, last: str) -> dict[str, Any] | None:
    """Read a record; None if it is not what was written."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.pop("sum", None) != (checksum := _checksum(last, record)):
        return None
    return {"sum": checksum, **record}


def _is_texts(value: Any) -> bool:
    """Return whether a value is a list of strings."""
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _is_labels(value: Sequence[Any] | None) -> bool:
    """Return whether a value is a list of label numbers."""
    return isinstance(value, list) and all(type(entry) is int and entry >= 0 for entry in value)


def _stamp(path: Path) -> Stamp:
    """Return what changes whenever the file does."""
    try:
        state = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return Stamp()
    return Stamp(state.st_ino, state.st_size, state.st_mtime_ns)
