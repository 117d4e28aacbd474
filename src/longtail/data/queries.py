"""FILE OR LINES → QUERIES: texts to predict for, in blocks, with the columns around them.

A file may be a table in any format that training reads (its readers are used), or plain lines, also gzipped, also as
they are typed. Only a block is held at a time.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longtail.data.dataset import chosen_split, open_dataset
from longtail.data.formats.columns import SAMPLE, Reading
from longtail.data.formats.jsonl import OWN, REPOSITORY, find_keys, parse_objects, row_text
from longtail.data.formats.lines import clean, decode_lines, read_head, stream_lines
from longtail.data.formats.parquet import UNREADABLE, damaged, find_arrow_columns
from longtail.data.formats.plain import PREFIX
from longtail.data.formats.survey import find_format, look_at, sniff
from longtail.data.formats.tables import Table, headed, sheet_rows, table_columns, table_of
from longtail.data.problems import Problems
from longtail.errors import DataError

BLOCK = 4096  # most texts of a block
Find = Callable[[str | int], int]  # returns the label that a line names, or raises a DataError
Parsed = tuple[int, dict[str, Any], str]  # line, object, and how it is written
Row = tuple[int, Any, str, dict[str, Any]]  # line, id, text, all columns


@dataclass(frozen=True)
class Queries:
    """Some texts to predict for, and the rows of the file that they come from."""

    ids: list[Any]
    texts: list[str]
    own: list[int | None]  # the label that a text itself is
    kept: list[dict[str, Any]] | pa.RecordBatch  # all columns

    def __len__(self) -> int:
        return len(self.texts)

    def rows(self) -> list[dict[str, Any]]:
        """Return all columns, row by row."""
        return self.kept.to_pylist() if isinstance(self.kept, pa.RecordBatch) else self.kept

    def part(self, start: int, stop: int) -> Queries:
        """Cut out some rows."""
        some = slice(start, stop)
        kept = self.kept.slice(start, stop - start) if isinstance(self.kept, pa.RecordBatch) else self.kept[some]
        return Queries(self.ids[some], self.texts[some], self.own[some], kept)


@dataclass(frozen=True)
class Feed:
    """A file while it is read."""

    blocks: Iterator[Queries]
    note: str  # which columns were taken, "" where that is clear
    total: int  # bytes or rows, 0 if unknown
    position: Callable[[], int]  # how many of them have been read
    path: Path | None = None  # the file, None for a pipe


@contextmanager
def open_feed(
    path: Path,
    reading: Reading = Reading(),  # noqa: B008  (frozen)
    *,
    format: str | None = None,
    split: str | None = None,
    find: Find | None = None,
) -> Iterator[Feed]:
    """Open a file of texts, or the split of a data set in a folder; what is like no format is read as plain lines."""
    if not path.exists():
        raise DataError("not found", file=path, remedy="give a file that exists, or - for standard input")
    kind = format
    if path.is_dir():
        path, kind = _member(path, reading, format, split)
    kind = kind or _kind(path, reading)
    if kind == "arrow":
        yield replace(_saved(path, split), path=path / "dataset.json")
    elif kind == "parquet":
        with _parquet(path) as file:
            yield replace(_arrow_feed(file, path, reading, find), path=path)
    else:
        with path.open("rb") as file:
            yield replace(read_feed(file, str(path), kind, reading, find, path.stat().st_size), path=path)


def _kind(path: Path, reading: Reading) -> str:
    """Find the format of one file; JSON lines with the usual keys may have plain lines among them, which is ""."""
    head = read_head(path)
    kind = sniff(head, path.name.lower().removesuffix(".gz"))
    if kind == "xc":
        return kind if re.match(rb".*\n[\d,]* ?\d+:", head) else ""  # three numbers may be a query
    if kind != "jsonl" or reading.text or reading.usual:
        return kind
    try:
        row = json.loads(head.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return kind if head.lstrip().startswith(b"[") else ""
    return "" if isinstance(row, dict) and ("text" in row or "title" in row) else kind


def read_feed(
    file: io.BufferedReader, name: str, kind: str, reading: Reading, find: Find | None = None, size: int = 0
) -> Feed:
    """Read texts from an open file or a pipe."""
    path, problems, note = Path(name), Problems(), ""
    if kind in ("csv", "tsv", "excel"):
        if kind == "excel":
            table = headed(sheet_rows(file, path, problems), path, reading, problems)
        else:
            lines = decode_lines(_lines(file, name), path, problems)
            table = table_of(lines, "\t" if kind == "tsv" else ",", reading, path, problems)
        rows, note = _table_rows(table, reading)
    elif kind in ("jsonl", "xmc-json"):
        lines = decode_lines(_lines(file, name), path, problems, latin=kind == "xmc-json")
        rows, note = _object_rows(lines, path, reading, latin=kind == "xmc-json")
    elif kind in ("fasttext", "pecos", "text"):
        rows = _plain_rows(decode_lines(_lines(file, name), path, problems), kind)
    elif kind == "":
        return Feed(read_queries(file, name, find), "", size, file.tell)
    else:
        raise DataError(f"no texts are read from {kind} files", file=name, remedy="give a table, or one text a line")
    return Feed(_blocks_of(rows, name, find), note, size, file.tell)


def _member(folder: Path, reading: Reading, format: str | None, split: str | None) -> tuple[Path, str]:
    """Find the file of a folder that holds the texts of a split."""
    survey = look_at(folder, reading)
    kind = format or find_format(folder, survey)
    if kind == "arrow":
        return folder, kind
    role = "texts" if kind in ("xc", "xmc", "attentionxml") else "points"
    places = list(survey.splits(role))
    path = survey.get(role, split or chosen_split(places))
    if path is None:
        found = f"no texts of {split or 'test'}; there are those of {', '.join(places) or 'no split'}"
        raise DataError(found, file=folder, remedy="choose with --split, or give one file of it")
    return path, kind if role == "points" else "text"


def _lines(file: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield the lines of a file, without their ends."""
    return (line.removesuffix(b"\r") for lines in stream_lines(file, name) for line in lines)


