"""PARQUET ↔ ROWS: columns text, labels (lists of ids or of label texts), weights?, id?; lbl.parquet with text, id?.

Other columns of texts and labels are found as in every table (`columns`); labels may also be strings that hold several
(`cells`), or one value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from longtail.data.dataset import Dataset
from longtail.data.formats.cells import split_labels
from longtail.data.formats.columns import IDS, SAMPLE, Columns, Reading, find_columns
from longtail.data.formats.lines import clean
from longtail.data.formats.rows import LabelTable, Place, Points, Raw
from longtail.data.formats.sidecars import read_label_lines, write_sidecars
from longtail.data.formats.survey import SHORT, Survey
from longtail.data.formats.values import short, typed
from longtail.data.problems import Problems
from longtail.packed import parquet_table

OWN = ("text", "title", "id", "uid")  # columns of a label file
UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError)


def read_parquet(survey: Survey, problems: Problems) -> Raw:
    """Read all splits and the labels."""
    points = {}
    for split in survey.splits("points"):
        path = survey.get("points", split, prefer=".parquet")
        if path is not None:
            points[split] = _points(path, survey.reading, problems)
    path = survey.get("labels", prefer=".parquet")
    if path is None or path.suffix.lower() != ".parquet":
        return Raw(points, read_label_lines(survey, problems))
    columns, count = _read_table(path, OWN, problems)
    place = Place(path, range(1, count + 1))
    names = [name for name in ("text", "title") if name in columns][:1]
    texts = _strings(columns[names[0]], names[0], place, problems) if names else None
    own = next((name for name in ("id", "uid") if name in columns), None)
    ids = None if own is None else _strings(columns[own], own, place, problems)
    return Raw(points, LabelTable(place, count, texts, ids))


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


def _read_table(path: Path, wanted: tuple[str | None, ...], problems: Problems) -> tuple[dict[str, Any], int]:
    """Read the wanted columns of one file as plain arrays, as far as it has them."""
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in wanted]
        table = parquet_table(path, names or None)
        columns = {}
        for name in dict.fromkeys(names):
            column = table.column(name).combine_chunks()
            column.validate(full=True)
            columns[name] = column
    except UNREADABLE as reason:
        raise damaged(path, reason, problems) from None
    return columns, table.num_rows


def damaged(path: Path, reason: Exception, problems: Problems) -> Exception:
    """Say that a file is not readable."""
    found = f"not readable as Parquet ({short(str(reason))})"
    return problems.fatal("damaged parquet", found, file=path, remedy="write the file again")


def find_arrow_columns(
    file: pq.ParquetFile, path: Path, reading: Reading, problems: Problems, *, labelled: bool = True
) -> Columns:
    """Find the columns of texts and labels from the first rows of an open file."""
    try:
        first = next(file.iter_batches(SAMPLE, use_threads=False), None)
        names = list(dict.fromkeys(file.schema_arrow.names))
        rows = [] if first is None else [[row.get(name) for name in names] for row in first.to_pylist()]
    except UNREADABLE as reason:
        raise damaged(path, reason, problems) from None
    return find_columns(names, rows, reading, path, labelled=labelled)


def _points(path: Path, reading: Reading, problems: Problems) -> Points:
    """Read one file of points."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.metadata.num_rows:
                raise problems.fatal("no points", "no points in this file", file=path, remedy="write one point a row")
            found = find_arrow_columns(file, path, reading, problems)
    except UNREADABLE as reason:
        raise damaged(path, reason, problems) from None
    columns, count = _read_table(path, (*found.text, found.labels, found.weights, found.id), problems)
    place = Place(path, range(1, count + 1))
    parts = [_strings(columns[name], name, place, problems) for name in found.text]
    texts = parts[0] if len(parts) == 1 else [" ".join(some).strip() for some in zip(*parts, strict=True)]
    column, name = _decoded(columns[str(found.labels)]), str(found.labels)
    if _is_text(column.type) or _is_number(column.type) or _holds_floats(column.type):
        cells = split_labels(column.to_pylist(), reading.sep, place, problems)
        counts, labels, _ = typed(
            place, [len(row) for row in cells.rows], [label for row in cells.rows for label in row], None, problems
        )
        mark, digits = cells.mark, not cells.listed
    else:
        counts, flat = _lists(column, name, place, problems)
        labels, mark, digits = _flat_labels(flat, path, problems), None, pa.types.is_integer(flat.type)
    if found.text != ("text",) or name != "labels" or mark is not None:
        problems.note(found.describe(mark))
    values = _weights(None if found.weights is None else columns[found.weights], counts, place, problems)
    ids = None if found.id is None else _strings(columns[found.id], found.id, place, problems)
    return Points(place, counts, labels, values, texts, place, ids, digits_are_ids=digits, columns=found.text)


def _flat_labels(flat: Any, path: Path, problems: Problems) -> NDArray[np.int64] | list[str]:
    """Return the items of lists as numbers or as names."""
    if not len(flat):
        return np.zeros(0, np.int64)
    if pa.types.is_integer(flat.type):
        large = pa.types.is_uint64(flat.type) and pc.max(flat).as_py() >= 2**63
        if large:
            return [str(label) for label in flat.to_pylist()]
        return np.asarray(flat.to_numpy(zero_copy_only=False), np.int64)
    if not _is_text(flat.type):
        remedy = "write integers or strings"
        raise problems.fatal("wrong type", f"labels are lists of {flat.type}", file=path, remedy=remedy)
    return [clean(label) for label in flat.to_pylist()]


def _decoded(column: Any) -> Any:
    """Replace a dictionary by its values."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _lists(column: Any, name: str, place: Place, problems: Problems) -> tuple[NDArray[np.int64], Any]:
    """Split a list column into counts and flat values; lists or items that are null are errors."""
    kind = column.type
    if pa.types.is_null(kind):
        column = pa.array([None] * len(column), pa.list_(pa.int64()))
    elif not _is_list(kind):
        remedy = "write a list column"
        raise problems.fatal("wrong type", f"column {name} of type {kind}", file=place.file, remedy=remedy)
    _no_nulls(column, name, place, problems)
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = _decoded(column.flatten())  # leaves the items of null lists out
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
    if not _is_number(flat.type) and len(flat):
        remedy = "write numbers in [0, 1]"
        raise problems.fatal("wrong type", f"weights are lists of {flat.type}", file=place.file, remedy=remedy)
    wrong = sizes != counts
    for row in np.flatnonzero(wrong):
        found, line = f"{sizes[row]} weights for {counts[row]} labels", place.line(int(row))
        remedy = "give every label one weight"
        problems.error("weights of another length", found, file=place.file, line=line, remedy=remedy)
    if not wrong.any():
        return np.asarray(flat.to_numpy(zero_copy_only=False), np.float64)
    return np.ones(int(counts.sum()))


def _strings(column: Any, name: str, place: Place, problems: Problems) -> list[str]:
    """Return clean texts, of whole numbers too where they are ids; a null is an error."""
    column = _decoded(column)
    if pa.types.is_integer(column.type) and name.lower() in IDS:
        column = column.cast(pa.string())
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


def _is_number(kind: Any) -> bool:
    """Return whether an Arrow type holds numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _holds_floats(kind: Any) -> bool:
    """Return whether an Arrow type holds lists of floats, which may be whole."""
    return _is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def _is_list(kind: Any) -> bool:
    """Return whether an Arrow type holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
