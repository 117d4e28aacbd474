"""ONE-FILE SPARSE (xc) ↔ ROWS: the old repository layout that omikuji, napkinXC and svmlight readers take.

    n_points n_features n_labels     header
    3,17 0:0.5 9:1.25                labels, then `feature:value`; a line that begins with a blank has no labels

Texts stand beside it (trn_X.txt, Y.txt); where all splits have them the features are not read.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longtail.data.dataset import Dataset
from longtail.data.formats.features import add_label_features, features_of, write_label_features
from longtail.data.formats.lines import read_bytes, split_lines, write_texts
from longtail.data.formats.rows import Place, Points, Raw
from longtail.data.formats.sidecars import read_label_lines, write_sidecars
from longtail.data.formats.sparse import parse_entries, read_body, read_header, row_strings
from longtail.data.formats.survey import LONG, SHORT, Survey
from longtail.data.formats.values import short
from longtail.data.formats.xmc import add_texts
from longtail.data.problems import Problems

_LABELS = re.compile(rb"\d{1,15}+(?:,\d{1,15}+)*+")


def read_xc(survey: Survey, problems: Problems) -> Raw:
    """Read labels, and texts where all splits have them, else features."""
    points, tails = {}, {}
    for split in survey.splits("points"):
        path = survey.get("points", split, prefer=".txt")
        if path is not None:
            points[split], tails[split] = _read_file(path, problems)
    raw = Raw(points, read_label_lines(survey, problems))
    if not add_texts(points, survey, problems):
        for split, (lines, width) in tails.items():
            points[split].features = parse_entries(lines, width, points[split].at, problems).matrix(problems)
        add_label_features(raw, survey, problems)
    return raw


def _read_file(path: Path, problems: Problems) -> tuple[Points, tuple[list[bytes], int]]:
    """Read the labels of one file; return its features unparsed, with their width."""
    lines = split_lines(read_bytes(path, problems))
    rows, width, count = read_header(lines, 3, path, problems)
    body = read_body(lines, rows, path, problems)
    place = Place(path, range(2, len(body) + 2))
    heads, tails = [], []
    for line in body:
        head, _, tail = line.partition(b" ")
        unlabelled = b":" in head  # some writers leave the blank of a point without labels out
        heads.append(b"" if unlabelled else head)
        tails.append(line if unlabelled else tail)
    counts, labels = split_ids(heads, place, problems)
    return Points(place, counts, labels, width=count), (tails, width)


def split_ids(cells: list[bytes], place: Place, problems: Problems) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Parse cells of ids separated by commas; return the number of ids of each cell, and all ids."""
    joined = b",".join(cell for cell in cells if cell)
    if not joined or _LABELS.fullmatch(joined):
        counts = np.fromiter((cell.count(b",") + 1 if cell else 0 for cell in cells), np.int64, len(cells))
        return counts, np.fromstring(joined.decode(), np.int64, sep=",") if joined else np.zeros(0, np.int64)
    sizes, ids = [], []
    for row, cell in enumerate(cells):
        words = [word.strip() for word in cell.split(b",")] if cell else []
        good = [int(word) for word in words if re.fullmatch(rb"-?\d{1,18}", word)]
        if len(good) < len(words):
            text = short(cell[:80].decode("utf-8", "replace"))
            remedy = "write label ids separated by commas"
            problems.error("bad label", f"labels {text}", file=place.file, line=place.line(row), remedy=remedy)
        sizes.append(len(good))
        ids += good
    return np.array(sizes, np.int64), np.array(ids, np.int64)


def write_xc(data: Dataset, folder: Path) -> None:
    """Write one file a split, and texts where there are any beside them."""
    features = features_of(data)
    for name, split in data.splits.items():
        width = features.splits[name].shape[1]
        ends, ids = split.targets.indptr.tolist(), list(map(str, split.targets.indices.tolist()))
        heads = (",".join(ids[start:stop]) for start, stop in pairwise(ends))
        rows = (f"{head} {tail}" for head, tail in zip(heads, row_strings(features.splits[name]), strict=True))
        write_texts(folder / f"{LONG[name]}.txt", [f"{len(split)} {width} {len(data.labels)}", *rows])
        if split.texts is not None:
            write_texts(folder / f"{SHORT[name]}_X.txt", split.texts)
    if data.labels.texts is not None:
        write_texts(folder / "Y.txt", data.labels.texts)
    write_label_features(features, folder)
    write_sidecars(data, folder)
