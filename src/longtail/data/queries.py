"""LINES → QUERIES: texts to predict for, from plain lines or JSON lines, also gzipped, also as they are typed."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from longtail.errors import DataError

BLOCK = 4096  # most texts of a block
PIECE = 1 << 18  # most bytes of a read
LONGEST = 64 * 2**20  # bytes of a line: no text is longer, and a packed file may hold nothing else
GZIP = b"\x1f\x8b"


class Queries(NamedTuple):
    """Some texts to predict for."""

    ids: list[Any]
    texts: list[str]
    own: list[int | None]  # the label that a text itself is


Find = Callable[[str | int], int]  # returns the label that a line names, or raises a DataError


def read_queries(
    lines: Iterable[bytes], name: str, find: Find | None = None, *, numbered: bool = True
) -> Iterator[Queries]:
    """Yield blocks of queries. A line is a text, or a JSON object with `text` and perhaps `id` and `own`.

    Lines of a pipe or a terminal are yielded as they come. What stands before a bad line is yielded before the error.
    `own` is read only with `find`. Lines without an id get their number, or None where they are not `numbered`.

    >>> list(read_queries([b"red cat", b'{"id": "q7", "text": "old dog"}'], "demo"))
    [Queries(ids=[1, 'q7'], texts=['red cat', 'old dog'], own=[None, None])]
    """
    number = 0
    for block in _blocks(lines, name):
        queries = Queries([], [], [])
        try:
            for raw in block:
                number += 1
                line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                identity, text, own = _query(line, name, number, find)
                queries.ids.append(number if identity is None and numbered else identity)
                queries.texts.append(text)
                queries.own.append(own)
        except DataError:
            if queries.ids:
                yield queries
            raise
        yield queries


def _blocks(lines: Iterable[bytes], name: str) -> Iterator[list[bytes]]:
    """Yield lines in lists of at most BLOCK; a file is unpacked if it is gzip."""
    if not isinstance(lines, io.BufferedReader):
        rest = iter(lines)
        while block := list(islice(rest, BLOCK)):
            yield block
        return
    try:
        packed = lines.peek(2).startswith(GZIP)
        for available in _available_lines(gzip.GzipFile(fileobj=lines) if packed else lines, name):
            for start in range(0, len(available), BLOCK):
                yield available[start : start + BLOCK]
    except (EOFError, gzip.BadGzipFile, zlib.error) as reason:
        complaint = f"the gzip file is damaged ({reason})"
        raise DataError(complaint, file=name, remedy="copy or compress the file again") from None


def _available_lines(file: io.BufferedReader | gzip.GzipFile, name: str) -> Iterator[list[bytes]]:
    """Yield the lines that every read completes: what a pipe or a terminal has at hand, never waiting for more."""
    partial: list[bytes] = []  # the pieces of a line whose end has not been read
    length = 0  # of these
    while piece := file.read1(PIECE):
        *complete, tail = piece.split(b"\n")
        length = len(tail) if complete else length + len(tail)
        if length > LONGEST:
            raise DataError(f"a line of more than {LONGEST >> 20} MB", file=name, remedy="cut it into shorter texts")
        if complete:
            yield [b"".join([*partial, complete[0]]), *complete[1:]]
            partial = []
        partial.append(tail)
    if any(partial):
        yield [b"".join(partial)]


def _query(raw: bytes, name: str, number: int, find: Find | None) -> tuple[Any, str, int | None]:
    """Read one line as (id, text, own label)."""
    try:
        line = raw.decode("utf-8").strip()
    except UnicodeDecodeError as reason:
        raise DataError(
            f"not UTF-8 ({reason.reason})", file=name, line=number, remedy="save the file as UTF-8"
        ) from None
    return _object(line, name, number, find) if line.startswith("{") else (None, line, None)


def _object(line: str, name: str, number: int, find: Find | None) -> tuple[Any, str, int | None]:
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
    identity = value.get("id", value.get("uid"))
    if not isinstance(identity, str | int | None):
        raise DataError(f"id {identity!r}", file=name, line=number, remedy="use a string or a whole number as id")
    return identity, text.encode("utf-8", "replace").decode("utf-8"), _own_label(value.get("own"), name, number, find)


def _own_label(label: Any, name: str, number: int, find: Find | None) -> int | None:
    """Find the label that a text itself is."""
    if label is None or find is None:
        return None
    if not isinstance(label, str | int) or isinstance(label, bool):
        raise DataError(f"own {label!r}", file=name, line=number, remedy="give the number or the raw id of a label")
    try:
        return find(label)
    except DataError as reason:
        raise DataError(reason.found, file=name, line=number, remedy=reason.remedy) from None
