"""ROWS OF FILES → DATASET: what every reader hands over, checked against the labels and put together in one place.

A label is an id (a position among the labels) only where a file says how many labels there are and the numbers fit it:
a label file, the header of a matrix, a filter. Everything else is a name, also 2020 or an EAN; the caller may decide.
The number of labels comes from the label file, else from a header, else from the labels that occur. A row with an error
keeps its place, so that filters and ids stay aligned in a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Dataset, Labels, Split
from longtail.data.problems import Problems
from longtail.types import LabelMatrix, Texts, label_matrix

MOST_LABELS = 100_000_000  # a claim beyond this is damage, and must not size any array


@dataclass(frozen=True)
class Place:
    """Where rows stand: a file and the 1-based line of every row."""

    file: Path
    lines: Sequence[int]

    def line(self, row: int) -> int:
        """Return the line of a row, 0 if it is not known."""
        return self.lines[row] if row < len(self.lines) else 0


@dataclass
class Points:
    """The points of one split as a file has them: labels are ids or label texts, not yet checked against L."""

    at: Place
    counts: NDArray[np.int64]  # (N,) labels per point
    labels: NDArray[np.int64] | list[str]  # flat
    values: NDArray[np.float64] | None = None  # flat
    texts: list[str] | None = None
    texts_at: Place | None = None
    ids: list[str] | None = None
    width: int | None = None  # number of labels that a header claims
    digits_are_ids: bool = False  # labels that are texts may all be numbers, and may be ids then
    features: sp.csr_array | None = None
    columns: tuple[str, ...] = ()  # of a table that the texts come from
    partial: bool = False  # whether other labels may be true of a point too


@dataclass
class LabelTable:
    """The rows of a label file, as far as it has them."""

    at: Place
    count: int
    texts: list[str] | None = None
    ids: list[str] | None = None
    aliases: dict[str, int] = field(default_factory=dict)  # other names by which points may call a label
    alternatives: list[tuple[int, str]] = field(default_factory=list)  # other texts of labels
    broader: NDArray[np.int64] | None = None  # (P, 2): a label, and one that is broader
    numbered: bool = True  # numbers may be positions; in a vocabulary they are notations


@dataclass
class Raw:
    """Everything that the files of a data set hold."""

    points: dict[str, Points]
    table: LabelTable | None = None
    pairs: dict[str, tuple[Path, NDArray[np.int64]]] = field(default_factory=dict)  # filter: (P, 2) point, label
    label_features: sp.csr_array | None = None
    label_features_at: Path | None = None
    vocabulary: list[str] | None = None


def assemble(raw: Raw, name: str, origin: str, labels_are: str | None, problems: Problems) -> Dataset:
    """Check labels, values and filters, and build the data set."""
    if not raw.points:
        raise problems.fatal("no points", "no file with points", file=origin, remedy="add trn, tst or val files")
    names = _number_labels(raw, labels_are, problems)
    count = _label_count(raw, names, problems)
    table = raw.table
    texts = names if names is not None else table.texts if table else None
    ids = table.ids if table else None
    labels = Labels(count, None if texts is None else Texts(texts), None if ids is None else Texts(ids))
    if raw.label_features is not None:
        labels = replace(labels, features=raw.label_features)
    if table is not None:
        labels = _related(labels, table, problems)
    splits = {}
    for split, points in raw.points.items():
        targets = _targets(points, count, problems)
        excluded = _excluded(raw, split, targets, problems)
        splits[split] = Split(
            split, labels, targets, excluded,
            None if points.texts is None else Texts(points.texts),
            None if points.ids is None else Texts(points.ids),
            points.features,
            columns=points.columns, partial=points.partial,
        )  # fmt: skip
    vocabulary = None if raw.vocabulary is None else Texts(raw.vocabulary)
    return Dataset(labels, splits, name, vocabulary, origin)


def _related(labels: Labels, table: LabelTable, problems: Problems) -> Labels:
    """Add other texts of labels, and which of them are broader; a number beyond the labels is an error."""
    count, file = len(labels), table.at.file
    beyond = [label for label, _ in table.alternatives if not 0 <= label < count]
    pairs = np.zeros((0, 2), np.int64) if table.broader is None else table.broader
    beyond += pairs[((pairs < 0) | (pairs >= count)).any(1)].max(1).tolist()
    if beyond:
        found = f"label {beyond[0]} of {count:,} labels among alternatives or broader ones"
        raise problems.fatal("label id out of range", found, file=file, remedy=f"use ids 0 to {count - 1}")
    if table.alternatives:
        own = np.array([label for label, _ in table.alternatives], np.int64)
        whose = label_matrix(np.arange(len(own) + 1), own, (len(own), count))
        texts = Texts([text for _, text in table.alternatives])
        labels = replace(labels, alternatives=texts, alternatives_of=whose)
    if len(pairs):
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        starts = np.append(0, np.cumsum(np.bincount(pairs[:, 0], minlength=count)))
        labels = replace(labels, broader=label_matrix(starts, pairs[:, 1], (count, count)))
    return labels


def _number_labels(raw: Raw, labels_are: str | None, problems: Problems) -> list[str] | None:
    """Replace label names by ids in place; return the sorted names if no label file has them."""
    open_points = [points for points in raw.points.values() if points.width is None]
    named = [points for points in open_points if not _take_ids(raw, points, labels_are, problems)]
    if not named:
        return None
    for points in named:
        if not isinstance(points.labels, list):
            points.labels = list(map(str, points.labels.tolist()))
    table = raw.table
    if table is not None and (table.texts is not None or table.ids is not None):
        for points in named:
            points.labels = _looked_up(points, table, problems)
        return None
    if table is not None or len(named) < len(raw.points):
        told = table.at.file if table is not None else named[0].at.file
        raise problems.fatal(
            "unknown label text", "labels are texts, but no label file has texts", file=told,
            remedy="add the label texts or write ids",
        )  # fmt: skip
    names = sorted({text for points in named for text in points.labels})
    rows = {text: row for row, text in enumerate(names)}
    for points in named:
        points.labels = np.fromiter((rows[str(text)] for text in points.labels), np.int64, len(points.labels))
    return names


def _take_ids(raw: Raw, points: Points, labels_are: str | None, problems: Problems) -> bool:
    """Decide whether the labels of a file are ids, say why, and read them as ids if so."""
    digits = points.digits_are_ids or labels_are == "ids"
    numbers = not isinstance(points.labels, list) or (digits and _are_numbers(points.labels))
    table = raw.table
    sized = raw.label_features is not None or any(other.width is not None for other in raw.points.values())
    if labels_are is not None:
        ids, why = labels_are == "ids" and numbers, "as you say"
        if labels_are == "ids" and not numbers:
            found = f"label {next(text for text in points.labels if not _are_numbers([text]))!r} is no id"
            raise problems.fatal("wrong type", found, file=points.at.file, remedy="write numbers, or say names")
    elif not numbers:
        ids, why = False, "they are not all numbers"
    elif table is not None and not table.numbered:
        ids, why = False, f"{table.at.file.name} is a vocabulary"
    elif table is not None:
        fits = _fits(points, table.count)
        ids = fits or not _known(points, table)
        why = f"{'the' if fits else 'not all'} numbers are positions in {table.at.file.name}"
    else:
        ids = bool(raw.pairs) or sized
        why = "a file beside them counts labels" if ids else "no label file gives the numbers a meaning"
    if len(points.labels) and (numbers or problems.collect):
        problems.note(f"labels are {'ids' if ids else 'names'}: {why}")
    if ids and isinstance(points.labels, list):
        points.labels = _parsed(points)
    return ids


def _are_numbers(labels: Sequence[Any] | NDArray[Any]) -> bool:
    """Return whether all label texts are integers."""
    return all(text.removeprefix("-").isdecimal() and text.isascii() for text in labels)


def _fits(points: Points, count: int) -> bool:
    """Return whether all numbers are positions among so many labels."""
    numbers = _parsed(points) if isinstance(points.labels, list) else points.labels
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < count)


def _known(points: Points, table: LabelTable) -> bool:
    """Return whether all numbers are names or raw ids in a label file."""
    known = {*(table.texts or ()), *(table.ids or ()), *table.aliases}
    return all(str(label) in known for label in points.labels)


def _parsed(points: Points) -> NDArray[np.int64]:
    """Read label texts that are all digits as ids; one too large for any data set stays out of range."""
    return np.fromiter((int(t) if len(t) < 18 else MOST_LABELS for t in points.labels), np.int64, len(points.labels))


def _looked_up(points: Points, table: LabelTable, problems: Problems) -> NDArray[np.int64]:
    """Find the row of every label in the label file, by text, else by raw id; unknown or ambiguous is an error."""
    first: dict[str, int] = {}
    duplicates: dict[str, int] = {}
    for column in (table.texts or (), table.ids or ()):
        before = {*first}
        for row, text in enumerate(column):
            if text not in before and first.setdefault(text, row) != row:
                duplicates.setdefault(text, row)
    first = table.aliases | first
    ids = np.fromiter((first.get(str(text), -1) for text in points.labels), np.int64, len(points.labels))
    wrong = ids < 0
    if duplicates:
        wrong |= np.fromiter((text in duplicates for text in points.labels), np.bool_, len(ids))
    rows = _rows(points)
    for n in np.flatnonzero(wrong):
        text, line = str(points.labels[n]), points.at.line(int(rows[n]))
        if text in duplicates:
            lines = f"{table.at.line(first[text])} and {table.at.line(duplicates[text])}"
            problems.error(
                "ambiguous label text", f"label {text!r} stands on lines {lines} of {table.at.file.name}",
                file=points.at.file, line=line, remedy="write the label id, or make the label texts distinct",
            )  # fmt: skip
        else:
            problems.error(
                "unknown label text", f"label {text!r} is not in {table.at.file.name}",
                file=points.at.file, line=line, remedy="correct it or add it to the label file",
            )  # fmt: skip
    return _without(points, wrong, ids)


def _rows(points: Points) -> NDArray[np.int64]:
    """Return the row of every flat label."""
    return np.repeat(np.arange(len(points.counts)), points.counts)


def _without(points: Points, wrong: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Drop flat labels (and their values) and correct the counts."""
    if wrong.any():
        points.counts = points.counts - np.bincount(_rows(points)[wrong], minlength=len(points.counts))
        points.values = None if points.values is None else points.values[~wrong]
    return labels[~wrong]


