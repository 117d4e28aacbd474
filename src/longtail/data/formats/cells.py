r"""CELLS OF LABELS → LISTS, for every table alike: a list, one value, or words with something between them.

A cell that is a list is taken as it is; so is a JSON list, or Python's way to write one, in a cell. Other cells are
cut at the separator that is asked for, else at the first of | ; line end , that occurs in any cell of the file; where
none occurs, blanks separate numbers and addresses (http://…), and any other cell is one label.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from longtail.data.formats.rows import Place
from longtail.data.formats.values import short
from longtail.data.problems import Problems

MARKS = "|;\n,"
_ADDRESSES = re.compile(r"<?\w+://\S+(?: +<?\w+://\S+)*").fullmatch


@dataclass(frozen=True)
class Cells:
    """The labels of every row, what separated them, and whether some were lists with strings: those are names."""

    rows: list[list[Any]]
    mark: str | None
    listed: bool


def split_labels(cells: list[Any], sep: str | None, place: Place, problems: Problems) -> Cells:
    """Turn the cells of a column into lists of labels."""
    plain = [cell.strip() for cell in cells if isinstance(cell, str)]
    words = [cell for cell in plain if sep or not cell.startswith("[")]
    mark = sep or next((mark for mark in MARKS if any(mark in cell for cell in words)), None)
    if (
        mark is None
        and any(" " in cell for cell in words)
        and all(_numbers(cell) or _ADDRESSES(cell) for cell in words)
    ):
        mark = " "
    rows: list[list[Any]] = []
    for row, cell in enumerate(cells):
        if isinstance(cell, list):
            rows.append(cell)
        elif cell is None:
            rows.append([])
        elif not isinstance(cell, str):
            rows.append([cell])
        elif not sep and cell.lstrip().startswith("["):
            rows.append(read_list(cell.strip(), place, row, problems))
        else:
            parts = (part.strip() for part in ([cell] if mark is None else cell.split(mark)))
            rows.append([part for part in parts if part])
    if mark == "," and sep is None and not all(_numbers(cell.replace(",", " ")) for cell in words):
        problems.warn(
            "labels split at commas", "labels were split at commas, as no cell has | or semicolons", file=place.file,
            line=1, remedy='if a label text holds a comma, separate labels by |, or write a JSON list: ["a, b", "c"]',
        )  # fmt: skip
    listed = len(words) < len(cells) and any(
        type(label) is str
        for cell, labels in zip(cells, rows, strict=True)
        if isinstance(cell, list) or (isinstance(cell, str) and not sep and cell.lstrip().startswith("["))
        for label in labels
    )
    return Cells(rows, mark, listed)


def _numbers(cell: str) -> bool:
    """Return whether all words of a cell are numbers."""
    return all(word.isdecimal() for word in cell.split())


def read_list(cell: str, place: Place, row: int, problems: Problems) -> list[Any]:
    """Read a cell that holds a JSON list, or a list as Python writes it."""
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError) as reason:
        try:
            value = ast.literal_eval(cell) if len(cell) < 100_000 else None
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            value = None
        if not isinstance(value, list):
            found = f"not a JSON list ({reason}): {short(cell)}"
            problems.error("not JSON", found, file=place.file, line=place.line(row), remedy='write ["a", "b"], or a|b')
    return value if isinstance(value, list) else []


def split_weights(
    cells: list[Any] | None, labels: list[list[Any]], place: Place, problems: Problems
) -> list[Any] | None:
    """Read the weights of every row; an empty cell means weight 1."""
    if cells is None:
        return None
    flat: list[Any] = []
    for row, (cell, row_labels) in enumerate(zip(cells, labels, strict=True)):
        weights = _weights_of(cell, place, row, problems)
        if weights and len(weights) != len(row_labels):
            found, remedy = f"{len(weights)} weights for {len(row_labels)} labels", "give every label one weight"
            line = place.line(row)
            problems.error("weights of another length", found, file=place.file, line=line, remedy=remedy)
            weights = []
        flat += weights or [1.0] * len(row_labels)
    return flat


def _weights_of(cell: Any, place: Place, row: int, problems: Problems) -> list[Any]:
    """Read the weights of one cell."""
    if isinstance(cell, list):
        return cell
    if cell is None or isinstance(cell, str):
        text = (cell or "").strip()
        if text.startswith("["):
            return read_list(text, place, row, problems)
        return [_number(word) for word in re.split(r"[\s|;,]+", text) if word]
    return [cell]


def _number(word: str) -> float | str:
    """Read a number; other words stay as they are, to be reported."""
    try:
        return float(word)
    except ValueError:
        return word
