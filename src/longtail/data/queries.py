"""LINES → QUERIES: texts to predict for, from plain lines or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from longtail.errors import DataError

BLOCK = 4096


def read_queries(lines: Iterable[bytes], name: str) -> Iterator[tuple[list[Any], list[str]]]:
    """Yield blocks of (ids, texts). A line is a text, or a JSON object with `text` and perhaps `id`.

    >>> list(read_queries([b"red cat", b'{"id": "q7", "text": "old dog"}'], "demo"))
    [([1, 'q7'], ['red cat', 'old dog'])]
    """
    ids: list[Any] = []
    texts: list[str] = []
    for number, raw in enumerate(lines, 1):
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError as reason:
            raise DataError(
                f"not UTF-8 ({reason.reason})", file=name, line=number, remedy="save the file as UTF-8"
            ) from None
        own: Any = number
        if line.startswith("{"):
            own, line = _object(line, name, number)
        ids.append(own)
        texts.append(line)
        if len(ids) == BLOCK:
            yield ids, texts
            ids, texts = [], []
    if ids:
        yield ids, texts


def _object(line: str, name: str, number: int) -> tuple[Any, str]:
    """Read one JSON object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as reason:
        raise DataError(
            f"not JSON ({reason})", file=name, line=number, remedy="one object a line, or plain text"
        ) from None
    text = value.get("text", value.get("title"))
    if not isinstance(text, str):
        raise DataError("no string under `text`", file=name, line=number, remedy='write {"text": "..."}')
    own = value.get("id", value.get("uid", number))
    if not isinstance(own, str | int):
        raise DataError(f"id {own!r}", file=name, line=number, remedy="use a string or a whole number as id")
    return own, text.encode("utf-8", "replace").decode("utf-8")
