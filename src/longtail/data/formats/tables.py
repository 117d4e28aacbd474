"""CSV, TSV AND EXCEL ↔ ROWS: a header row, then columns of texts, labels, weights?, id? in any order.

The first rows tell whether commas, semicolons or tabs separate the cells, whether there is a header, and which column
is what (`columns`); `cells` cuts labels. Written with | and ids. Of a workbook the first sheet is read.
"""

from __future__ import annotations

import csv
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, Any

from longtail.data.dataset import Dataset, Split
from longtail.data.formats.cells import split_labels, split_weights
from longtail.data.formats.columns import SAMPLE, Columns, Reading, find_columns, is_header
from longtail.data.formats.lines import clean, decoded, read_bytes
from longtail.data.formats.rows import LabelTable, Place, Points, Raw
from longtail.data.formats.sidecars import read_label_lines, write_sidecars
from longtail.data.formats.survey import COLUMNS, SHORT, Survey, find_separator
from longtail.data.formats.values import short, shortest, typed
from longtail.data.problems import Problems
from longtail.errors import MissingExtra

Row = tuple[int, list[str]]  # the line it begins on, and its cells


@dataclass
class Table:
    """A table while it is read: the names of its columns, its first rows, and all of them once."""

    path: Path
    names: list[str]
    sample: list[list[str]]
    rows: Iterator[Row]


def read_csv(survey: Survey, problems: Problems) -> Raw:
    """Read comma-separated tables."""
    return _read(survey, ".csv", lambda path, reading: _opened(path, ",", reading, problems), problems)


def read_tsv(survey: Survey, problems: Problems) -> Raw:
    """Read tab-separated tables."""
    return _read(survey, ".tsv", lambda path, reading: _opened(path, "\t", reading, problems), problems)


def read_excel(survey: Survey, problems: Problems) -> Raw:
    """Read the first sheets of workbooks."""

    def opened(path: Path, reading: Reading | None) -> Table:
        if path.suffix.lower() != ".xlsx":
            return _opened(path, ",", reading, problems)  # labels beside a workbook
        with path.open("rb") as file:
            return headed(iter(list(sheet_rows(file, path, problems))), path, reading, problems)

    return _read(survey, ".xlsx", opened, problems)


def write_csv(data: Dataset, folder: Path) -> None:
    """Write comma-separated tables."""
    _write(data, folder, ",", ".csv")


def write_tsv(data: Dataset, folder: Path) -> None:
    """Write tab-separated tables."""
    _write(data, folder, "\t", ".tsv")


def _read(survey: Survey, suffix: str, opened: Callable[[Path, Reading | None], Table], problems: Problems) -> Raw:
    """Read all splits and the labels."""
    points = {}
    for split in survey.splits("points"):
        path = survey.get("points", split, prefer=suffix)
        if path is not None:
            points[split] = _points(opened(path, survey.reading), survey.reading, problems)
    path = survey.get("labels", prefer=suffix)
    if path is None or path.name.lower().removesuffix(".gz").endswith(".txt"):
        return Raw(points, read_label_lines(survey, problems))
    table = opened(path, None)
    columns, lines = _by_name(table, {*table.names})
    lower = {name.lower(): cells for name, cells in reversed(columns.items())}
    texts = next((lower[name] for name in ("text", "title", "name") if name in lower), None)
    ids = lower.get("id", lower.get("uid"))
    return Raw(points, LabelTable(Place(path, lines), len(lines), _cleaned(texts), _cleaned(ids)))


def _points(table: Table, reading: Reading, problems: Problems) -> Points:
    """Read one table of points."""
    if not table.names:
        raise problems.fatal("no points", "an empty file", file=table.path, remedy="write one point a row")
    if not table.sample:
        raise problems.fatal("no points", "no points in this file", file=table.path, remedy="write one point a row")
    found = table_columns(table, reading)
    columns, lines = _by_name(table, {*found.text, found.labels, found.weights, found.id})
    place = Place(table.path, lines)
    texts = [clean(" ".join(parts)) for parts in zip(*(columns[name] for name in found.text), strict=True)]
    cells = split_labels(list(columns[str(found.labels)]), reading.sep, place, problems)
    problems.note(found.describe(cells.mark))
    weights = split_weights(
        None if found.weights is None else list(columns[found.weights]), cells.rows, place, problems
    )
    counts, flat = [len(row) for row in cells.rows], [label for row in cells.rows for label in row]
    sizes, labels, values = typed(place, counts, flat, weights, problems)
    ids = None if found.id is None else _cleaned(columns[found.id])
    return Points(place, sizes, labels, values, texts, place, ids, digits_are_ids=not cells.listed, columns=found.text)


def table_columns(table: Table, reading: Reading, *, labelled: bool = True) -> Columns:
    """Find the columns of a table, and note where its header is a guess."""
    found = find_columns(table.names, table.sample, reading, table.path, labelled=labelled)
    asked = reading.text or reading.labels or {*reading.usual} & {*table.names}
    words = {word for name in table.names for word in (name.lower(), *re.split(r"[\W_]+", name.lower()))}
    return replace(found, guessed=found.headed and not asked and not words & COLUMNS)


