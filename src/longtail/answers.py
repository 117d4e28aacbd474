"""QUERIES → FILE: the rows of a table with their predicted labels, as JSON lines, CSV, TSV or Parquet.

Rows are written in shards of a fixed size, each whole or not there, so that a run that was stopped continues with the
first shard that is missing: no row is lost, none comes twice. At the end the shards become one file, or a folder.
JSON lines have `id`, all columns and `labels` (a list with id, text and score each); tables have the columns `labels`,
`label_ids` and `scores`. A column of the input that is called so is kept as `given_labels` and the like.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longtail.answering import Answer
from longtail.data.dataset import Labels
from longtail.data.formats.single import no_other_file
from longtail.data.queries import Feed, Queries
from longtail.errors import DataError, Occupied
from longtail.files import read_json, write_json
from longtail.types import Progress, TopK
from longtail.whole import whole_file

SHARD = 65_536  # rows of a shard
KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
SEPARATORS = {"csv": ",", "tsv": "\t"}
ADDED = ("labels", "label_ids", "scores")
JOB = "job.json"
SCRATCH = re.compile(r"\.?(part-\d+\.|job\.json).*")
SHARDS = re.compile(r"part-\d+\.\w+|job\.json")


@dataclass(frozen=True)
class Target:
    """Where answers go: one file, or a folder of shards."""

    out: Path
    kind: str  # jsonl, csv, tsv or parquet
    single: bool

    @classmethod
    def of(cls, out: Path, kind: str | None = None) -> Target:
        """Read a path: a known ending is one file, any other a folder of shards (JSON lines unless said otherwise)."""
        known = KINDS.get(out.suffix.lower())
        if known is None:
            no_other_file(out, KINDS)
        if known is not None and kind not in (None, known):
            raise DataError(f"{out.name} is not {kind}", remedy=f"end the name with .{kind}, or give a folder")
        return cls(out, known or kind or "jsonl", known is not None)

    def check(self, force: bool) -> None:
        """Refuse to replace what is there, unless asked to; other things than answers are never touched."""
        if self.out.exists() and not force:
            raise Occupied("exists already", file=self.out, remedy="choose another place, or replace this: force=True")
        if self.out.is_dir() and (self.single or any(not SHARDS.fullmatch(file.name) for file in self.out.iterdir())):
            raise DataError("a folder with other things is here", file=self.out, remedy="choose another place")
        if self.out.is_file() and not self.single:
            raise DataError("a file is here", file=self.out, remedy="choose another place")

    @property
    def scratch(self) -> Path:
        """Where shards wait for the others."""
        return self.out.with_name(self.out.name + ".unfinished")

    def shard(self, number: int) -> Path:
        """Name a shard."""
        return self.scratch / f"part-{number:05d}.{self.kind}"


def identity(source: Path | None, model: str = "", *files: Path) -> dict[str, Any]:
    """Tell one run from another: the input by size and time, the model by its hash, and its files by content."""
    parts = [model.encode(), *(file.read_bytes() if file.is_file() else b"-" for file in files)]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    if source is None:
        return {"input": None, "model": digest}
    facts = source.stat()
    return {"input": str(source.resolve()), "size": facts.st_size, "time": facts.st_mtime_ns, "model": digest}


def write_answers(
    feed: Feed, answer: Answer, labels: Labels, target: Target, job: dict[str, Any], *, force: bool = False,
    progress: Progress | None = None, shard: int = SHARD,
) -> int:  # fmt: skip
    """Predict all rows and write them; return how many there are. The same call continues what was stopped."""
    target.check(force)
    job = job | {"kind": target.kind, "shard": shard}
    state = _begin(target, job, force)
    if "rows" not in state:
        done = 0
        while target.shard(done).is_file():
            done += 1
        seen = [0]  # rows of the input, answered before or now
        for number, queries in _shards(_after(feed.blocks, done * shard, seen), shard, done):
            with whole_file(target.shard(number)) as partial:
                told = _told(feed, number * shard, progress)
                write_shard(partial, queries, answer, labels, target.kind, state, told)
                write_json(target.scratch / JOB, job | state)  # the columns are known before the shard is there
        if not target.shard(0).is_file():
            shutil.rmtree(target.scratch)  # or it would stand in the way of an input with texts
            raise no_texts(feed)
        state["rows"] = seen[0]
        write_json(target.scratch / JOB, job | state)
    _finish(target, force)
    return int(state["rows"])


def no_texts(feed: Feed) -> DataError:
    """Say that there is nothing to answer."""
    return DataError("no texts in the input", file=feed.path or "", remedy="give at least one row")


def _begin(target: Target, job: dict[str, Any], force: bool) -> dict[str, Any]:
    """Open the folder of shards: of the same job continue, else refuse, or begin anew."""
    file = target.scratch / JOB
    if target.scratch.exists():
        if any(not SCRATCH.fullmatch(entry.name) for entry in target.scratch.iterdir()):
            raise DataError("other things are here", file=target.scratch, remedy="choose another place")
        before = read_json(file, DataError) if file.is_file() else {}
        if not force and before and any(before.get(key) != value for key, value in job.items()):
            raise Occupied(
                "an unfinished run with another input, model or settings is here, and only those continue it",
                file=target.scratch, remedy="choose another place, or begin anew: force=True",
            )  # fmt: skip
        if before and not force and "size" in job:  # what came through a pipe cannot be told from other input
            for rest in target.scratch.glob(".part-*"):
                rest.unlink()  # of a shard that was being written
            return {key: value for key, value in before.items() if key not in job}
        shutil.rmtree(target.scratch)
    write_json(file, job)
    return {}


def _told(feed: Feed, before: int, progress: Progress | None) -> Callable[[int], None]:
    """Return what tells how many rows of a shard are done."""

    def told(done: int) -> None:
        if progress is not None:
            progress(f"{before + done:,} rows", feed.position(), feed.total)

    return told


def _after(blocks: Iterator[Queries], rows: int, seen: list[int]) -> Iterator[Queries]:
    """Leave out rows that have been answered; count all."""
    for block in blocks:
        seen[0] += len(block)
        if rows < len(block):
            yield block if rows == 0 else block.part(rows, len(block))
            rows = 0
        else:
            rows -= len(block)


def _shards(blocks: Iterator[Queries], size: int, first: int) -> Iterator[tuple[int, Iterator[Queries]]]:
    """Cut blocks so that each shard gets `size` rows; a shard must be read before the next one comes."""
    rest = next(blocks, None)

    def shard() -> Iterator[Queries]:
        nonlocal rest
        left = size
        while rest is not None and left:
            block, rest = rest.part(0, left), rest.part(left, len(rest)) if len(rest) > left else next(blocks, None)
            left -= len(block)
            yield block

    number = first
    while rest is not None:
        yield number, shard()
        number += 1


def write_shard(
    path: Path, blocks: Iterator[Queries], answer: Answer, labels: Labels, kind: str, state: dict[str, Any],
    told: Callable[[int], None],
) -> int:  # fmt: skip
    """Write rows to one file and return how many there are; a row group of Parquet, or less, is held at a time.

    `state` keeps the columns of the first rows.
    """
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file, _row_groups(path) as add:
        table = csv.writer(file, delimiter=SEPARATORS.get(kind, ","), lineterminator="\n")
        for queries in blocks:
            top = answer(queries)
            if kind == "jsonl":
                file.writelines(json_lines(queries, top, labels))
            elif kind in SEPARATORS:
                rows = queries.rows()
                columns = _columns(state, rows)
                if count == 0:
                    table.writerow(_header(columns))
                table.writerows(_cells(queries, rows, top, labels, columns))
            else:
                add(_arrow(queries, top, labels, state))
            count += len(queries)
            told(count)
    return count


@contextmanager
def _row_groups(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Yield what takes the rows of a Parquet file, and writes them in groups of SHARD rows."""
    tables: list[pa.Table] = []
    writers: list[pq.ParquetWriter] = []

    def flush() -> None:
        group = pa.concat_tables(tables)
        tables.clear()
        if not writers:
            writers.append(pq.ParquetWriter(path, group.schema, compression="zstd", write_page_checksum=True))
        writers[0].write_table(group)

    def add(table: pa.Table) -> None:
        tables.append(table)
        if sum(map(len, tables)) >= SHARD:
            flush()

    try:
        yield add
        if tables:
            flush()
    finally:
        for writer in writers:
            writer.close()


