"""HEADER + FIRST ROWS → WHICH COLUMN IS WHAT: by the names that are asked for, else by known names, else by content.

A `Reading` says what the caller knows of the files. What it leaves open is found, and described in one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.errors import DataError, nearest

SAMPLE = 200  # rows that are looked at to find columns
SWITCHES = {"0", "1", "true", "false", "yes", "no"}  # a column of these is a flag, unless its name says labels
LABELS_ARE = ("names", "ids")
TEXTS = (
    "text", "title", "sentence", "query", "question", "headline", "utterance", "phrase", "document", "abstract", "body",
    "content", "description", "summary", "message", "comment", "review", "product_name", "product_title", "item_name",
    "product", "item", "name", "titel", "titre", "texte", "titulo", "título", "texto", "otsikko", "nimi",
)  # fmt: skip
LABELS = (
    "labels", "label", "tags", "tag", "categories", "category", "topics", "topic", "keywords", "keyword", "subjects",
    "classes", "class", "genres", "genre", "targets", "target", "codes", "code", "skills", "intents", "intent",
    "subject", "kategorie", "kategorien", "schlagworte", "catégories", "etiquetas", "asiasanat",
)  # fmt: skip
WEIGHTS, IDS = ("weights", "weight"), ("id", "uid")
_NAME = re.compile(r"[^\W\d][\w .:/()#-]{0,39}")
_PLAIN = re.compile(r"[-+]?\d+[.,]\d+|\d{4}-\d\d-\d\d.*|https?://.*|\w+://.*")  # prices, dates and addresses


@dataclass(frozen=True)
class Reading:
    r"""What the caller says of files: columns of text and labels, what separates labels, and what labels are.

    >>> Reading.of("title, body", sep="tab")
    Reading(text=('title', 'body'), labels=None, sep='\t', labels_are=None, language=None, usual=())
    """

    text: tuple[str, ...] = ()  # several are joined by a blank
    labels: str | None = None
    sep: str | None = None
    labels_are: str | None = None  # one of LABELS_ARE
    language: str | None = None  # of label texts, where a vocabulary has several
    usual: tuple[str, ...] = ()  # columns of texts that are taken where no others are asked for, if all are there

    @classmethod
    def of(
        cls,
        text: str | Sequence[str] | None = None,
        labels: str | None = None,
        sep: str | None = None,
        labels_are: str | None = None,
        language: str | None = None,
    ) -> Reading:
        """Take what people write: columns separated by commas, a tab by its name."""
        names = text.split(",") if isinstance(text, str) else text or ()
        if labels_are is not None and labels_are not in LABELS_ARE:
            raise DataError(f"labels are {labels_are!r}", remedy=nearest(labels_are, LABELS_ARE))
        if sep == "":
            raise DataError("the separator of labels is empty", remedy="give a character: ; or | or , or tab")
        words = {"tab": "\t", "\\t": "\t", "newline": "\n", "\\n": "\n", "blank": " ", "space": " "}
        return cls(tuple(name.strip() for name in names), labels, words.get(sep or "", sep), labels_are, language)


@dataclass(frozen=True)
class Columns:
    """The columns of a table by purpose."""

    text: tuple[str, ...]
    labels: str | None = None
    weights: str | None = None
    id: str | None = None
    headed: bool = True  # columns have names; else they are numbered from 1
    guessed: bool = False  # the first row was taken for a header, though it names nothing that is known

    def describe(self, mark: str | None = None) -> str:
        """Say in one line which columns were taken."""
        words = ["text: " + " + ".join(self.text)] if self.text else []
        if self.labels is not None:
            words.append(f"labels: {self.labels}")
            shown = {"\t": "tabs", "\n": "line ends", " ": "blanks"}
            words += [] if mark is None else [f"separated by {shown.get(mark, mark)}"]
        doubt = "" if self.headed else " (numbers of columns: there is no header row)"
        return ", ".join(words) + (" (the first row was taken for a header)" if self.guessed else doubt)


def find_columns(
    names: Sequence[str], rows: Sequence[Sequence[Any]], reading: Reading, file: str | Path, *, labelled: bool = True
) -> Columns:
    """Find the columns of a table from their names and some rows; labels only where points are `labelled`."""
    headed = not all(name == str(place) for place, name in enumerate(names, 1))
    known = {name.strip().lower(): name for name in reversed(names)}
    labels = _asked(reading.labels, names, file, "labels") if reading.labels else _first(LABELS, known)
    labels = labels or _with_word(LABELS, known)
    text = tuple(_asked(name, names, file, "text") for name in reading.text)
    if not text and reading.usual and {*reading.usual} <= {*names}:
        text = reading.usual
    if not text and "text" not in known and "title" in known and "content" in known:
        text = (known["title"], known["content"])
    rest = {name: place for place, name in enumerate(names)}
    spare = {known.get(name) for name in (*IDS, *WEIGHTS)} | {labels}
    if not text:
        others = {key: name for key, name in known.items() if name != labels}
        likely = _first(TEXTS, others) or _with_word(("text", "title"), others)
        text = (likely or _wordy(rest, rows, {labels, *(known.get(name) for name in WEIGHTS)}, file),)
    if labelled and labels is None:
        labels = _tagged(rest, rows, {*spare, *text}, file)
    spare = {*text, labels}
    weights, own = (_first(wanted, {k: n for k, n in known.items() if n not in spare}) for wanted in (WEIGHTS, IDS))
    return Columns(text, labels, weights, own, headed)


def is_header(rows: Sequence[Sequence[str]], reading: Reading) -> bool:
    """Return whether the first row of a table names its columns.

    >>> is_header([["Title", "Tags"], ["red cat", "cat"]], Reading())
    True
    >>> is_header([["red cat", "cat"], ["wild cat", "cat"]], Reading())
    False
    """
    first = [cell.strip() for cell in rows[0]]
    lower = {cell.lower() for cell in first}
    asked = [name for name in (*reading.text, reading.labels) if name is not None]
    if asked:
        return any(name.lower() in lower for name in asked) or not all(name.isdecimal() for name in asked)
    if (lower & {*TEXTS} and lower & {*LABELS}) or (reading.usual and {*reading.usual} <= {*first}):
        return True
    columns = [[row[place].strip() for row in rows[1:] if place < len(row)] for place in range(len(first))]
    if any(cell and cell in column for cell, column in zip(first, columns, strict=True)):
        return False  # a value among others
    names = [cell for cell in first if cell]
    named = bool(names) and len({*names}) == len(names) and all(map(_NAME.fullmatch, names))
    words = {word for name in lower for word in re.split(r"[\W_]+", name)}
    if not named or max(len(name.split()) for name in names) > 3:
        return bool(lower & {*TEXTS, *LABELS})
    return bool(words & {*TEXTS, *LABELS}) or any(map(_heads, first, columns))


def _heads(name: str, column: list[str]) -> bool:
    """Return whether a cell looks like the name of what is below: a word above numbers, or above longer texts."""
    if column and all(_PLAIN.fullmatch(cell) or cell.isdecimal() for cell in column):
        return True
    return any(len(cell.split()) > len(name.split()) for cell in column)


def _first(wanted: Sequence[str], known: dict[str, str]) -> str | None:
    """Return the first wanted column that is there."""
    return next((known[name] for name in wanted if name in known), None)


def _with_word(words: Sequence[str], known: dict[str, str]) -> str | None:
    """Return the only column that has one of these words in its name: "Book title"."""
    found = [name for key, name in known.items() if {*re.split(r"[\W_]+", key)} & {*words}]
    return found[0] if len(found) == 1 else None


def _asked(wanted: str, names: Sequence[str], file: str | Path, purpose: str) -> str:
    """Find a column that was asked for, in any case."""
    for name in names:
        if name == wanted:
            return name
    for name in names:
        if name.strip().lower() == wanted.strip().lower():
            return name
    remedy = f"{nearest(wanted, names)}; choose with --{purpose} ({purpose}= in Python)"
    raise DataError(f"there is no column {wanted!r}", file=file, remedy=remedy)


def _cells(place: int, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the cells of a column that are not empty."""
    return [row[place] for row in rows if place < len(row) and row[place] not in (None, "")]


