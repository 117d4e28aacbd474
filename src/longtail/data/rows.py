"""PYTHON LISTS AND FRAMES → TEXTS, LABELS AND TARGETS: the way in without files.

A label is a name, unless label texts are given as a list and labels are numbers: then these are places in the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from longtail.errors import BadArgument
from longtail.types import LabelMatrix, Texts, label_matrix

Row: TypeAlias = list[Any]  # labels of one point: names or numbers
LabelTexts: TypeAlias = Iterable[str] | Mapping[Any, str] | None
SEPARATORS = (";", "|")  # that a list of labels in one string is hardly without


def texts_of(column: Iterable[Any]) -> Texts:
    """Take a column of texts; what is missing is an empty text, and line breaks become spaces."""
    if isinstance(column, str):
        raise BadArgument("one text was given", remedy="give a list of texts; lt.load reads a file")
    out = []
    for place, text in enumerate(column):
        if not isinstance(text, str) and not missing(text):
            raise BadArgument(f"text {place} is of type {type(text).__name__}", remedy="give strings")
        out.append("" if missing(text) else " ".join(text.splitlines()) if "\n" in text or "\r" in text else text)
    return Texts(out)


def missing(value: Any) -> bool:
    """Return whether a cell holds nothing: None, a number that is none, or what pandas writes into a gap.

    >>> missing(None), missing(float("nan")), missing(""), missing(0)
    (True, True, False, False)
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(value != value)  # noqa: PLR0124 (NaN)


def whole(value: Any) -> Any:
    """Return a whole float as an integer, which it was before a gap in its column made it a float.

    >>> whole(2.0), whole(2.5), whole("2.0")
    (2, 2.5, '2.0')
    """
    return int(value) if isinstance(value, float | np.floating) and value.is_integer() else value


def rows_of_labels(column: Iterable[Any], sep: str | None = None) -> list[Row]:
    """Take a column of labels: a list for each point, one label, or a string that `sep` cuts into labels.

    >>> rows_of_labels([["red", "cat"], "dog", None]), rows_of_labels(["red; cat"], sep=";")
    ([['red', 'cat'], ['dog'], []], [['red', 'cat']])
    """
    rows = []
    for place, cell in enumerate(column):
        if isinstance(cell, str):
            found = next((mark for mark in SEPARATORS if mark in cell), None)
            if sep is None and found:
                raise BadArgument(
                    f"the labels of point {place} are one string with {found!r} in it: {cell!r}",
                    remedy=f"give sep={found!r} to cut it into labels, or sep='' where it is one label",
                )
            cells: Iterable[Any] = cell.split(sep) if sep else [cell]
        elif isinstance(cell, Iterable):
            cells = cell
        else:
            cells = [cell]
        rows.append([_label(entry, place) for entry in cells if not missing(entry) and str(entry).strip()])
    return rows


def _label(entry: Any, place: int) -> str | int:
    """Check one label: a name, or a whole number."""
    entry = whole(entry)
    if isinstance(entry, str):
        return " ".join(entry.split())
    if isinstance(entry, int | np.integer) and not isinstance(entry, bool):
        return int(entry)
    raise BadArgument(
        f"a label of point {place} is {entry!r}, of type {type(entry).__name__}", remedy="give names or whole numbers"
    )


@dataclass(frozen=True, eq=False)
class LabelNames:
    """The names of all labels, by place, and what they are called in rows."""

    texts: Texts
    ids: Texts | None
    places: Mapping[Any, int]

    @classmethod
    def of(cls, rows: Iterable[Row], label_texts: LabelTexts) -> LabelNames:
        """Find all labels: those with texts, or else every name in the rows, in order of the alphabet."""
        if label_texts is None:
            names = sorted({str(label) for row in rows for label in row})
            return cls(Texts(names), None, {name: place for place, name in enumerate(names)})
        if isinstance(label_texts, Mapping):
            keys = [str(key) for key in label_texts]
            return cls(Texts(label_texts.values()), Texts(keys), {name: place for place, name in enumerate(keys)})
        texts = Texts(label_texts)
        by_name: dict[Any, int] = {}
        for place, text in enumerate(texts):
            by_name.setdefault(text, place)
        return cls(texts, None, by_name | {place: place for place in range(len(texts))})

    def targets(self, rows: Sequence[Row]) -> LabelMatrix:
        """Turn the labels of points into targets (N, L)."""
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        try:
            labels = np.fromiter((self._place(label) for row in rows for label in row), np.int64, int(starts[-1]))
        except KeyError as unknown:
            label = unknown.args[0]
            remedy = f"use 0 to {len(self.texts) - 1}" if isinstance(label, int) else "add it to the label texts"
            raise BadArgument(f"there is no label {label!r}", remedy=remedy) from None
        return label_matrix(starts, labels, (len(rows), len(self.texts)))

    def _place(self, label: Any) -> int:
        """Find a label by its name, or by its number."""
        place = self.places.get(label, self.places.get(str(label)))
        if place is None:
            raise KeyError(label)
        return place


def frame_rows(
    frame: Any, texts: Sequence[str], labels: str, split: str | None
) -> dict[str, tuple[list[str], list[Any]]]:
    """Take the texts and labels of a frame, split by split; several text columns are joined."""
    for column in [*texts, labels, *([split] if split else [])]:
        if column not in frame:
            raise BadArgument(f"the frame has no column {column!r}", remedy=f"it has: {', '.join(map(str, frame))}")
    parts = [texts_of(frame[column]).tolist() for column in texts]
    joined = [" ".join(part for part in row if part) for row in zip(*parts, strict=True)]
    sides = ["train"] * len(joined) if split is None else [str(side) for side in frame[split]]
    rows: dict[str, tuple[list[str], list[Any]]] = {} if joined else {"train": ([], [])}
    for side, text, cell in zip(sides, joined, frame[labels], strict=True):
        some = rows.setdefault(side, ([], []))
        some[0].append(text)
        some[1].append(cell)
    return rows
