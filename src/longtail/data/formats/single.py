"""SPLIT → ONE FILE that stands alone: points with the names of their labels, as JSON lines, CSV, TSV or Parquet.

Without a label file beside it, labels are names: their texts where all differ, else their raw ids, else their numbers.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longtail.data.dataset import Dataset, Labels, Split
from longtail.data.formats.cells import MARKS
from longtail.data.formats.lines import write_packed
from longtail.data.formats.lines import write_texts as write_lines
from longtail.data.formats.values import shortest
from longtail.errors import BadArgument, DataError, Occupied
from longtail.whole import whole_file

ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".tsv", ".parquet")
OTHERS = (  # of files that people expect and that are not written
    ".json", ".ndjson", ".txt", ".xlsx", ".xls", ".xlsm", ".ods", ".feather", ".pq", ".html", ".xml", ".gz", ".zip",
    ".jsonl", ".csv", ".tsv", ".parquet",
)  # fmt: skip


def ending_of(path: Path) -> str | None:
    """Return the ending of a name that stands for one file, None for a folder.

    >>> ending_of(Path("a.csv")), ending_of(Path("runs.v2"))
    ('.csv', None)
    """
    return next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), None)


def no_other_file(path: Path, written: Iterable[str]) -> None:
    """Refuse a name that looks like a file of a kind that is not written: it would become a folder."""
    if path.suffix.lower() in OTHERS and not path.is_dir():
        endings = ", ".join(written)
        raise BadArgument(
            f"{path.name}: {path.suffix} is not written", remedy=f"end the name with {endings}; a folder has no ending"
        )


def chosen_ending(path: Path, format: str | None) -> str | None:
    """Return the ending of one file to write, None for a folder; refuse one that the format is not for."""
    ending = ending_of(path)
    if ending is None:
        no_other_file(path, ENDINGS)
    elif format not in (None, ending[1:].removesuffix(".gz")):
        raise BadArgument(f"{path.name} is not {format}", remedy=f"end the name with .{format}, or give a folder")
    return ending


def only_split(data: Dataset) -> Split:
    """Return the split that one file gets: the only one."""
    if len(data.splits) != 1:
        found = f"one file holds one split, and there are {', '.join(data.splits)}"
        raise DataError(found, remedy="choose a split, or give a folder")
    return next(iter(data.splits.values()))


def write_file(split: Split, path: Path, *, force: bool = False) -> None:
    """Write the points of a split to one file, whole or not at all; refuse what a file alone cannot hold."""
    ending = ending_of(path)
    if ending is None:
        raise DataError(f"no known ending in {path.name}", remedy=f"end the name with one of {', '.join(ENDINGS)}")
    if path.is_dir():
        raise DataError("a folder is here", file=path, remedy="choose another name")
    if path.exists() and not force:
        raise Occupied("exists already", file=path, remedy="choose another name, or replace this file: force=True")
    if split.excluded.nnz:
        raise DataError("one file cannot hold the pairs that a filter leaves out", remedy="write a folder")
    rows = _rows(split)
    with whole_file(path) as partial:
        if ending == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), partial, compression="zstd", write_page_checksum=True)
        elif ending in (".csv", ".tsv"):
            _write_cells(rows, partial, "," if ending == ".csv" else "\t")
        else:
            lines = (json.dumps(row, ensure_ascii=False) for row in rows)
            (write_packed if ending == ".jsonl.gz" else write_lines)(partial, lines)


def label_names(labels: Labels) -> list[str]:
    """Return a name of its own for every label."""
    for column in (labels.texts, labels.ids):
        names = [] if column is None else column.tolist()
        if names and all(names) and len({*names}) == len(names):
            return names
    return list(map(str, range(len(labels))))


def _rows(split: Split) -> list[dict[str, Any]]:
    """Make the columns of every point."""
    names, targets = label_names(split.labels), split.targets
    flat = [names[label] for label in targets.indices.tolist()]
    weights = [float(value) for value in shortest(targets.data)] if (targets.data != 1).any() else None
    rows: list[dict[str, Any]] = []
    for place, (start, stop) in enumerate(pairwise(targets.indptr.tolist())):
        row: dict[str, Any] = {} if split.ids is None else {"id": split.ids[place]}
        row |= {"text": split.need_texts("a file")[place], "labels": flat[start:stop]}
        rows.append(row | ({} if weights is None else {"weights": weights[start:stop]}))
    return rows


def _write_cells(rows: list[dict[str, Any]], path: Path, separator: str) -> None:
    """Write a table; labels are separated by |, or are JSON lists where a name holds what may separate them."""
    odd = any(name.startswith("[") or any(mark in name for mark in MARKS) for row in rows for name in row["labels"])
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=separator, lineterminator="\n")
        table.writerow(rows[0] if rows else ("text", "labels"))
        for row in rows:
            cells = dict(row)
            cells["labels"] = json.dumps(row["labels"], ensure_ascii=False) if odd else "|".join(row["labels"])
            if "weights" in row:
                cells["weights"] = "|".join(map(str, row["weights"]))
            table.writerow(cells.values())