def json_lines(queries: Queries, top: TopK, labels: Labels) -> Iterator[str]:
    """Write every row as a JSON object."""
    for place, row in enumerate(queries.rows()):
        kept = {_renamed(key): value for key, value in row.items() if key != "id"}
        found = {"id": queries.ids[place], **kept, "labels": [_label(labels, *entry) for entry in top[place]]}
        yield json.dumps(found, ensure_ascii=False, default=str) + "\n"


def _label(labels: Labels, label: int, text: str, score: float) -> dict[str, Any]:
    """Describe one predicted label."""
    raw = {} if labels.ids is None else {"raw_id": labels.ids[label]}
    return {"id": label, **raw, "text": text, "score": round(score, 6)}


def _renamed(column: str) -> str:
    """Give way to what is added."""
    return f"given_{column}" if column in ADDED else column


def _header(columns: list[str]) -> list[str]:
    """Name all columns of a table."""
    return ["id", *map(_renamed, columns), *ADDED]


def _columns(state: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns of the first rows; JSON objects that have others later are refused, not cut."""
    columns: list[str] = state.setdefault("columns", list(dict.fromkeys(k for row in rows for k in row if k != "id")))
    known = {*columns, "id"}
    for row in rows:
        if not row.keys() <= known:
            found = f"a row has {', '.join(sorted(row.keys() - known))}, which the first rows have not"
            raise DataError(found, remedy="write .jsonl, whose rows may differ")
    return columns


def _cells(
    queries: Queries, rows: list[dict[str, Any]], top: TopK, labels: Labels, columns: list[str]
) -> Iterator[list[Any]]:
    """Make the cells of every row of a CSV file; lists are separated by |, or JSON where a label holds one."""
    for place, row in enumerate(rows):
        found = top[place]
        lists = [text for _, text, _ in found], _names(labels, found), [f"{score:.6g}" for _, _, score in found]
        kept = [_text(row.get(column)) for column in columns]
        yield [_text(queries.ids[place]), *kept, *map(_joined, lists)]


def _names(labels: Labels, found: list[tuple[int, str, float]]) -> list[str]:
    """Return the raw ids of labels, else their numbers."""
    return [str(label) if labels.ids is None else labels.ids[label] for label, _, _ in found]


def _joined(words: list[str]) -> str:
    """Write a list into a cell."""
    plain = not any("|" in word or word.startswith("[") for word in words)
    return "|".join(words) if plain else json.dumps(words, ensure_ascii=False)


def _text(value: Any) -> str:
    """Write a value into a cell."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict | bool) else str(value)


def _arrow(queries: Queries, top: TopK, labels: Labels, state: dict[str, Any]) -> pa.Table:
    """Make the columns of a Parquet file; those of one keep their types, others are strings."""
    if isinstance(queries.kept, pa.RecordBatch):
        kept = {name: queries.kept.column(name) for name in queries.kept.schema.names}
        columns = {"id": kept["id"] if "id" in kept else pa.array(queries.ids, None if queries.ids else pa.int64())}
        columns |= {_renamed(name): column for name, column in kept.items() if name != "id"}
    else:
        rows = queries.rows()
        names = _columns(state, rows)
        columns = {"id": pa.array([_text(own) for own in queries.ids], pa.string())}
        for name in names:
            values = [None if row.get(name) is None else _text(row[name]) for row in rows]
            columns[_renamed(name)] = pa.array(values, pa.string())
    found = [top[place] for place in range(len(queries))]
    columns["labels"] = pa.array([[text for _, text, _ in row] for row in found], pa.list_(pa.string()))
    columns["label_ids"] = pa.array([_names(labels, row) for row in found], pa.list_(pa.string()))
    columns["scores"] = pa.array([[score for _, _, score in row] for row in found], pa.list_(pa.float32()))
    return pa.table(columns)


def _finish(target: Target, force: bool) -> None:
    """Make one file, or the folder, of all shards."""
    shards = sorted(target.scratch.glob(f"part-*.{target.kind}"))
    if not target.single:
        target.check(force)
        if target.out.exists():
            shutil.rmtree(target.out)
        target.scratch.replace(target.out)
        (target.out / JOB).unlink()
        return
    if target.kind == "parquet":
        with whole_file(target.out) as partial, pq.ParquetWriter(partial, pq.read_schema(shards[0])) as writer:
            for shard in shards:
                writer.write_table(pq.ParquetFile(shard).read(use_threads=False))
    else:
        with whole_file(target.out) as partial, partial.open("wb") as joined:
            for number, shard in enumerate(shards):
                with shard.open("rb") as file:
                    if number and target.kind in SEPARATORS:
                        _skip_header(file, shards[0])
                    shutil.copyfileobj(file, joined, 1 << 20)
    shutil.rmtree(target.scratch)


def _skip_header(file: io.BufferedReader, first: Path) -> None:
    """Leave the header out of a shard of CSV: all have the same."""
    separator = SEPARATORS[first.suffix[1:]]
    with first.open(encoding="utf-8", newline="") as text:
        header = next(csv.reader(text, delimiter=separator))
    written = io.StringIO()
    csv.writer(written, delimiter=separator, lineterminator="\n").writerow(header)
    file.seek(len(written.getvalue().encode()))
