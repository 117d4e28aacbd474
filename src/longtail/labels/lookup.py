"""WORDS OF A PERSON → LABEL: find a label by its number, its raw id or its text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc

from longtail.data.dataset import Labels
from longtail.data.tokens import Words
from longtail.errors import DataError
from longtail.types import Texts


def find_label(labels: Labels, query: str | int) -> int:
    """Return the number of a label, given as number, raw id or text (in any case); suggest texts if there is none.

    >>> find_label(Labels(2, Texts(["red cat", "old dog"])), "Old dog")
    1
    """
    if not isinstance(query, str):
        if isinstance(query, int | np.integer) and 0 <= query < len(labels):
            return int(query)
        raise DataError(f"there is no label {query!r}", remedy=f"use 0 to {len(labels) - 1}, a raw id or a text")
    query = " ".join(query.split())
    if query.isdecimal() and int(query) < len(labels):
        return int(query)
    for column in (labels.ids, labels.texts):
        if column is not None:
            rows = _matching_rows(column, query)
            if len(rows):
                return int(rows[0])
    raise DataError(f"there is no label {query!r}", remedy=_closest(labels, query))


def label_finder(labels: Labels) -> Callable[[str | int], int]:
    """Return a function that finds many labels: by number if a number is given, by raw id if a text is.

    >>> label_finder(Labels(2, ids=Texts(["B07", "B12"])))("B12")
    1
    """
    places = {name: place for place, name in enumerate(labels.ids or ())}

    def find(query: str | int) -> int:
        if isinstance(query, int) and 0 <= query < len(labels):
            return query
        if isinstance(query, str) and query in places:
            return places[query]
        known = f"a number from 0 to {len(labels) - 1}" + (", or a raw id in quotes" if places else "")
        raise DataError(f"there is no label {query!r}", remedy=f"give {known}")

    return find


def _matching_rows(column: Texts, query: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rows that equal the query, else those that equal it in another case."""
    for array, text in ((column.array, query), (pc.utf8_lower(column.array), query.lower())):
        rows = np.flatnonzero(np.asarray(pc.equal(array, text), np.bool_))
        if len(rows):
            return rows
    return np.zeros(0, np.int64)


def _closest(labels: Labels, query: str, most: int = 5) -> str:
    """Name the label texts that share the most telling words."""
    if labels.texts is None:
        return f"the labels have no texts: give a number from 0 to {len(labels) - 1}"
    words = Words.fit(labels.texts)
    shared = (words.bag(labels.texts) @ words.bag([query]).T).toarray().ravel()
    best = np.argsort(-shared, kind="stable")[:most]
    close = [repr(labels.texts[int(row)]) for row in best if shared[row] > 0]
    return "closest: " + ", ".join(close) if close else f"give a text, or a number from 0 to {len(labels) - 1}"