def _blocks_of(rows: Iterator[Row], name: str, find: Find | None) -> Iterator[Queries]:
    """Put rows together; what stands before a bad one is yielded before the error."""
    while True:
        queries = Queries([], [], [], [])
        try:
            for line, identity, text, row in islice(rows, BLOCK):
                queries.own.append(_own_label(_number(row.get("own")), name, line, find))
                queries.ids.append(identity)
                queries.texts.append(text)
                queries.rows().append(row)
        except DataError:
            if queries.texts:
                yield Queries(queries.ids, queries.texts, queries.own[: len(queries.texts)], queries.kept)
            raise
        if not queries.texts:
            return
        yield queries


def _number(own: Any) -> Any:
    """Read the digits of a cell as the number of a label."""
    return int(own) if isinstance(own, str) and own.isdecimal() and len(own) < 18 else own


def _table_rows(table: Table, reading: Reading) -> tuple[Iterator[Row], str]:
    """Read the rows of a table."""
    if not table.names:
        return iter(()), ""
    found = table_columns(table, reading, labelled=False)
    places = [table.names.index(name) for name in found.text]
    own = None if found.id is None else table.names.index(found.id)

    def rows() -> Iterator[Row]:
        for count, (line, cells) in enumerate(table.rows, 1):
            text = clean(" ".join(cells[place] for place in places))
            yield line, count if own is None else cells[own], text, dict(zip(table.names, cells, strict=True))

    return rows(), _described(found.describe(), found.text)


def _described(words: str, text: Sequence[str]) -> str:
    """Say which columns are texts, unless there is one of that name."""
    return "" if tuple(text) == ("text",) else words.partition(", labels")[0]


def _object_rows(
    lines: Iterator[tuple[int, str]], path: Path, reading: Reading, *, latin: bool
) -> tuple[Iterator[Row], str]:
    """Read JSON objects."""
    objects = parse_objects((entry for entry in lines if entry[1].strip()), path, Problems())
    sample, objects = _first(objects)
    keys = find_keys([row for _, row, _ in sample], REPOSITORY if latin else OWN, reading, path, labelled=False)

    def rows() -> Iterator[Row]:
        for count, (line, row, _) in enumerate(objects, 1):
            yield line, *_query_of(row, keys.text, str(path), line, count), row

    return rows(), _described(keys.describe(), keys.text or ("text",))


def _first(objects: Iterator[Parsed]) -> tuple[list[Parsed], Iterator[Parsed]]:
    """Look at the first objects; return them, and all once more. A bad one is an error when it is its turn."""
    sample: list[Parsed] = []
    try:
        for entry in islice(objects, SAMPLE):
            sample.append(entry)
    except DataError as reason:
        found = reason

        def failing() -> Iterator[Parsed]:
            raise found
            yield

        return sample, chain(sample, failing())
    return sample, chain(sample, objects)


def _plain_rows(lines: Iterator[tuple[int, str]], kind: str) -> Iterator[Row]:
    """Read lines of texts, with labels before them in fastText's or in PECOS's way."""
    for number, line in lines:
        words, labels = clean(line), ""
        if kind == "pecos":
            labels, _, rest = line.partition("\t")
            words = clean(rest)
        elif kind == "fasttext":
            labels = " ".join(word for word in words.split() if word.startswith(PREFIX))
            words = " ".join(word for word in words.split() if not word.startswith(PREFIX))
        yield number, number, words, {"text": words} | ({"labels": labels} if kind != "text" else {})


@contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
    except UNREADABLE as reason:
        raise damaged(path, reason, Problems()) from None
    with file:
        yield file


