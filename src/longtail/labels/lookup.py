"""WORDS OF A PERSON → LABEL: find a label by its number, its raw id or its text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc

from longtail.data.dataset import Labels
from longtail.data.tokens import Words
from longtail.errors import DataError
from longtail.types import Texts


def find_label(labels: Labels, asked: str) -> int:
    """Return the number of a label, given as number, raw id or text (in any case); suggest texts if there is none.

    >>> find_label(Labels(2, Texts(["red cat", "old dog"])), "Old dog")
    1
    """
    asked = " ".join(asked.split())
    if asked.isdecimal() and int(asked) < len(labels):
        return int(asked)
    for column in (labels.ids, labels.texts):
        if column is not None:
            found = _places(column, asked)
            if len(found):
                return int(found[0])
    raise DataError(f"there is no label {asked!r}", remedy=_closest(labels, asked))


def label_finder(labels: Labels) -> Callable[[str | int], int]:
    """Return a function that finds many labels: by number if a number is given, by raw id if a text is.

    >>> label_finder(Labels(2, ids=Texts(["B07", "B12"])))("B12")
    1
    """
    places = {name: place for place, name in enumerate(labels.ids or ())}

    def find(asked: str | int) -> int:
        if isinstance(asked, int) and 0 <= asked < len(labels):
            return asked
        if isinstance(asked, str) and asked in places:
            return places[asked]
        known = f"a number from 0 to {len(labels) - 1}" + (", or a raw id in quotes" if places else "")
        raise DataError(f"there is no label {asked!r}", remedy=f"give {known}")

    return find


def _places(column: Texts, asked: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Find the rows that are the asked text, else those that are in another case."""
    for array, wanted in ((column.array, asked), (pc.utf8_lower(column.array), asked.lower())):
        found = np.flatnonzero(np.asarray(pc.equal(array, wanted), np.bool_))
        if len(found):
            return found
    return np.zeros(0, np.int64)


def _closest(labels: Labels, asked: str, most: int = 5) -> str:
    """Name the label texts that share the most telling words."""
    if labels.texts is None:
        return f"the labels have no texts: give a number from 0 to {len(labels) - 1}"
    words = Words.fit(labels.texts)
    shared = (words.bag(labels.texts) @ words.bag([asked]).T).toarray().ravel()
    best = np.argsort(-shared, kind="stable")[:most]
    close = [repr(labels.texts[int(row)]) for row in best if shared[row] > 0]
    return "closest: " + ", ".join(close) if close else f"give a text, or a number from 0 to {len(labels) - 1}"
