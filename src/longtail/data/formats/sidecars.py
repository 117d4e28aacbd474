"""SIDECAR FILES ↔ IDS, FILTERS, LABEL TEXTS: what most formats cannot hold themselves stands beside them.

Lines are rows: `train_raw_ids.txt`, `label_raw_ids.txt`, label texts (`Y.txt`, `labels.txt`, `Z.all.txt`), and filters
`trn_filter.txt` with a pair `point label` in a line. `label_count.txt` holds L where no label text is known. Other
texts of labels stand in `label_alternatives.txt`, broader labels as pairs in `label_broader.txt`.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longtail.data.dataset import Dataset
from longtail.data.formats.lines import clean, decoded, read_bytes, read_texts, write_texts
from longtail.data.formats.rows import MOST_LABELS, LabelTable, Place, Raw
from longtail.data.formats.skos import read_skos
from longtail.data.formats.survey import LONG, SHORT, Survey
from longtail.data.problems import Problems

_PAIRS = re.compile(rb"(?:\d{1,15}[ \t]\d{1,15}\n)*+")


def add_sidecars(raw: Raw, survey: Survey, problems: Problems) -> None:
    """Add ids and filters that stand beside the points, for every format alike."""
    for split, points in raw.points.items():
        path = survey.get("ids", split)
        if path is not None and points.ids is None:
            points.ids = _rows_of(path, len(points.counts), problems)
        path = survey.get("filter", split)
        if path is not None:
            raw.pairs[split] = (path, read_pairs(path, problems))
    path = survey.get("label_ids")
    if path is not None:
        if raw.table is None:
            widths = [points.width for points in raw.points.values() if points.width is not None]
            ids = read_texts(path, problems, widths[0] if widths else None)
            raw.table = LabelTable(Place(path, range(1, len(ids) + 1)), len(ids), None, ids)
        elif raw.table.ids is None:
            raw.table.ids = _rows_of(path, raw.table.count, problems)
    if raw.table is not None:
        path = survey.get("alternatives")
        if path is not None:
            raw.table.alternatives = _alternatives(path, problems)
        path = survey.get("broader")
        if path is not None:
            raw.table.broader = read_pairs(path, problems)


def _alternatives(path: Path, problems: Problems) -> list[tuple[int, str]]:
    """Read other texts of labels: the number of a label, a tab, a text."""
    found = []
    for number, line in decoded(read_bytes(path, problems), path, problems):
        label, tab, text = line.partition("\t")
        if tab and label.isascii() and label.isdecimal() and len(label) < 16:
            found.append((int(label), clean(text)))
        elif line.strip():
            remedy = "write the number of a label, a tab, and a text"
            problems.error("bad line", f"{line[:80]!r} is no text of a label", file=path, line=number, remedy=remedy)
    return found


def _rows_of(path: Path, count: int, problems: Problems) -> list[str]:
    """Read one text a line and insist on the number of rows."""
    texts = read_texts(path, problems, count)
    if len(texts) != count:
        found = f"{len(texts):,} lines for {count:,} rows"
        problems.error("row count", found, file=path, remedy="give one line for every row")
        texts = (texts + [""] * (count - len(texts)))[:count]
    return texts


def read_point_texts(path: Path, count: int, problems: Problems) -> list[str]:
    """Read the texts of points whose number another file says."""
    return _rows_of(path, count, problems)


def read_pairs(path: Path, problems: Problems) -> NDArray[np.int64]:
    """Read pairs `point label`; the file may be empty."""
    content = read_bytes(path, problems)
    if _PAIRS.fullmatch(content):
        return np.fromstring(content.decode(), np.int64, sep=" ").reshape(-1, 2)
    pairs = []
    for number, line in decoded(content, path, problems):
        cells = line.split()
        if len(cells) == 2 and all(cell.isascii() and cell.isdecimal() for cell in cells):
            pairs.append([min(int(cell[:18]), 10**15) for cell in cells])
        elif cells:
            remedy = "write two integers `point label`"
            problems.error("bad filter", f"{line[:80]!r} is no pair", file=path, line=number, remedy=remedy)
    return np.array(pairs, np.int64).reshape(-1, 2)


def read_label_lines(survey: Survey, problems: Problems) -> LabelTable | None:
    """Read label texts, one a line, from Y.txt or its namesakes; else a vocabulary; else the bare number of labels."""
    path = survey.get("labels", prefer=".txt")
    if path is not None:
        texts = read_texts(path, problems)
        return LabelTable(Place(path, range(1, len(texts) + 1)), len(texts), texts)
    path = survey.get("vocabularies")
    if path is not None:
        return read_skos(path, survey.reading.language, problems)
    path = survey.get("label_count")
    if path is None:
        return None
    content = read_bytes(path, problems).strip()
    count = int(content) if content.isdigit() and len(content) < 16 else -1
    if not 0 < count <= MOST_LABELS:
        remedy = f"write one integer from 1 to {MOST_LABELS:,}"
        raise problems.fatal("label count", f"{content[:40]!r} labels", file=path, line=1, remedy=remedy)
    return LabelTable(Place(path, ()), count)


def write_sidecars(data: Dataset, folder: Path, *, ids: bool = True, repository: bool = False) -> None:
    """Write filters where there are any, and raw ids unless the format holds them itself."""
    for name, split in data.splits.items():
        if split.excluded.nnz:
            pairs = np.column_stack(split.excluded.nonzero())
            file = f"filter_labels_{LONG[name]}.txt" if repository else f"{SHORT[name]}_filter.txt"
            write_texts(folder / file, (f"{point} {label}" for point, label in pairs.tolist()))
        if ids and split.ids is not None:
            write_texts(folder / f"{LONG[name]}_raw_ids.txt", split.ids)
    labels = data.labels
    if ids and labels.ids is not None:
        write_texts(folder / "label_raw_ids.txt", labels.ids)
    if labels.alternatives is not None and labels.alternatives_of is not None:
        lines = zip(labels.alternatives_of.indices.tolist(), labels.alternatives, strict=True)
        write_texts(folder / "label_alternatives.txt", (f"{label}\t{text}" for label, text in lines))
    if labels.broader is not None:
        pairs = np.column_stack(labels.broader.nonzero())
        write_texts(folder / "label_broader.txt", (f"{label} {other}" for label, other in pairs.tolist()))


def write_label_lines(data: Dataset, folder: Path, file: str) -> None:
    """Write label texts one a line; the number of labels where there are no texts."""
    if data.labels.texts is not None:
        write_texts(folder / file, data.labels.texts)
    else:
        write_texts(folder / "label_count.txt", [str(len(data.labels))])
