"""JUDGEMENTS → LINES: what people say of predictions, one JSON object each, in a file that only grows.

A line has the text, the label (text, id, and raw id where there is one), whether the text has it, model and time.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longtail.errors import DataError
from longtail.system import flags, lock, read_at, unlock

LARGEST = 256 * 2**20  # bytes of the file: whoever may ask could fill the disk otherwise


class Feedback:
    """The file; several processes may write to it."""

    def __init__(self, path: Path) -> None:
        self._turn = threading.Lock()  # of the threads of this process; the lock of the file is for others
        wanted = flags("O_RDWR", "O_CREAT", "O_APPEND", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
        try:
            self._file = os.open(path, wanted, 0o600)
        except OSError as reason:
            raise DataError(f"cannot be written: {reason.strerror}", file=path, remedy="choose another one") from None
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise DataError("feedback goes to a regular file", file=path, remedy="choose another one")

    def note(self, text: str, label: Mapping[str, Any], model: str, *, good: bool) -> None:
        """Write a line and force it to the disk; a line is whole or not there."""
        raw = {"raw_id": label["raw_id"]} if "raw_id" in label else {}
        line = {
            "text": text,
            "label": label["text"],
            "label_id": label["id"],
            **raw,
            "good": good,
            "model": model,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._turn:
            lock(self._file)
            try:
                self._append(data)
            finally:
                unlock(self._file)

    def _append(self, data: bytes) -> None:
        """Write at the end; what cannot be written whole is taken back."""
        size = os.fstat(self._file).st_size
        if size + len(data) > LARGEST:
            raise OSError(errno.EFBIG, "the feedback file is full")
        if size and read_at(self._file, 1, size - 1) != b"\n":
            data = b"\n" + data  # a line was cut short by a crash
        if os.write(self._file, data) < len(data):
            os.ftruncate(self._file, size)
            raise OSError(errno.ENOSPC, "no space left for feedback")
        os.fsync(self._file)
