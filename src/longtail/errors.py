"""Every exception that longtail raises on purpose, and the exit code that the command line gives it.

LongtailError            1
├── DataError            3   an input file or value is wrong: file, line, what was found, what to do
│   ├── BadArgument      3   the same, and a ValueError too, as scikit-learn expects of an estimator
│   └── Occupied         3   something is there already that would have to be replaced
├── ModelError           3   a model folder cannot be used
├── RecipeError          4   a recipe name, field or value is wrong
└── ResourceError        5   memory, disk or an optional package is missing
    ├── MissingExtra     5   `pip install "longtail[...]"` mends it
    └── StoreDown        5   a server that keeps label vectors does not answer
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class LongtailError(Exception):
    """Root of all errors; the message says what was found, what was needed and what to do."""

    exit_code = 1


class DataError(LongtailError):
    """Name the file and line of a bad input, what was found there, and the remedy.

    >>> print(DataError("label 9 is out of range", file="trn.jsonl", line=3, remedy="use ids 0 to 4"))
    trn.jsonl:3: label 9 is out of range; use ids 0 to 4
    """

    exit_code = 3

    def __init__(self, found: str, *, file: str | Path = "", line: int = 0, remedy: str = "") -> None:
        self.found, self.file, self.line, self.remedy = found, str(file), line, remedy
        where = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        super().__init__(where + found + (f"; {remedy}" if remedy else ""))


class BadArgument(DataError, ValueError):
    """An argument of a function or of an estimator is wrong."""


class Occupied(DataError):
    """Something is there already that would have to be replaced: the command line names its flag for that."""


class ModelError(LongtailError):
    """A model folder is absent, half-written, damaged or hostile."""

    exit_code = 3


class RecipeError(LongtailError):
    """A recipe name, field or value is not valid."""

    exit_code = 4


class ResourceError(LongtailError):
    """The machine lacks memory, disk or a package."""

    exit_code = 5


class MissingExtra(ResourceError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package} is not installed; run: pip install "longtail[{extra}]"')


class StoreDown(ResourceError):
    """A server that keeps label vectors does not answer; it may in a moment."""


def one_line(reason: BaseException) -> str:
    r"""Return the first line of an error of another library.

    >>> one_line(ValueError("bad\nsee …"))
    'bad'
    """
    return (str(reason).splitlines() or [type(reason).__name__])[0]


def nearest(word: str, valid: Iterable[str]) -> str:
    """Say which valid word was probably meant.

    >>> nearest("astek", ["astec", "knn"])
    "did you mean 'astec'? valid: astec, knn"
    """
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + "valid: " + ", ".join(names)
