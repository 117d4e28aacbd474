"""REQUESTS → LINES: one JSON object a request, of several processes too; never a key, and no text unless asked to."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longtail.serve.messages import Receive, Scope, header
from longtail.system import flags

STDERR = 2
LARGEST = 64 * 2**10  # bytes of a body that are kept


class AccessLog:
    """Notes who asked for what, when, how it ended and how long it took."""

    def __init__(self, path: Path, *, texts: bool = False) -> None:
        self.texts = texts  # whether a line has the query and the body of its request
        wanted = flags("O_WRONLY", "O_CREAT", "O_APPEND", "O_CLOEXEC", "O_BINARY")
        self._file = STDERR if str(path) == "-" else os.open(path, wanted, 0o600)

    def listening(self, receive: Receive) -> tuple[Receive, bytearray]:
        """Return what receives a body and keeps its beginning, where that is wanted, and what it keeps."""
        heard = bytearray()

        async def heard_too() -> Any:
            message = await receive()
            heard.extend(message.get("body", b"")[: LARGEST - len(heard)])
            return message

        return heard_too if self.texts else receive, heard

    def note(self, scope: Scope, route: str, status: int, seconds: float, heard: bytearray) -> None:
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
        if self.texts:
            line |= {"query": scope["query_string"].decode("latin-1"), "body": heard.decode("utf-8", "replace")}
        os.write(self._file, json.dumps(line).encode() + b"\n")