def _label_count(raw: Raw, names: list[str] | None, problems: Problems) -> int:
    """Decide L, and report files that disagree about it."""
    used = next(iter(raw.points.values())).at.file  # where labels are named that no other file names
    widths = [(points.width, points.at.file) for points in raw.points.values() if points.width is not None]
    claims = [(raw.table.count, raw.table.at.file)] if raw.table else []
    claims += [(len(names), used)] if names is not None else []
    claims += widths
    if raw.label_features is not None:
        claims.append((int(raw.label_features.shape[0]), raw.label_features_at or used))
    if not claims:
        largest = [int(points.labels.max()) for points in raw.points.values() if len(points.labels)]  # type: ignore[union-attr]
        beyond = max(largest, default=-1) >= MOST_LABELS
        if beyond:
            _report_beyond(raw, problems)
        claims = [(min(max(largest, default=-1), MOST_LABELS - 1) + 1, used)]
    count, file = claims[0]
    for other, where in claims[1:]:
        if other != count:
            found = f"{other:,} labels here, but {count:,} in {file.name}"
            problems.error("label count", found, file=where, remedy="make the files agree about the number of labels")
    if not 0 < count <= MOST_LABELS:
        found = "no label occurs and no label file names any" if count < 1 else f"{count:,} labels"
        remedy = f"give 1 to {MOST_LABELS:,} labels"
        raise problems.fatal("label count", found, file=file, remedy=remedy)
    return count


