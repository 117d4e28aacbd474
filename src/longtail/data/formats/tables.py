"""CSV AND TSV ↔ ROWS: a header row, then columns text, labels, weights?, id? in any order.

The header row tells whether commas, semicolons or tabs separate the cells. A cell of labels is a JSON list, or labels
separated by the first of | ; , that occurs in any cell of the file; where none occurs, blanks separate ids, and any
other cell is one label. Labels that are all integers are ids; in a JSON list strings are label texts. A comma may be
part of a label text, so a check warns where label texts were split at commas. Weights may be separated by any of these.
Written with | and ids.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from longtail.data.dataset import Dataset, Split
from longtail.data.formats.lines import clean, decoded, read_bytes
from longtail.data.formats.rows import LabelTable, Place, Points, Raw
from longtail.data.formats.sidecars import read_label_lines, write_sidecars
from longtail.data.formats.survey import SHORT, Survey, find_separator
from longtail.data.formats.values import short, shortest, typed
from longtail.data.problems import Problems

NAMES = {"uid": "id", "label": "labels", "weight": "weights"}


def read_csv(survey: Survey, problems: Problems) -> Raw:
    """Read comma-separated tables."""
    return _read(survey, ",", ".csv", problems)


def read_tsv(survey: Survey, problems: Problems) -> Raw:
    """Read tab-separated tables."""
    return _read(survey, "\t", ".tsv", problems)


def write_csv(data: Dataset, folder: Path) -> None:
    """Write comma-separated tables."""
    _write(data, folder, ",", ".csv")


def write_tsv(data: Dataset, folder: Path) -> None:
    """Write tab-separated tables."""
    _write(data, folder, "\t", ".tsv")


def _read(survey: Survey, separator: str, suffix: str, problems: Problems) -> Raw:
    """Read all splits and the labels."""
    points = {}
    for split in survey.splits("points"):
        path = survey.get("points", split, prefer=suffix)
        if path is not None:
            points[split] = _points(path, separator, problems)
    path = survey.get("labels", prefer=suffix)
    if path is None or path.name.lower().removesuffix(".gz").endswith(".txt"):
        return Raw(points, read_label_lines(survey, problems))
    columns, lines = _read_columns(path, separator, problems)
    return Raw(points, LabelTable(Place(path, lines), len(lines), _texts(columns), _cleaned(columns.get("id"))))


def _points(path: Path, separator: str, problems: Problems) -> Points:
    """Read one table of points."""
    columns, lines = _read_columns(path, separator, problems)
    texts, cells = _texts(columns), columns.get("labels")
    if texts is None or cells is None:
        found = f"columns {', '.join(columns)}" if columns else "an empty file"
        raise problems.fatal(
            "header", found, file=path, line=1, remedy="name the columns text and labels in the first row"
        )
    if not lines:
        raise problems.fatal("no points", "no points in this file", file=path, remedy="write one point a row")
    place = Place(path, lines)
    rows, listed = _split_cells(cells, place, problems)
    weights = _weights(columns.get("weights"), rows, place, problems)
    counts, flat = [len(row) for row in rows], [label for row in rows for label in row]
    sizes, labels, values = typed(place, counts, flat, weights, problems)
    return Points(
        place, sizes, labels, values, texts, place, _cleaned(columns.get("id")),
        digits_are_ids=not (listed and any(type(label) is str for label in flat)),
    )  # fmt: skip


def _read_columns(path: Path, usual: str, problems: Problems) -> tuple[dict[str, list[str]], list[int]]:
    """Read a table into columns by name, with the line of every row; blank lines are skipped."""
    content = read_bytes(path, problems)
    lines = (line + "\n" for _, line in decoded(content, path, problems))
    rows = csv.reader(lines, delimiter=find_separator(content.partition(b"\n")[0], usual), strict=True)
    names: list[str] | None = None
    cells: list[list[str]] = []
    numbers: list[int] = []
    limit = csv.field_size_limit(sys.maxsize)  # the default of 131,072 characters is below long documents
    try:
        while True:
            number = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                break
            except csv.Error as reason:
                remedy = "quote cells that hold quotes or separators, and double the quotes inside"
                problems.error("bad row", f"not a row of a table ({reason})", file=path, line=number, remedy=remedy)
                row = [""] * len(names or [])
            if names is None:
                names = [NAMES.get(name, name) for name in (cell.strip().lower() for cell in row)]
            elif row:
                if len(row) != len(names):
                    found, remedy = (
                        f"{len(row)} cells for {len(names)} columns",
                        "give every row as many cells as the header",
                    )
                    problems.error("bad row", found, file=path, line=number, remedy=remedy)
                    row = (row + [""] * len(names))[: len(names)]
                cells.append(row)
                numbers.append(number)
    finally:
        csv.field_size_limit(limit)
    columns = {name: [row[n] for row in cells] for n, name in enumerate(names or [])}
    return columns, numbers


def _texts(columns: dict[str, list[str]]) -> list[str] | None:
    """Return the column text, else title and content."""
    if "text" in columns or "title" not in columns:
        return _cleaned(columns.get("text"))
    if "content" not in columns:
        return _cleaned(columns["title"])
    pairs = zip(columns["title"], columns["content"], strict=True)
    return [clean(f"{title} {content}") for title, content in pairs]


def _cleaned(column: list[str] | None) -> list[str] | None:
    """Clean every cell."""
    return None if column is None else [clean(cell) for cell in column]


def _split_cells(cells: list[str], place: Place, problems: Problems) -> tuple[list[list[Any]], bool]:
    """Split cells into lists by the separator of the file; also return whether any cell is a JSON list."""
    cells = [cell.strip() for cell in cells]
    plain = [cell for cell in cells if not cell.startswith("[")]
    mark = next((mark for mark in "|;," if any(mark in cell for cell in plain)), None)
    if mark is None and all(word.isdecimal() for cell in plain for word in cell.split()):
        mark = " "
    rows: list[list[Any]] = []
    for row, cell in enumerate(cells):
        if cell.startswith("["):
            rows.append(_json_list(cell, place, row, problems))
        else:
            words = (word.strip() for word in ([cell] if mark is None else cell.split(mark)))
            rows.append([word for word in words if word])
    if mark == "," and not all(word.strip().isdecimal() for cell in plain for word in cell.split(",") if word.strip()):
        problems.warn(
            "labels split at commas", "labels were split at commas, as no cell has | or semicolons", file=place.file,
            line=1, remedy='if a label text holds a comma, separate labels by |, or write a JSON list: ["a, b", "c"]',
        )  # fmt: skip
    return rows, len(plain) < len(cells)


def _json_list(cell: str, place: Place, row: int, problems: Problems) -> list[Any]:
    """Read a cell that holds a JSON list."""
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError) as reason:
        found = f"not a JSON list ({reason}): {short(cell)}"
        problems.error("not JSON", found, file=place.file, line=place.line(row), remedy='write ["a", "b"], or a|b')
        return []
    return value if isinstance(value, list) else []


def _weights(cells: list[str] | None, labels: list[list[Any]], place: Place, problems: Problems) -> list[Any] | None:
    """Read the weights of every row; an empty cell means weight 1."""
    if cells is None:
        return None
    flat: list[Any] = []
    for row, (cell, row_labels) in enumerate(zip(cells, labels, strict=True)):
        if cell.lstrip().startswith("["):
            weights = _json_list(cell, place, row, problems)
        else:
            weights = [_number(word) for word in re.split(r"[\s|;,]+", cell.strip()) if word]
        if weights and len(weights) != len(row_labels):
            message, remedy = f"{len(weights)} weights for {len(row_labels)} labels", "give every label one weight"
            line = place.line(row)
            problems.error("weights of another length", message, file=place.file, line=line, remedy=remedy)
            weights = []
        flat += weights or [1.0] * len(row_labels)
    return flat


def _number(word: str) -> float | str:
    """Read a number; other words stay as they are, to be reported."""
    try:
        return float(word)
    except ValueError:
        return word


def _write(data: Dataset, folder: Path, separator: str, suffix: str) -> None:
    """Write all splits, the labels and the filters."""
    for name, split in data.splits.items():
        _write_rows(folder / f"{SHORT[name]}{suffix}", separator, _columns(split))
    columns = {"text": data.labels.texts, "id": data.labels.ids}
    known: dict[str, Iterable[str]] = {name: texts for name, texts in columns.items() if texts is not None}
    _write_rows(folder / f"lbl{suffix}", separator, known or {"label": map(str, range(len(data.labels)))})
    write_sidecars(data, folder, ids=False)


def _columns(split: Split) -> dict[str, Iterable[str]]:
    """Make the columns of a split."""
    targets, ends = split.targets, split.targets.indptr.tolist()

    def joined(words: list[str]) -> Iterator[str]:
        return ("|".join(words[start:stop]) for start, stop in pairwise(ends))

    columns: dict[str, Iterable[str]] = {"text": split.need_texts("a table")}
    columns["labels"] = joined(list(map(str, targets.indices.tolist())))
    if (targets.data != 1).any():
        columns["weights"] = joined(shortest(targets.data))
    if split.ids is not None:
        columns["id"] = split.ids
    return columns


def _write_rows(path: Path, separator: str, columns: dict[str, Iterable[str]]) -> None:
    """Write columns as a table with a header."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=separator, lineterminator="\n")
        table.writerow(columns)
        table.writerows(zip(*columns.values(), strict=True))
