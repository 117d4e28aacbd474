"""REQUESTS → LINES: one JSON object a request, of several processes too; never a text, a label or a key."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from longtail.serve.messages import Scope, header
from longtail.system import flags

STDERR = 2


class AccessLog:
    """Notes who asked for what, when, how it ended and how long it took."""

    def __init__(self, path: Path) -> None:
        wanted = flags("O_WRONLY", "O_CREAT", "O_APPEND", "O_CLOEXEC", "O_BINARY")
        self._file = STDERR if str(path) == "-" else os.open(path, wanted, 0o600)

    def note(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        """Write a line at once: lines of several processes do not mix."""
        client, size = scope.get("client"), header(scope, b"content-length")
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client[0] if client else None,
            "method": scope["method"],
            "route": route,
            "status": status,
            "milliseconds": round(1000 * seconds, 3),
            "bytes": int(size) if size is not None and size.isdigit() else 0,
            "process": os.getpid(),
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")