def _report_beyond(raw: Raw, problems: Problems) -> None:
    """Report ids that no data set can have."""
    for points in raw.points.values():
        _check_range(points, MOST_LABELS, problems)


def _check_range(points: Points, count: int, problems: Problems) -> None:
    """Report and drop ids below 0 or beyond L."""
    labels = np.asarray(points.labels, np.int64)
    wrong = (labels < 0) | (labels >= count)
    if wrong.any():
        rows = _rows(points)
        for n in np.flatnonzero(wrong):
            kind = "negative label id" if labels[n] < 0 else "label id out of range"
            problems.error(
                kind, f"label {labels[n]} of {count:,} labels", file=points.at.file, line=points.at.line(int(rows[n])),
                remedy=f"use ids 0 to {count - 1}",
            )  # fmt: skip
        labels = _without(points, wrong, labels)
    points.labels = labels


def _targets(points: Points, count: int, problems: Problems) -> LabelMatrix:
    """Check ids and values, merge duplicates and build the canonical matrix."""
    _check_range(points, count, problems)
    labels = np.asarray(points.labels, np.int64)
    if points.values is not None:
        wrong = ~((points.values >= 0) & (points.values <= 1))  # NaN is neither
        if wrong.any():
            rows = _rows(points)
            for n in np.flatnonzero(wrong):
                found = f"weight {points.values[n]} of label {labels[n]}"
                line = points.at.line(int(rows[n]))
                remedy = "use finite weights in [0, 1]"
                problems.error("weight out of range", found, file=points.at.file, line=line, remedy=remedy)
            labels = _without(points, wrong, labels)
    indptr = np.concatenate([[0], np.cumsum(points.counts)])
    if problems.collect:
        _warn_duplicates(points, labels, problems)
    targets = label_matrix(indptr, labels, (len(points.counts), count), points.values)
    nothing = 0 if points.values is None else int((points.values == 0).sum())
    problems.repeated += max(0, len(labels) - nothing - targets.nnz)
    return targets


