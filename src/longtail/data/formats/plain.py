r"""TEXT LINES WITH LABELS ↔ ROWS: AttentionXML, PECOS and fastText.

    attentionxml   train_texts.txt   a text           train_labels.txt   label names separated by blanks
    pecos          trn.txt           3,17\ta text     Z.all.txt label texts, Y.trn.npz values, X.trn.npz, Z.npz TF-IDF
    fasttext       train.txt         __label__3 __label__17 a text       labels.txt label texts

Soft values in pecos: trn.txt lists the id of every label that has a value, and Y.trn.npz holds the values. Who reads
trn.txt alone takes every soft label for a hard one.

Without a label file the sorted label names are the labels, numbers too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from longtail.data.dataset import Dataset, Split
from longtail.data.formats.features import features_of, read_matrix
from longtail.data.formats.lines import clean, decoded, read_bytes, write_texts
from longtail.data.formats.onefile import split_ids
from longtail.data.formats.rows import Place, Points, Raw
from longtail.data.formats.sidecars import read_label_lines, read_point_texts, write_label_lines, write_sidecars
from longtail.data.formats.sparse import write_npz
from longtail.data.formats.survey import LONG, SHORT, Survey
from longtail.data.formats.values import short
from longtail.data.problems import Problems
from longtail.errors import DataError

PREFIX = "__label__"


def read_attentionxml(survey: Survey, problems: Problems) -> Raw:
    """Read texts and label names from two files a split."""
    table = read_label_lines(survey, problems)
    points = {}
    for split in survey.splits("tags"):
        path, texts = survey.get("tags", split), survey.get("texts", split)
        if path is None or texts is None:
            remedy = f"add {LONG[split]}_texts.txt"
            raise problems.fatal("no text", f"{split} has labels but no texts", file=survey.root, remedy=remedy)
        names = [clean(line).split() for _, line in decoded(read_bytes(path, problems), path, problems)]
        _require_points(len(names), path, problems)
        split_points = _points_of_names(names, Place(path, range(1, len(names) + 1)), digits_are_ids=table is not None)
        split_points.texts = read_point_texts(texts, len(names), problems)
        split_points.texts_at = Place(texts, range(1, len(names) + 1))
        points[split] = split_points
    return Raw(points, table)


def write_attentionxml(data: Dataset, folder: Path) -> None:
    """Write label ids as names, padded with zeros so that their order stays."""
    width = len(str(len(data.labels) - 1))
    for name, split in data.splits.items():
        write_texts(folder / f"{LONG[name]}_texts.txt", split.need_texts("attentionxml"))
        rows = (" ".join(f"{label:0{width}d}" for label in row) for row in label_rows(split))
        write_texts(folder / f"{LONG[name]}_labels.txt", rows)
    write_label_lines(data, folder, "Y.txt")
    write_sidecars(data, folder)


def read_pecos(survey: Survey, problems: Problems) -> Raw:
    """Read `ids<TAB>text` lines; label matrices beside them give the values."""
    points = {}
    for split in survey.splits("points"):
        path = survey.get("points", split, prefer=".txt")
        if path is not None:
            points[split] = _read_tabbed(path, problems)
            matrix = survey.get("targets", split, prefer=".npz")
            if matrix is not None:
                points[split] = _with_values(points[split], matrix, problems)
    return Raw(points, read_label_lines(survey, problems))


def _read_tabbed(path: Path, problems: Problems) -> Points:
    """Read one file of `ids<TAB>text`."""
    cells, texts = [], []
    for number, line in decoded(read_bytes(path, problems), path, problems):
        head, tab, text = line.partition("\t")
        if not tab:
            remedy = "write label ids separated by commas, a tab, and the text"
            problems.error("bad line", f"no tab in {short(line)}", file=path, line=number, remedy=remedy)
            head, text = "", line
        cells.append(head.strip().encode())
        texts.append(clean(text))
    _require_points(len(texts), path, problems)
    place = Place(path, range(1, len(texts) + 1))
    counts, labels = split_ids(cells, place, problems)
    return Points(place, counts, labels, texts=texts, texts_at=place)


def _with_values(points: Points, path: Path, problems: Problems) -> Points:
    """Take the labels of a matrix for the points of a file."""
    labelled = read_matrix(path, problems).points()
    if len(labelled.counts) != len(points.counts):
        message = f"{len(labelled.counts):,} rows for {len(points.counts):,} points in {points.at.file.name}"
        problems.error("row count", message, file=path, remedy="give one row for every point")
        return points
    labelled.texts, labelled.texts_at = points.texts, points.texts_at
    return labelled


def write_pecos(data: Dataset, folder: Path) -> None:
    """Write texts with ids, label texts, and matrices of labels and TF-IDF features."""
    features = features_of(data)
    for name, split in data.splits.items():
        texts = split.need_texts("pecos")
        rows = (",".join(map(str, row)) for row in label_rows(split))
        write_texts(folder / f"{SHORT[name]}.txt", (f"{row}\t{text}" for row, text in zip(rows, texts, strict=True)))
        write_npz(folder / f"Y.{SHORT[name]}.npz", split.targets)
        write_npz(folder / f"X.{SHORT[name]}.npz", features.splits[name])
    if data.labels.texts is not None:
        write_texts(folder / "Z.all.txt", data.labels.texts)
    if features.labels is not None:
        write_npz(folder / "Z.npz", features.labels)
    write_sidecars(data, folder)


def read_fasttext(survey: Survey, problems: Problems) -> Raw:
    """Read texts with labels as words that begin with `__label__`, wherever they stand in the line."""
    points = {}
    for split in survey.splits("points"):
        path = survey.get("points", split, prefer=".txt")
        if path is None:
            continue
        names, texts = [], []
        for number, line in decoded(read_bytes(path, problems), path, problems):
            words = clean(line).split()
            row = [word.removeprefix(PREFIX) for word in words if word.startswith(PREFIX)]
            if not all(row):
                remedy = f"write the name of the label after {PREFIX}"
                problems.error("bad label", "a label without name", file=path, line=number, remedy=remedy)
            names.append([name for name in row if name])
            texts.append(" ".join(word for word in words if not word.startswith(PREFIX)) if row else " ".join(words))
        _require_points(len(texts), path, problems)
        place = Place(path, range(1, len(texts) + 1))
        points[split] = _points_of_names(names, place, digits_are_ids=True)
        points[split].texts, points[split].texts_at = texts, place
    return Raw(points, read_label_lines(survey, problems))


def write_fasttext(data: Dataset, folder: Path) -> None:
    """Write label ids as `__label__id`; a text with such a word is refused."""
    for name, split in data.splits.items():
        texts = split.need_texts("fasttext")
        for row, text in enumerate(texts):
            if PREFIX in text and any(word.startswith(PREFIX) for word in text.split()):
                found = f"point {row} of {name} has a word that begins with {PREFIX}: {short(text)}"
                raise DataError(found, remedy="use another format: fastText would take the word for a label")
        rows = ("".join(f"{PREFIX}{label} " for label in row) for row in label_rows(split))
        write_texts(folder / f"{LONG[name]}.txt", (f"{row}{text}" for row, text in zip(rows, texts, strict=True)))
    write_label_lines(data, folder, "labels.txt")
    write_sidecars(data, folder)


def label_rows(split: Split) -> Iterator[list[int]]:
    """Yield the label ids of every point."""
    ids, ends = split.targets.indices.tolist(), split.targets.indptr.tolist()
    return (ids[start:stop] for start, stop in pairwise(ends))


def _points_of_names(names: list[list[str]], place: Place, *, digits_are_ids: bool) -> Points:
    """Take rows of label names as points."""
    counts = np.array([len(row) for row in names], np.int64)
    return Points(place, counts, [name for row in names for name in row], digits_are_ids=digits_are_ids)


def _require_points(count: int, path: Path, problems: Problems) -> None:
    """Require at least one point."""
    if not count:
        raise problems.fatal("no points", "no points in this file", file=path, remedy="write one point a line")
