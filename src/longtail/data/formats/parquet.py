"""PARQUET ↔ ROWS: columns text, labels (lists of ids or of label texts), weights?, id?; lbl.parquet with text, id?."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from longtail.data.dataset import Dataset
from longtail.data.formats.lines import clean
from longtail.data.formats.rows import LabelTable, Place, Points, Raw
from longtail.data.formats.sidecars import read_label_lines, write_sidecars
from longtail.data.formats.survey import SHORT, Survey
from longtail.data.formats.values import short
from longtail.data.problems import Problems
from longtail.packed import parquet_table

COLUMNS = ("text", "title", "content", "labels", "weights", "id", "uid")


def read_parquet(survey: Survey, problems: Problems) -> Raw:
    """Read all splits and the labels."""
    points = {}
    for split in survey.splits("points"):
        path = survey.get("points", split, prefer=".parquet")
        if path is not None:
            points[split] = _points(path, problems)
    path = survey.get("labels", prefer=".parquet")
    if path is None or path.suffix.lower() != ".parquet":
        return Raw(points, read_label_lines(survey, problems))
    columns, count = _read_table(path, problems)
    place = Place(path, range(1, count + 1))
    return Raw(points, LabelTable(place, count, _texts(columns, place, problems), _ids(columns, place, problems)))


def write_parquet(data: Dataset, folder: Path) -> None:
    """Write all splits, the labels and the filters."""
    for name, split in data.splits.items():
        targets, offsets = split.targets, pa.array(split.targets.indptr, pa.int64())
        columns = {"text": split.need_texts("parquet").array}
        columns["labels"] = pa.LargeListArray.from_arrays(offsets, pa.array(targets.indices, pa.int32()))
        if (targets.data != 1).any():
            columns["weights"] = pa.LargeListArray.from_arrays(offsets, pa.array(targets.data, pa.float32()))
        if split.ids is not None:
            columns["id"] = split.ids.array
        _write_table(folder / f"{SHORT[name]}.parquet", columns)
    labels = data.labels
    known = {name: texts.array for name, texts in (("text", labels.texts), ("id", labels.ids)) if texts is not None}
    _write_table(folder / "lbl.parquet", known or {"label": pa.array(np.arange(len(labels)))})
    write_sidecars(data, folder, ids=False)


def _write_table(path: Path, columns: dict[str, Any]) -> None:
    """Write columns with checksums, so that damage is noticed."""
    pq.write_table(pa.table(columns), path, compression="zstd", write_page_checksum=True)


def _read_table(path: Path, problems: Problems) -> tuple[dict[str, Any], int]:
    """Read the known columns of one file as plain arrays."""
    try:
        names = [name for name in pq.read_schema(path).names if name in COLUMNS]
        table = parquet_table(path, names or None)
        columns = {}
        for name in dict.fromkeys(names):
            column = table.column(name).combine_chunks()
            column.validate(full=True)
            columns[name] = column
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as reason:
        found = f"not readable as Parquet ({short(str(reason))})"
        raise problems.fatal("damaged parquet", found, file=path, remedy="write the file again") from None
    return columns, table.num_rows


def _points(path: Path, problems: Problems) -> Points:
    """Read one file of points."""
    columns, count = _read_table(path, problems)
    place = Place(path, range(1, count + 1))
    texts = _texts(columns, place, problems)
    if texts is None or "labels" not in columns:
        found = f"columns {', '.join(columns) or 'none'}"
        raise problems.fatal("header", found, file=path, remedy="write the columns text and labels")
    if not count:
        raise problems.fatal("no points", "no points in this file", file=path, remedy="write one point a row")
    counts, flat = _lists(columns["labels"], "labels", place, problems)
    integers = pa.types.is_integer(flat.type)
    if not integers and not _is_text(flat.type) and len(flat):
        raise problems.fatal(
            "wrong type", f"labels are lists of {flat.type}", file=path, remedy="write integers or strings"
        )
    labels: NDArray[np.int64] | list[str]
    if integers or not len(flat):
        labels = _numbers(flat, np.int64) if integers else np.zeros(0, np.int64)
    else:
        labels = [clean(label) for label in flat.to_pylist()]
    values = _weights(columns.get("weights"), counts, place, problems)
    return Points(place, counts, labels, values, texts, place, _ids(columns, place, problems))


def _lists(column: Any, name: str, place: Place, problems: Problems) -> tuple[NDArray[np.int64], Any]:
    """Split a list column into counts and flat values; lists or items that are null are errors."""
    kind = column.type
    if pa.types.is_null(kind):
        column = pa.array([None] * len(column), pa.list_(pa.int64()))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        remedy = "write a list column"
        raise problems.fatal("wrong type", f"column {name} of type {kind}", file=place.file, remedy=remedy)
    _no_nulls(column, name, place, problems)
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = column.flatten()  # leaves the items of null lists out
    if pa.types.is_dictionary(flat.type):
        flat = flat.dictionary_decode()
    if flat.null_count:
        missing = flat.is_null().to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(counts)), counts)[missing]
        for row in rows:
            line = place.line(int(row))
            problems.error(
                "wrong type", f"an empty item in {name}", file=place.file, line=line, remedy="fill it or drop it"
            )
        counts = counts - np.bincount(rows, minlength=len(counts))
        flat = flat.drop_null()
    return counts, flat


def _weights(column: Any, counts: NDArray[np.int64], place: Place, problems: Problems) -> NDArray[np.float64] | None:
    """Read the weights; a row with another number of them than labels is an error."""
    if column is None:
        return None
    sizes, flat = _lists(column, "weights", place, problems)
    if not (pa.types.is_floating(flat.type) or pa.types.is_integer(flat.type)) and len(flat):
        remedy = "write numbers in [0, 1]"
        raise problems.fatal("wrong type", f"weights are lists of {flat.type}", file=place.file, remedy=remedy)
    wrong = sizes != counts
    for row in np.flatnonzero(wrong):
        found, line = f"{sizes[row]} weights for {counts[row]} labels", place.line(int(row))
        remedy = "give every label one weight"
        problems.error("weights of another length", found, file=place.file, line=line, remedy=remedy)
    if not wrong.any():
        return _numbers(flat, np.float64)
    return np.ones(int(counts.sum()))


def _numbers(flat: Any, kind: type[Any]) -> NDArray[Any]:
    """Return numbers as an array; unsigned ids beyond int64 stay out of range."""
    numbers: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return (np.minimum(numbers, 2**62) if numbers.dtype == np.uint64 else numbers).astype(kind)


def _texts(columns: dict[str, Any], place: Place, problems: Problems) -> list[str] | None:
    """Return the column text, else title and content."""
    if "text" in columns or "title" not in columns:
        return _strings(columns.get("text"), "text", place, problems)
    titles = _strings(columns["title"], "title", place, problems) or []
    if "content" not in columns:
        return titles
    contents = _strings(columns["content"], "content", place, problems) or []
    return [f"{title} {content}".strip() for title, content in zip(titles, contents, strict=True)]


def _ids(columns: dict[str, Any], place: Place, problems: Problems) -> list[str] | None:
    """Return the column id or uid."""
    column = columns.get("id", columns.get("uid"))
    if column is not None and pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return _strings(column, "id", place, problems)


def _strings(column: Any, name: str, place: Place, problems: Problems) -> list[str] | None:
    """Return clean texts; a null is an error."""
    if column is None:
        return None
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type):
        remedy = "write a string column"
        raise problems.fatal("wrong type", f"column {name} of type {column.type}", file=place.file, remedy=remedy)
    _no_nulls(column, name, place, problems)
    return [clean(text or "") for text in column.to_pylist()]


def _no_nulls(column: Any, name: str, place: Place, problems: Problems) -> None:
    """Report the rows without a value."""
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
            line = place.line(int(row))
            problems.error("wrong type", f"no {name}", file=place.file, line=line, remedy="fill it, or drop the row")


def _is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
