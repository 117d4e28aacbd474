"""PYTHON LISTS OF LABELS AND WEIGHTS → ARRAYS, and float32 ↔ text.

A float32 is written as the shortest decimal that reads back as the same float32 (0.1, not 0.10000000149011612).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.data.formats.lines import clean, has_surrogate
from longtail.data.formats.rows import Place
from longtail.data.problems import Problems
from longtail.data.rows import missing, whole

Labels = NDArray[np.int64] | list[str]


def shortest(values: NDArray[np.float32]) -> list[str]:
    """Write float32 values with as few digits as read back equal.

    >>> shortest(np.array([0.1, 1.0, 1e-7], np.float32))
    ['0.1', '1.0', '1e-07']
    """
    if len(values) and (values == 1).all():
        return ["1.0"] * len(values)
    strings: list[str] = values.astype(np.float32).astype(str).tolist()
    return strings


def short(value: object) -> str:
    """Show the beginning of a value that was found in a file."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def typed(
    place: Place, counts: Sequence[int], labels: list[Any], values: list[Any] | None, problems: Problems
) -> tuple[NDArray[np.int64], Labels, NDArray[np.float64] | None]:
    """Turn flat labels into ids or texts, and weights into numbers; wrong types are reported and dropped.

    Whole floats are ids too; beside floats what is missing is no label.

    >>> from pathlib import Path
    >>> typed(Place(Path("a"), [1, 2]), [1, 2], [0, 5, 3], None, Problems())
    (array([1, 2]), array([0, 5, 3]), None)
    """
    size = np.array(counts, np.int64)
    wrong: set[int] = set()
    kinds = set(map(type, labels))
    if float in kinds:  # of a column with gaps
        labels = [whole(label) for label in labels]
        wrong = {n for n, label in enumerate(labels) if missing(label)}
        kinds = {type(label) for n, label in enumerate(labels) if n not in wrong}
    if not kinds <= {int} and not kinds <= {str}:
        expected = int if next((type(label) for label in labels if type(label) in (int, str)), int) is int else str
        bad = [n for n, label in enumerate(labels) if type(label) is not expected and n not in wrong]
        _report(place, size, bad, labels, problems, wrong)
    if values is not None and not set(map(type, values)) <= {int, float}:
        bad = [n for n, value in enumerate(values) if type(value) not in (int, float)]
        _report(place, size, bad, values, problems, wrong, what="weight", remedy="use numbers in [0, 1]")
    if wrong:
        keep = [n for n in range(len(labels)) if n not in wrong]
        rows = np.repeat(np.arange(len(size)), size)
        size = np.bincount(rows[keep], minlength=len(size)).astype(np.int64)
        labels = [labels[n] for n in keep]
        values = None if values is None else [values[n] for n in keep]
    return size, _flat(labels, place, size, problems), None if values is None else _numbers(values)


def _report(
    place: Place, size: NDArray[np.int64], bad: list[int], values: list[Any], problems: Problems, wrong: set[int],
    *, what: str = "label", remedy: str = "use integer ids, or strings for all labels",
) -> None:  # fmt: skip
    """Report values of a wrong type and note that they are to be dropped."""
    ends = np.cumsum(size)
    for n in bad:
        line = place.line(int(np.searchsorted(ends, n, side="right")))
        message = f"{what} {short(values[n])} of type {type(values[n]).__name__}"
        problems.error("wrong type", message, file=place.file, line=line, remedy=remedy)
        wrong.add(n)


def _flat(labels: list[Any], place: Place, size: NDArray[np.int64], problems: Problems) -> Labels:
    """Make an array of ids, or clean label texts."""
    if labels and type(labels[0]) is str:
        for n in (n for n, label in enumerate(labels) if has_surrogate(label)):
            line = place.line(int(np.searchsorted(np.cumsum(size), n, side="right")))
            found, remedy = f"half a surrogate pair in {short(labels[n])}", "it was replaced by U+FFFD"
            problems.warn("lone surrogate", found, file=place.file, line=line, remedy=remedy)
        return [clean(label) for label in labels]
    try:
        return np.array(labels, np.int64)
    except OverflowError:  # no position, but perhaps names
        return [str(label)[:4000] for label in labels]


def _numbers(values: list[Any]) -> NDArray[np.float64]:
    """Make an array of weights; an integer beyond float64 is infinite, which the check of values reports."""
    try:
        return np.array(values, np.float64)
    except OverflowError:
        return np.array([value if -2 < value < 2 else np.inf for value in values], np.float64)
