"""JSON LINES ↔ ROWS: one object a line, in longtail's own spelling (jsonl) and in the XMC repository's (xmc-json).

    jsonl      {"text": …, "labels": [ids or label texts], "weights": […]?, "id": …?}       lbl: {"text", "id"?}
    xmc-json   {"uid": …?, "title": …, "content": …?, "target_ind": [ids], "target_rel": […]?}   lbl: {"uid"?, "title"}

Where `text` is absent it is `title` and `content` joined by a blank. Where neither is there, or no `labels`, the likely
keys are found, or the caller names them (`columns`); labels may be one string then (`cells`). Other keys are ignored.
A file may also be one JSON list of such objects, or hold judgements of predictions (`feedback`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from longtail.data.dataset import Dataset, Split
from longtail.data.formats.cells import split_labels, split_weights
from longtail.data.formats.columns import SAMPLE, Columns, Reading, find_columns
from longtail.data.formats.feedback import is_feedback, judged
from longtail.data.formats.lines import clean, decoded, has_surrogate, read_bytes, write_packed
from longtail.data.formats.rows import LabelTable, Place, Points, Raw
from longtail.data.formats.sidecars import read_label_lines, write_sidecars
from longtail.data.formats.survey import SHORT, Survey
from longtail.data.formats.values import short, shortest, typed
from longtail.data.problems import Problems
from longtail.types import Texts, counted

_OPENING, _COMMA = re.compile(r"\s*\[\s*(?=\S)"), re.compile(r"\s*,\s*(?=\S)")
MENDED: dict[str, Any] = {"text": "", "labels": [], "target_ind": []}  # stands for a line that could not be read


@dataclass(frozen=True)
class Spelling:
    """The keys of one dialect."""

    text: str
    id: str
    labels: str
    weights: str
    suffix: str
    latin: bool  # bad UTF-8 is read as Latin-1


OWN = Spelling("text", "id", "labels", "weights", ".jsonl.gz", latin=False)
REPOSITORY = Spelling("title", "uid", "target_ind", "target_rel", ".json.gz", latin=True)


@dataclass
class _Columns:
    """The columns that grow while a file is read."""

    texts: list[str | None] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)  # lists, or strings that hold several
    weights: list[Any] = field(default_factory=list)


def read_jsonl(survey: Survey, problems: Problems) -> Raw:
    """Read longtail's own JSON lines."""
    return _read(survey, problems, OWN)


def read_xmc_json(survey: Survey, problems: Problems) -> Raw:
    """Read the raw-text layout of the XMC repository."""
    return _read(survey, problems, REPOSITORY)


def write_jsonl(data: Dataset, folder: Path) -> None:
    """Write trn, tst, val and lbl .jsonl.gz."""
    _write(data, folder, OWN)


def write_xmc_json(data: Dataset, folder: Path) -> None:
    """Write trn, tst, val and lbl .json.gz."""
    _write(data, folder, REPOSITORY)


def _read(survey: Survey, problems: Problems, spelling: Spelling) -> Raw:
    """Read all splits and the labels."""
    points = {}
    for split in survey.splits("points"):
        path = survey.get("points", split, prefer=spelling.suffix[:-3])
        if path is not None:
            points[split] = _points(path, problems, spelling, survey.reading)
    return Raw(points, _label_table(survey, problems, spelling))


def _label_table(survey: Survey, problems: Problems, spelling: Spelling) -> LabelTable | None:
    """Read a label file of JSON lines, or of plain lines if its name ends with .txt."""
    path = survey.get("labels", prefer=spelling.suffix[:-3])
    if path is None or path.name.lower().removesuffix(".gz").endswith(".txt"):
        return read_label_lines(survey, problems)
    columns = _Columns()
    for number, row, line in _objects(path, problems, latin=spelling.latin):
        _add_text(columns, row, line, (), (path, number, problems))
    if any(text is not None for text in columns.texts):
        for number, text in zip(columns.lines, columns.texts, strict=True):
            if text is None:
                remedy = 'write {"text": …} in every row'
                problems.error("no text", "a label without text", file=path, line=number, remedy=remedy)
        texts = [text or "" for text in columns.texts]
    else:
        texts = None
    return LabelTable(Place(path, columns.lines), len(columns.lines), texts, _ids(columns))


