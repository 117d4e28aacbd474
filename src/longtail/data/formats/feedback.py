"""JUDGEMENTS → POINTS: what people said of predictions, as the service notes it, becomes training points.

A line is {"text", "label", "raw_id"?, "good": true or false, …}. The labels of a text are those that were last called
right; a text of which none was is no point. What nobody judged may be true as well: the labels are partial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = tuple[int, dict[str, Any], str]  # line number, object, line
KEYS = {"text", "label", "good"}


def is_feedback(rows: Sequence[Row]) -> bool:
    """Return whether rows are judgements."""
    return all(row.keys() >= KEYS for _, row, _ in rows)


def judged(rows: Iterable[Row]) -> list[Row]:
    """Turn judgements into points, in the order in which their texts came first.

    >>> said = [{"text": "a", "label": "cat", "good": True}, {"text": "a", "label": "dog", "good": True},
    ...         {"text": "b", "label": "fox", "good": False}, {"text": "a", "label": "dog", "good": False}]
    >>> judged((number, row, "") for number, row in enumerate(said, 1))
    [(1, {'text': 'a', 'labels': ['cat']}, '')]
    """
    found: dict[Any, tuple[int, str, dict[str, bool]]] = {}
    for number, row, line in rows:
        if row.keys() >= KEYS:
            _, _, labels = found.setdefault(str(row["text"]), (number, line, {}))
            labels[str(row.get("raw_id") or row["label"])] = row["good"] is True
    points = []
    for text, (number, line, labels) in found.items():
        right = [label for label, good in labels.items() if good]
        if right:
            points.append((number, {"text": text, "labels": right}, line))
    return points
