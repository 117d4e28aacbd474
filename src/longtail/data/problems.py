"""READERS → PROBLEMS: one collector that every reader of files reports to.

When loading, the first error is raised as a DataError. When checking, errors and warnings are kept, the reader repairs
the row, and reading goes on: there is one parser for both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from longtail.errors import DataError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong or odd: where it stands, what was found and what to do."""

    severity: str  # "error" or "warning"
    kind: str
    found: str
    file: str = ""
    line: int = 0
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.severity}: {DataError(self.found, file=self.file, line=self.line, remedy=self.remedy)}"


class Problems:
    """Raise the first error (loading), or collect everything with at most `most` listed per kind (checking).

    >>> problems = Problems(collect=True, most=1)
    >>> problems.error("label id out of range", "label 9", file="trn.jsonl", line=3, remedy="use ids 0 to 4")
    >>> problems.error("label id out of range", "label 7", file="trn.jsonl", line=4, remedy="use ids 0 to 4")
    >>> print(problems.listed[0])
    error: trn.jsonl:3: label 9; use ids 0 to 4
    >>> problems.counts["error", "label id out of range"]
    2
    """

    def __init__(self, *, collect: bool = False, most: int = 20) -> None:
        self.collect, self.most = collect, most
        self.listed: list[Problem] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.notes: list[str] = []  # how files were read where they do not tell themselves
        self.repeated = 0  # labels that a point has more than once
        self._wrong: set[tuple[str, int]] = set()
        self._fatal: DataError | None = None

    def error(self, kind: str, found: str, *, file: str | Path = "", line: int = 0, remedy: str = "") -> None:
        """Report something that makes the data unusable; returns only when collecting."""
        if not self.collect:
            raise DataError(found, file=file, line=line, remedy=remedy)
        self._wrong.add((str(file), line))
        self._keep(Problem("error", kind, found, str(file), line, remedy))

    def fatal(self, kind: str, found: str, *, file: str | Path = "", line: int = 0, remedy: str = "") -> DataError:
        """Report an error after which reading cannot go on, and return the exception to raise."""
        if self.collect:
            self.error(kind, found, file=file, line=line, remedy=remedy)
        self._fatal = DataError(found, file=file, line=line, remedy=remedy)
        return self._fatal

    def stopped(self, reason: DataError) -> None:
        """Record the exception that ended the reading, unless `fatal` has recorded it already."""
        if reason is not self._fatal:
            self.error("unreadable", reason.found, file=reason.file, line=reason.line, remedy=reason.remedy)

    def warn(self, kind: str, found: str, *, file: str | Path = "", line: int = 0, remedy: str = "") -> None:
        """Report something odd that can be read; kept only when collecting, and only where the line has no error."""
        if self.collect and (line == 0 or (str(file), line) not in self._wrong):
            self._keep(Problem("warning", kind, found, str(file), line, remedy))

    def note(self, text: str) -> None:
        """Say how files were read, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _keep(self, problem: Problem) -> None:
        self.counts[problem.severity, problem.kind] += 1
        if self.counts[problem.severity, problem.kind] <= self.most:
            self.listed.append(problem)