def _points(path: Path, problems: Problems, spelling: Spelling, reading: Reading) -> Points:
    """Read one file of points."""
    columns = _Columns()
    rows = _objects(path, problems, latin=spelling.latin)
    sample = list(islice(rows, SAMPLE))
    if not sample:
        raise problems.fatal("no points", "no points in this file", file=path, remedy="write one point a line")
    partial = is_feedback(sample)
    if partial:
        sample, rows = judged(chain(sample, rows)), iter(())
        left = "; what was only called wrong teaches nothing and is left out"
        problems.note(f"feedback: {counted(len(sample), 'text')} with a label that was called right{left}")
        if not sample:
            raise problems.fatal(
                "no points", "no label was called right", file=path, remedy="there is nothing to learn"
            )
    found = find_keys([row for _, row, _ in sample], spelling, reading, path)
    for number, row, line in chain(sample, rows):
        where = (path, number, problems)
        _add_text(columns, row, line, found.text, where)
        if columns.texts[-1] is None:
            problems.error("no text", "a point without text", file=path, line=number, remedy='write {"text": …}')
        _add_labels(columns, row.get(str(found.labels)), row.get(spelling.weights), where)
    place = Place(path, columns.lines)
    cells = split_labels(columns.labels, reading.sep, place, problems)
    if found.text or found.labels != spelling.labels or cells.mark is not None:
        problems.note(found.describe(cells.mark))
    given = columns.weights if any(weights is not None for weights in columns.weights) else None
    weights = split_weights(given, cells.rows, place, problems)
    counts, flat = [len(labels) for labels in cells.rows], [label for labels in cells.rows for label in labels]
    sizes, labels, values = typed(place, counts, flat, weights, problems)
    texts = [text or "" for text in columns.texts]
    return Points(
        place, sizes, labels, values, texts, place, _ids(columns), digits_are_ids=not cells.listed, columns=found.text,
        partial=partial,
    )  # fmt: skip


def find_keys(
    rows: list[dict[str, Any]], spelling: Spelling, reading: Reading, path: Path, *, labelled: bool = True
) -> Columns:
    """Find the keys of texts and labels; no keys of texts stand for the usual ones, which may differ by row."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    kept = bool(reading.usual) and {*reading.usual} <= {*names}
    usual = not reading.text and not kept and ("text" in names or "title" in names)
    if usual and not reading.labels and (spelling.labels in names or not labelled):
        return Columns((), spelling.labels)
    cells = [[row.get(name) for name in names] for row in rows]
    found = find_columns(names, cells, reading, path, labelled=labelled)
    return Columns(() if usual else found.text, found.labels)


def _objects(path: Path, problems: Problems, *, latin: bool) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield (line number, object, line) of every line; blank lines are allowed at the end only."""
    content = read_bytes(path, problems).rstrip()
    return parse_objects(decoded(content, path, problems, latin=latin), path, problems)


def parse_objects(
    lines: Iterable[tuple[int, str]], path: Path, problems: Problems
) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield (line number, object, line) of every line, or of every object of a list that the first line begins."""
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return
    if re.match(r"\s*\[\s*(?:\{|$)", first[1]):
        yield from _listed(chain([first], rest), path, problems)
        return
    for number, line in chain([first], rest):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as reason:
            found = "an empty line" if not line.strip() else f"not JSON ({reason}): {short(line)}"
            problems.error("not JSON", found, file=path, line=number, remedy="write one JSON object a line")
            row = MENDED
        if type(row) is not dict:
            found = f"{short(row)} instead of an object"
            problems.error("wrong type", found, file=path, line=number, remedy="write one JSON object a line")
            row = MENDED
        yield number, row, line


def _listed(
    lines: Iterable[tuple[int, str]], path: Path, problems: Problems
) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield the objects of one JSON list, each with the line it ends on; only their lines are held."""
    decoder, buffer, number, remedy = json.JSONDecoder(), "", 0, "write a list of objects, or one object a line"
    between, place = _OPENING, 0
    for number, line in lines:
        buffer, place = f"{buffer[place:]}{line}\n", 0
        while match := between.match(buffer, place):
            try:
                row, end = decoder.raw_decode(buffer, match.end())
            except (ValueError, RecursionError):
                break  # the object goes on in the next line
            if type(row) is not dict:
                found = f"{short(row)} instead of an object"
                raise problems.fatal("wrong type", found, file=path, line=number, remedy=remedy)
            yield number, row, buffer[match.end() : end]
            between, place = _COMMA, end
    if not re.fullmatch(r"\s*\]\s*", buffer[place:]):
        found = f"not a complete JSON list: {short(buffer[place : place + 80])}"
        problems.error("not JSON", found, file=path, line=number, remedy=remedy)