def _arrow_feed(file: pq.ParquetFile, path: Path, reading: Reading, find: Find | None) -> Feed:
    """Read the rows of a Parquet file; only a batch is held at a time."""
    found = find_arrow_columns(file, path, reading, Problems(), labelled=False)
    done = [0]

    def blocks() -> Iterator[Queries]:
        batches = file.iter_batches(BLOCK, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except UNREADABLE as reason:
                raise damaged(path, reason, Problems()) from None
            if batch is None:
                return
            first = done[0] + 1
            done[0] += batch.num_rows
            parts = [_words(batch.column(name), name, path) for name in found.text]
            texts = [clean(" ".join(words)) for words in zip(*parts, strict=True)]
            ids = list(range(first, first + len(texts)))
            own: list[Any] = [None] * len(texts)
            if find is not None and "own" in batch.schema.names:
                labels = batch.column("own").to_pylist()
                own = [_own_label(label, str(path), first + n, find) for n, label in enumerate(labels)]
            yield Queries(ids if found.id is None else batch.column(found.id).to_pylist(), texts, own, batch)

    return Feed(blocks(), _described(found.describe(), found.text), file.metadata.num_rows, lambda: done[0])


def _words(column: Any, name: str, path: Path) -> list[str]:
    """Return the texts of a column; an absent one is empty."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"column {name} of type {kind}", file=path, remedy="name a column of strings with --text")
    return [text or "" for text in column.to_pylist()]


def _saved(folder: Path, split: str | None) -> Feed:
    """Read the texts of a memory-mapped data set."""
    data = open_dataset(folder)
    texts = data[split or chosen_split(data.splits)].need_texts("predict")
    done = [0]

    def blocks() -> Iterator[Queries]:
        for start in range(0, len(texts), BLOCK):
            some = texts[start : start + BLOCK].tolist()
            done[0] = start + len(some)
            ids = list(range(start + 1, done[0] + 1))
            yield Queries(ids, some, [None] * len(some), [{"text": text} for text in some])

    return Feed(blocks(), "", len(texts), lambda: done[0])


def read_queries(lines: Iterable[bytes], name: str, find: Find | None = None) -> Iterator[Queries]:
    """Yield blocks of queries. A line is a text, or a JSON object with `text` and perhaps `id` and `own`.

    Lines of a pipe or a terminal are yielded as they come. What stands before a bad line is yielded before the error.
    `own` is read only with `find`. Lines without an id get their number.

    >>> block = next(read_queries([b"red cat", b'{"id": "q7", "text": "old dog"}'], "demo"))
    >>> block.ids, block.texts
    ([1, 'q7'], ['red cat', 'old dog'])
    """
    number = 0
    for block in _blocks(lines, name):
        queries = Queries([], [], [], [])
        try:
            for raw in block:
                number += 1
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                identity, text, row = _query(line, name, number)
                queries.own.append(_own_label(row.get("own"), name, number, find))
                queries.ids.append(identity)
                queries.texts.append(text)
                queries.rows().append(row)
        except DataError:
            if queries.texts:
                yield Queries(queries.ids, queries.texts, queries.own[: len(queries.texts)], queries.kept)
            raise
        yield queries


def _blocks(lines: Iterable[bytes], name: str) -> Iterator[list[bytes]]:
    """Yield lines in lists of at most BLOCK."""
    if not isinstance(lines, io.BufferedReader):
        rest = iter(lines)
        while block := list(islice(rest, BLOCK)):
            yield block
        return
    for available in stream_lines(lines, name):
        for start in range(0, len(available), BLOCK):
            yield available[start : start + BLOCK]


def _query(raw: bytes, name: str, number: int) -> tuple[Any, str, dict[str, Any]]:
    """Read one line as (id, text, all columns)."""
    try:
        line = raw.decode("utf-8").strip()
    except UnicodeDecodeError as reason:
        raise DataError(
            f"not UTF-8 ({reason.reason})", file=name, line=number, remedy="save the file as UTF-8"
        ) from None
    if not line.startswith("{"):
        return number, line, {"text": line}
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as reason:
        raise DataError(
            f"not JSON ({reason})", file=name, line=number, remedy="one object a line, or plain text"
        ) from None
    return *_query_of(row, (), name, number, number), row


def _query_of(row: dict[str, Any], names: tuple[str, ...], file: str, line: int, usual: int) -> tuple[Any, str]:
    """Read the id and the text of one JSON object."""
    text = row_text(row, names)
    if not isinstance(text, str):
        key = names[0] if names else "text"
        raise DataError(f"no string under `{key}`", file=file, line=line, remedy=f'write {{"{key}": "..."}}')
    identity = row.get("id", row.get("uid"))
    if not isinstance(identity, str | int | None):
        raise DataError(f"id {identity!r}", file=file, line=line, remedy="use a string or a whole number as id")
    return usual if identity is None else identity, text.encode("utf-8", "replace").decode("utf-8")


def _own_label(label: Any, name: str, number: int, find: Find | None) -> int | None:
    """Find the label that a text itself is."""
    if label is None or label == "" or find is None:
        return None
    if not isinstance(label, str | int) or isinstance(label, bool):
        raise DataError(f"own {label!r}", file=name, line=number, remedy="give the number or the raw id of a label")
    try:
        return find(label)
    except DataError as reason:
        raise DataError(reason.found, file=name, line=number, remedy=reason.remedy) from None