def _warn_duplicates(points: Points, labels: NDArray[np.int64], problems: Problems) -> None:
    """Warn of labels that a point has more than once."""
    rows = _rows(points)
    order = np.lexsort((labels, rows))
    same = np.zeros(len(order), np.bool_)
    same[1:] = (rows[order][1:] == rows[order][:-1]) & (labels[order][1:] == labels[order][:-1])
    for n in order[same]:
        found, line = f"label {labels[n]} stands twice", points.at.line(int(rows[n]))
        remedy = "the larger weight was kept"
        problems.warn("duplicate label of a point", found, file=points.at.file, line=line, remedy=remedy)


def _excluded(raw: Raw, split: str, targets: LabelMatrix, problems: Problems) -> LabelMatrix:
    """Build the matrix of filtered pairs; a pair beyond the points or labels is an error."""
    shape = (int(targets.shape[0]), int(targets.shape[1]))
    file, pairs = raw.pairs.get(split, (Path(), np.zeros((0, 2), np.int64)))
    wrong = (pairs < 0).any(1) | (pairs >= np.array(shape)).any(1)
    for n in np.flatnonzero(wrong):
        found = f"pair {pairs[n, 0]} {pairs[n, 1]} with {shape[0]:,} points and {shape[1]:,} labels"
        remedy = "use 0-based `point label` pairs of this split"
        problems.error("filter out of range", found, file=file, line=int(n) + 1, remedy=remedy)
    pairs = pairs[~wrong]
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=shape[0]))])
    return label_matrix(indptr, pairs[:, 1], shape)