Where = tuple[Path, int, Problems]


def row_text(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the text of a row: of the keys that are named, else of the usual ones; None if it has none."""
    if names:
        parts = [row[name] for name in names if row.get(name) is not None]
        if len(parts) > 1 and all(type(part) is str for part in parts):
            return " ".join(parts)
        return parts[0] if parts else None
    text = row.get("text")
    if text is None and "title" in row:
        text = title = row["title"]
        if (content := row.get("content")) is not None:
            text = f"{title} {content}" if type(title) is type(content) is str else [title, content]
    return text


def _add_text(columns: _Columns, row: dict[str, Any], line: str, names: tuple[str, ...], where: Where) -> None:
    """Add text and id of one row; a text that is absent stays None."""
    text = row_text(row, names)
    identity = row["id"] if "id" in row else row.get("uid")
    if text is not None and type(text) is not str:
        _bad_type(where, f"text {short(text)} of type {type(text).__name__}", "write a string")
        text = ""
    if identity is not None and type(identity) is not str:
        if type(identity) is not int:
            _bad_type(where, f"id {short(identity)} of type {type(identity).__name__}", "write a string or an integer")
        identity = str(identity)[:4000]
    if "\\u" in line and (has_surrogate(text or "") or has_surrogate(identity or "")):
        path, number, problems = where
        found, remedy = f"half a surrogate pair in {short(text)}", "it was replaced by U+FFFD"
        problems.warn("lone surrogate", found, file=path, line=number, remedy=remedy)
    columns.texts.append(text if text is None else clean(text))
    columns.ids.append(identity if identity is None else clean(identity))
    columns.lines.append(where[1])


def _add_labels(columns: _Columns, labels: object, weights: object, where: Where) -> None:
    """Add the labels of one point; where they are wrong the point stays, but empty."""
    if type(labels) not in (list, str, int):
        found = "no labels" if labels is None else f"labels {short(labels)} instead of a list"
        _bad_type(where, found, "write a list, [] for a point without labels")
        labels, weights = [], None
    if weights is not None and type(weights) is not list:
        _bad_type(where, f"weights {short(weights)} instead of a list", "write a list of numbers")
        weights = None
    columns.labels.append(labels)
    columns.weights.append(weights)


def _bad_type(where: Where, found: str, remedy: str) -> None:
    """Report a value of a wrong type."""
    path, number, problems = where
    problems.error("wrong type", found, file=path, line=number, remedy=remedy)


def _ids(columns: _Columns) -> list[str] | None:
    """Return the ids if any row has one; a row without has an empty id."""
    return [i or "" for i in columns.ids] if any(i is not None for i in columns.ids) else None


def _write(data: Dataset, folder: Path, spelling: Spelling) -> None:
    """Write all splits, the labels and the filters."""
    for name, split in data.splits.items():
        write_packed(folder / (SHORT[name] + spelling.suffix), map(_dump, _rows(split, spelling)))
    labels = data.labels
    texts = [{}] * len(labels) if labels.texts is None else ({spelling.text: text} for text in labels.texts)
    write_packed(folder / f"lbl{spelling.suffix}", map(_dump, _with_ids(iter(texts), labels.ids, spelling)))
    write_sidecars(data, folder, ids=False)


_dump: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False).encode


def _with_ids(rows: Iterator[dict[str, Any]], ids: Texts | None, spelling: Spelling) -> Iterator[dict[str, Any]]:
    """Add the id to every row, if there are ids."""
    if ids is None:
        return rows
    return ({spelling.id: identity} | row for row, identity in zip(rows, ids, strict=True))


def _rows(split: Split, spelling: Spelling) -> Iterator[dict[str, Any]]:
    """Make the object of every point."""
    texts, targets = split.need_texts("this format"), split.targets
    labels, ends = targets.indices.tolist(), targets.indptr.tolist()
    soft = bool((targets.data != 1).any())
    values = [float(value) for value in shortest(targets.data)] if soft else []

    def rows() -> Iterator[dict[str, Any]]:
        for text, start, stop in zip(texts, ends[:-1], ends[1:], strict=True):
            row = {spelling.text: text, spelling.labels: labels[start:stop]}
            if soft or spelling is REPOSITORY:
                row[spelling.weights] = values[start:stop] if soft else [1.0] * (stop - start)
            yield row

    return _with_ids(rows(), split.ids, spelling)