def _wordy(places: dict[str, int], rows: Sequence[Sequence[Any]], spare: set[str | None], file: str | Path) -> str:
    """Find the column with the most words that are not the same in every row."""
    scores: dict[str, float] = {}
    for name, place in places.items():
        cells = [cell for cell in _cells(place, rows) if isinstance(cell, str)]
        if name not in spare and cells and not all(_PLAIN.fullmatch(cell) or cell.isdecimal() for cell in cells):
            words = sum(len(cell.split()) + len(cell) / 100 for cell in cells) / len(cells)
            scores[name] = words * len(set(cells)) / len(cells)
    if not scores:
        raise _unclear("no column looks like texts", places, file, "text")
    return max(scores, key=lambda name: scores[name])


def _tagged(places: dict[str, int], rows: Sequence[Sequence[Any]], spare: set[str | None], file: str | Path) -> str:
    """Find the column whose cells are lists, else the only one with values that occur again, else the only one."""
    lists, repeated, others = [], [], []
    for name, place in places.items():
        cells = _cells(place, rows)
        if name in spare or not cells or any(isinstance(cell, float | dict) for cell in cells):
            continue
        words = [cell for cell in cells if isinstance(cell, str)]
        if (words and all(map(_PLAIN.fullmatch, words))) or {str(cell).lower() for cell in cells} <= SWITCHES:
            continue
        others.append(name)
        if (len(words) < len(cells) and any(isinstance(cell, list) for cell in cells)) or any(
            cell.startswith("[") or "|" in cell or ";" in cell for cell in words
        ):
            lists.append(name)
        elif 1 < len(set(map(str, cells))) < len(cells):
            repeated.append(name)
    for found in (lists, repeated, others):
        if len(found) == 1:
            return found[0]
        if found:
            raise _unclear(f"labels may stand in {', '.join(found)}", places, file, "labels")
    raise _unclear("no column looks like labels", places, file, "labels")


def _unclear(found: str, places: dict[str, int], file: str | Path, purpose: str) -> DataError:
    """Say that a column was not found, and how to name it."""
    listed = ", ".join(places) or "none"
    remedy = f"name the column with --{purpose} ({purpose}= in Python)"
    return DataError(f"{found} (columns: {listed})", file=file, line=1, remedy=remedy)
