"""LINES → QUERIES: texts to predict for, from plain lines or JSON lines, also gzipped, also as they are typed."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from longtail.errors import DataError

BLOCK = 4096  # most texts of a block
PIECE = 1 << 18  # most bytes of a read
GZIP = b"\x1f\x8b"


def read_queries(lines: Iterable[bytes], name: str) -> Iterator[tuple[list[Any], list[str]]]:
    """Yield blocks of (ids, texts). A line is a text, or a JSON object with `text` and perhaps `id`.

    Lines of a pipe or a terminal are yielded as they come. What stands before a bad line is yielded before the error.

    >>> list(read_queries([b"red cat", b'{"id": "q7", "text": "old dog"}'], "demo"))
    [([1, 'q7'], ['red cat', 'old dog'])]
    """
    number = 0
    for block in _blocks(lines, name):
        ids: list[Any] = []
        texts: list[str] = []
        try:
            for raw in block:
                number += 1
                own, text = _query(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw, name, number)
                ids.append(own)
                texts.append(text)
        except DataError:
            if ids:
                yield ids, texts
            raise
        yield ids, texts


def _blocks(lines: Iterable[bytes], name: str) -> Iterator[list[bytes]]:
    """Yield lines in lists of at most BLOCK; a file is unpacked if it is gzip."""
    if not isinstance(lines, io.BufferedReader):
        rest = iter(lines)
        while block := list(islice(rest, BLOCK)):
            yield block
        return
    try:
        packed = lines.peek(2).startswith(GZIP)
        for found in _waiting(gzip.GzipFile(fileobj=lines) if packed else lines):
            for start in range(0, len(found), BLOCK):
                yield found[start : start + BLOCK]
    except (EOFError, gzip.BadGzipFile, zlib.error) as reason:
        complaint = f"the gzip file is damaged ({reason})"
        raise DataError(complaint, file=name, remedy="copy or compress the file again") from None


def _waiting(file: io.BufferedReader | gzip.GzipFile) -> Iterator[list[bytes]]:
    """Yield the lines that every read completes: what a pipe or a terminal has at hand, never waiting for more."""
    begun: list[bytes] = []  # the pieces of a line whose end has not been read
    while piece := file.read1(PIECE):
        *whole, tail = piece.split(b"\n")
        if whole:
            yield [b"".join([*begun, whole[0]]), *whole[1:]]
            begun = []
        begun.append(tail)
    if any(begun):
        yield [b"".join(begun)]


def _query(raw: bytes, name: str, number: int) -> tuple[Any, str]:
    """Read one line as (id, text)."""
    try:
        line = raw.decode("utf-8").strip()
    except UnicodeDecodeError as reason:
        raise DataError(
            f"not UTF-8 ({reason.reason})", file=name, line=number, remedy="save the file as UTF-8"
        ) from None
    return _object(line, name, number) if line.startswith("{") else (number, line)


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
