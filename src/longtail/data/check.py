"""FILES → REPORT: every problem of a data set with its file, line, what was found and what to do.

The readers of `longtail.data.formats` do the reading; they report instead of stopping. What can only be seen in the
whole data set (texts that occur twice, filtered pairs that are also targets) is looked for here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from longtail.data.dataset import Dataset
from longtail.data.formats.columns import Reading
from longtail.data.formats.registry import read
from longtail.data.formats.rows import Place, Raw
from longtail.data.problems import Problem, Problems
from longtail.errors import DataError
from longtail.files import read_json
from longtail.types import Texts


@dataclass(frozen=True)
class Report:
    """What a check found: at most `most` problems of each kind are listed, `counts` counts them all."""

    problems: tuple[Problem, ...]
    counts: Mapping[str, int]  # kind → how often
    data: Dataset | None = field(default=None, repr=False)  # as far as it could be read
    notes: tuple[str, ...] = ()  # which columns were taken, and what labels were taken for

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The listed errors: the data set cannot be loaded while there is one."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The listed warnings."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @property
    def ok(self) -> bool:
        """Whether the data set loads."""
        return not self.errors


def check(
    path: str | Path,
    *,
    format: str | None = None,
    most: int = 20,
    reading: Reading = Reading(),  # noqa: B008  (frozen)
) -> Report:
    """Read a data set to its end and report every problem, listing at most `most` of each kind."""
    problems = Problems(collect=True, most=max(1, most))
    data = None
    try:
        data, raw = read(Path(path), format, reading, problems)
        if raw is None:
            _compare_fingerprint(data, problems)
        _check_content(data, raw, problems)
    except DataError as reason:
        problems.stopped(reason)
    counts: Counter[str] = Counter()
    for (_, kind), count in problems.counts.items():
        counts[kind] += count
    return Report(tuple(problems.listed), dict(counts), data, tuple(problems.notes))


def summarise(data: Dataset, problems: Problems) -> list[str]:
    """Count what is odd in the training points of a data set, in a few words each; nothing odd gives nothing."""
    train = data.splits.get("train")
    if train is None:
        return []
    sizes = np.diff(train.targets.indptr)
    counts = {
        ("empty text", "empty texts"): 0 if train.texts is None else sum(not text for text in train.texts),
        ("point without labels", "points without labels"): int((sizes == 0).sum()),
        ("repeated label of a point", "repeated labels of points"): problems.repeated,
        ("text that stands there before", "texts that stand there before"): _repeated(train.texts),
        ("label without training points", "labels without training points"): len(data.labels)
        - len(np.unique(train.targets.indices)),
    }
    return [f"{count:,} {words[count != 1]}" for words, count in counts.items() if count]


def _repeated(texts: Texts | None) -> int:
    """Count texts that occurred before."""
    return 0 if texts is None else len(texts) - len(pc.unique(texts.array))


def _compare_fingerprint(data: Dataset, problems: Problems) -> None:
    """Compare an opened folder with the fingerprint it was saved with: opening alone does not read every byte."""
    file = Path(data.origin) / "dataset.json"
    saved = read_json(file, DataError).get("fingerprint")
    if saved != data.fingerprint:
        found = f"the content has fingerprint {data.fingerprint}, but {saved} was saved"
        problems.error("damaged", found, file=file, remedy="convert the data set again")


def _check_content(data: Dataset, raw: Raw | None, problems: Problems) -> None:
    """Warn of what is odd in the data set as a whole."""
    for name, split in data.splits.items():
        points = raw.points[name] if raw else None
        place = (points.texts_at or points.at) if points else _saved_place(data, name, len(split))
        _check_texts(split.texts, place, "text", "drop the point or give it a text", problems)
        both = split.targets.multiply(split.excluded).tocsr()
        both.eliminate_zeros()
        file = raw.pairs[name][0] if raw and name in raw.pairs else Path(data.origin) / "matrices.safetensors"
        for point, label in zip(*(part.tolist() for part in both.nonzero()), strict=True):
            found, remedy = (
                f"pair {point} {label} is filtered, but also a target",
                "it is never counted; drop one of the two",
            )
            problems.warn("filtered target", found, file=file, remedy=remedy)
    if raw is None:
        place = _saved_place(data, "labels", len(data.labels))
    else:
        place = raw.table.at if raw.table else _first_use(data, raw)
    _check_texts(data.labels.texts, place, "label text", "give every label a text of its own", problems)


def _saved_place(data: Dataset, table: str, count: int) -> Place:
    """Return the place of a text column that `Dataset.save` wrote; its rows count as lines."""
    return Place(Path(data.origin) / f"{table}.arrow", range(1, count + 1))


def _first_use(data: Dataset, raw: Raw) -> Place:
    """Return the first point with label 0: without a label file label texts are sorted, so no other can be blank."""
    for name, points in raw.points.items():
        rows = data[name].targets[:, [0]].nonzero()[0]
        if len(rows):
            return Place(points.at.file, [points.at.line(int(rows[0]))])
    return Place(next(iter(raw.points.values())).at.file, ())


def _check_texts(texts: Texts | None, place: Place, what: str, remedy: str, problems: Problems) -> None:
    """Warn of texts that are empty or occur more than once."""
    first: dict[str, int] = {}
    for row, text in enumerate(texts or ()):
        before = first.setdefault(text, row)
        if not text:
            kind = "empty text" if what == "text" else "blank label text"
            problems.warn(kind, f"an empty {what}", file=place.file, line=place.line(row), remedy=remedy)
        elif before != row:
            found = f"the {what} of line {place.line(before)} again: {text[:60]!r}"
            remark = "this is allowed; drop one if it was not meant"
            problems.warn(f"duplicate {what}", found, file=place.file, line=place.line(row), remedy=remark)