def _opened(path: Path, usual: str, reading: Reading | None, problems: Problems) -> Table:
    """Open a table of text."""
    return table_of(decoded(read_bytes(path, problems), path, problems), usual, reading, path, problems)


def table_of(
    lines: Iterator[tuple[int, str]], usual: str, reading: Reading | None, path: Path, problems: Problems
) -> Table:
    """Cut lines into the cells of a table; without a reading the first row is a header whatever it says."""
    first = list(islice(lines, SAMPLE))
    separator = find_separator([line for _, line in first], usual)
    return headed(
        _parsed((line for _, line in chain(first, lines)), separator, path, problems), path, reading, problems
    )


def headed(rows: Iterator[Row], path: Path, reading: Reading | None, problems: Problems) -> Table:
    """Tell the header from the first rows; columns without a name get their number."""
    sample = list(islice(rows, SAMPLE))
    if not sample:
        return Table(path, [], [], iter(()))
    if reading is None or is_header([row for _, row in sample], reading):
        names = [cell.strip() or f"column {place}" for place, cell in enumerate(sample.pop(0)[1], 1)]
    else:
        names = [str(place) for place in range(1, len(sample[0][1]) + 1)]
    even = [_even(row, len(names), path, problems) for row in sample]
    rest = (_even(row, len(names), path, problems) for row in rows)
    return Table(path, names, [row for _, row in even], chain(even, rest))


def _even(row: Row, width: int, path: Path, problems: Problems) -> Row:
    """Require as many cells as there are columns."""
    number, cells = row
    if len(cells) == width:
        return row
    found, remedy = f"{len(cells)} cells for {width} columns", "give every row as many cells as the header"
    problems.error("bad row", found, file=path, line=number, remedy=remedy)
    return number, (cells + [""] * width)[:width]


def _parsed(lines: Iterable[str], separator: str, path: Path, problems: Problems) -> Iterator[Row]:
    """Cut lines into rows; blank lines are skipped."""
    limit = csv.field_size_limit(sys.maxsize)  # the default of 131,072 characters is below long documents
    rows = csv.reader((line + "\n" for line in lines), delimiter=separator, strict=True)
    width = 0
    try:
        while True:
            number = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as reason:
                remedy = "quote cells that hold quotes or separators, and double the quotes inside"
                problems.error("bad row", f"not a row of a table ({reason})", file=path, line=number, remedy=remedy)
                row = [""] * width  # it keeps its place while a file is checked
            width = width or len(row)
            if row:
                yield number, row
    finally:
        csv.field_size_limit(limit)


def sheet_rows(file: IO[bytes], path: Path, problems: Problems) -> Iterator[Row]:
    """Read the rows of the first sheet of a workbook as texts; empty rows are skipped."""
    try:
        import openpyxl  # noqa: PLC0415  (an extra)
    except ImportError:
        raise MissingExtra("openpyxl", "excel") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles and extensions that it does not know
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            sheet = book.worksheets[0]
            if len(book.worksheets) > 1:
                problems.note(f"sheet: {sheet.title}, the first of {len(book.worksheets)}")
            sheet.reset_dimensions()  # which some programs write wrong
            rows = sheet.iter_rows(values_only=True)
            width = 0
            for number, row in enumerate(rows, 1):
                cells = [_shown(value) for value in row]
                width = width or max((place for place, cell in enumerate(cells, 1) if cell.strip()), default=0)
                if any(cell.strip() for cell in cells):
                    extra = max((place for place, cell in enumerate(cells, 1) if cell.strip()), default=0)
                    yield number, (cells + [""] * width)[: max(width, extra)]
    except (MissingExtra, GeneratorExit):
        raise
    except Exception as reason:  # damage of a zip archive or of its XML shows itself in a dozen exception types
        found = f"not readable as an Excel workbook ({short(str(reason))})"
        raise problems.fatal("damaged workbook", found, file=path, remedy="save it again as .xlsx, or as CSV") from None


def _shown(value: Any) -> str:
    """Write the value of a cell as people see it: 5, not 5.0."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _by_name(table: Table, wanted: Set[str | None]) -> tuple[dict[str, list[str]], list[int]]:
    """Read a table to its end, into the wanted columns by name, with the line of every row."""
    numbers: list[int] = []
    places = {name: table.names.index(name) for name in table.names if name in wanted}
    columns: dict[str, list[str]] = {name: [] for name in places}
    for number, row in table.rows:
        numbers.append(number)
        for name, place in places.items():
            columns[name].append(row[place])
    return columns, numbers


def _cleaned(column: list[str] | None) -> list[str] | None:
    """Clean every cell."""
    return None if column is None else [clean(cell) for cell in column]


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
