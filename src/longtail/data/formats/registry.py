"""FILES ↔ DATASET: every format by name, `load` and `write`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from longtail.data.dataset import SPLITS, Dataset, Split, open_dataset
from longtail.data.formats import jsonl, onefile, parquet, plain, tables, xmc
from longtail.data.formats.columns import Reading
from longtail.data.formats.lines import tidy
from longtail.data.formats.rows import Raw, assemble
from longtail.data.formats.sidecars import add_sidecars
from longtail.data.formats.single import chosen_ending, only_split, write_file
from longtail.data.formats.sparse import canonical
from longtail.data.formats.survey import Survey, find_format, look_at
from longtail.data.problems import Problems
from longtail.errors import DataError, nearest
from longtail.files import read_json, write_json
from longtail.whole import whole_folder

log = logging.getLogger("longtail")
AUGMENTATION = "augmentation.json"  # says how training points were made, and how many of the first are the originals


@dataclass(frozen=True)
class Format:
    """One way to keep a data set in files."""

    description: str
    soft: bool  # holds label values other than 1
    features: bool = False  # holds points that have features instead of texts
    read: Callable[[Survey, Problems], Raw] | None = None
    write: Callable[[Dataset, Path], None] | None = None

    @property
    def writable(self) -> bool:
        """Whether data sets can be written so; the memory-mapped folder has no reader and writer of its own here."""
        return self.write is not None or self.read is None

    def __str__(self) -> str:
        return self.description + ("" if self.soft else " (hard labels only)")


FORMATS: dict[str, Format] = {
    "jsonl": Format("JSON lines: text, labels, weights?, id?", True, False, jsonl.read_jsonl, jsonl.write_jsonl),
    "csv": Format("comma-separated: text, labels, weights?, id?", True, False, tables.read_csv, tables.write_csv),
    "tsv": Format("tab-separated: text, labels, weights?, id?", True, False, tables.read_tsv, tables.write_tsv),
    "parquet": Format("Parquet with list columns", True, False, parquet.read_parquet, parquet.write_parquet),
    "excel": Format("Excel workbooks, their first sheets; read only (extra `excel`)", True, False, tables.read_excel),
    "arrow": Format("longtail's own memory-mapped folder: opens at once, any size", True, True),
    "xmc": Format("XMC repository: trn_X_Y.txt with raw texts or features", True, True, xmc.read_xmc, xmc.write_xmc),
    "xmc-json": Format(
        "XMC repository, raw texts: title, target_ind", True, False, jsonl.read_xmc_json, jsonl.write_xmc_json
    ),
    "xc": Format(
        "one sparse file a split, as omikuji and napkinXC read", False, True, onefile.read_xc, onefile.write_xc
    ),
    "attentionxml": Format(
        "train_texts.txt with train_labels.txt", False, False, plain.read_attentionxml, plain.write_attentionxml
    ),
    "pecos": Format(
        "trn.txt with ids, tab, text; soft values in Y.trn.npz only", True, False, plain.read_pecos, plain.write_pecos
    ),
    "fasttext": Format("__label__3 before a text", False, False, plain.read_fasttext, plain.write_fasttext),
}


def load(
    path: str | Path,
    *,
    format: str | None = None,
    name: str | None = None,
    text: str | Sequence[str] | None = None,
    labels: str | None = None,
    sep: str | None = None,
    labels_are: str | None = None,
    language: str | None = None,
) -> Dataset:
    """Load a data set from a folder or a single file; the format is found by content unless it is given.

    A single file is read alone (files beside it are not looked at): it is the split that its name says, else train.
    Of a table `text` and `labels` name the columns (several texts are joined), `sep` what separates labels; likely ones
    are found by themselves. `labels_are` "names" or "ids" says what numbers mean: by default ids, if a label file has
    such positions, else names. `language` is that of label texts, where a SKOS vocabulary has several.
    """
    problems = Problems()
    data, _ = read(Path(path), format, Reading.of(text, labels, sep, labels_are, language), problems)
    for note in problems.notes:
        log.info("%s: %s", path, note)
    return replace(data, name=name) if name else data


def read(path: Path, format: str | None, reading: Reading, problems: Problems) -> tuple[Dataset, Raw | None]:
    """Read a data set, reporting to `problems`; also return the rows of its files, which know their lines."""
    if format is not None and format not in FORMATS:
        raise DataError(f"unknown format {format!r}", file=path, remedy=nearest(format, FORMATS))
    survey = look_at(path, reading)
    format = format or find_format(path, survey)
    reader = FORMATS[format].read
    if reader is None:
        return _marked(open_dataset(path), path), None
    raw = reader(survey, problems)
    add_sidecars(raw, survey, problems)
    name = path.name.split(".")[0] if path.is_file() else path.resolve().name
    return _marked(assemble(raw, name, str(path), reading.labels_are, problems), path), raw


def write(
    data: Dataset,
    path: str | Path,
    format: str | None = None,
    *,
    split: str | None = None,
    force: bool = False,
    augmentation: Mapping[str, object] | None = None,
) -> None:
    """Write a data set as a folder in the named format, whole or not at all; refuse what the format cannot hold.

    A name that ends with .jsonl, .csv, .tsv or .parquet is one file, with the points of one split and labels by name.
    Texts are written as loading would give them: on one line, with single blanks. `augmentation` says how training
    points were made; it is kept beside them with the number of the originals, so that loading can mark the others.
    """
    if format is not None and format not in FORMATS:
        raise DataError(f"unknown format {format!r}", remedy=nearest(format, FORMATS))
    single = chosen_ending(Path(path), format) is not None
    format, data = format or "jsonl", tidied(data if split is None else data.with_splits(data[split]))
    if single:
        if augmentation is not None:
            raise DataError("one file cannot hold how points were made", remedy="write a folder")
        write_file(only_split(data), Path(path), force=force)
        return
    kind = FORMATS[format]
    if not kind.writable:
        raise DataError(f"{format} can be read, but not written", remedy="use csv, which it opens")
    if kind.write is not None:
        _check_writable(data, format, kind)
    originals = _original_points(data)
    with whole_folder(path, force=force) as folder:
        if kind.write is None:
            data.save(folder)
        else:
            kind.write(data, folder)
            _check_recognised(folder, format)
        if augmentation is not None or originals is not None:
            write_json(folder / AUGMENTATION, {**(augmentation or {}), "original_points": originals})


def _original_points(data: Dataset) -> int | None:
    """Count the original training points if they come first and untouched, before those that were made of them."""
    train = data.splits.get("train")
    if train is None or train.source is None or train.augmented is None:
        return None
    count, source = len(train.source), train.source.targets
    if len(train) < count or train.augmented[:count].any() or not train.augmented[count:].all():
        return None
    first = train.targets[:count]
    same = (
        np.array_equal(first.indptr, source.indptr)
        and np.array_equal(first.indices, source.indices)
        and np.array_equal(first.data, source.data)
    )
    return count if same else None


def _marked(data: Dataset, path: Path) -> Dataset:
    """Mark the augmented training points, where a file beside them says how many are original."""
    file = path / AUGMENTATION
    if not file.is_file() or "train" not in data.splits:
        return data
    train, count = data.train, read_json(file, DataError).get("original_points")
    if count is None:
        return data
    if type(count) is not int or not 0 < count <= len(train):
        found = f"original_points is {count!r}, and there are {len(train):,} training points"
        raise DataError(found, file=file, remedy="augment again, or remove the file if all points are original")
    marked = replace(train, augmented=np.arange(len(train)) >= count, source=_first(train, count))
    return data.with_splits(*(marked if split is train else split for split in data.splits.values()))


def _first(split: Split, count: int) -> Split:
    """Cut off all but the first points."""
    return replace(
        split,
        targets=split.targets[:count],
        excluded=split.excluded[:count],
        texts=None if split.texts is None else split.texts[:count],
        ids=None if split.ids is None else split.ids[:count],
        features=None if split.features is None else split.features[:count],
    )


def tidied(data: Dataset) -> Dataset:
    """Clean all texts, and put features into canonical order; features beside texts are left out."""
    texts = all(split.texts is not None for split in data.splits.values())
    features = None if texts or data.labels.features is None else canonical(data.labels.features)
    labels = replace(data.labels, texts=tidy(data.labels.texts), ids=tidy(data.labels.ids), features=features)
    labels = replace(labels, alternatives=tidy(labels.alternatives))
    splits = {
        name: replace(
            split, labels=labels, texts=tidy(split.texts), ids=tidy(split.ids),
            features=None if texts or split.features is None else canonical(split.features),
        )
        for name, split in data.splits.items()
    }  # fmt: skip
    return replace(data, labels=labels, splits=splits, vocabulary=None if texts else tidy(data.vocabulary))


def _check_recognised(folder: Path, format: str) -> None:
    """Refuse files that would be taken for another format, as a fastText file may that begins without a label."""
    try:
        recognised = find_format(folder, look_at(folder))
    except DataError:
        recognised = "nothing known"
    if recognised != format:
        raise DataError(f"written as {format} these texts would be taken for {recognised}", remedy="use jsonl")


def _check_writable(data: Dataset, format: str, kind: Format) -> None:
    """Refuse what a format cannot hold."""
    if not data.splits or not {*data.splits} <= {*SPLITS}:
        raise DataError(f"splits named {', '.join(data.splits) or 'nothing'}", remedy=f"use {', '.join(SPLITS)}")
    able = ", ".join(name for name, other in FORMATS.items() if other.soft)
    for name, split in data.splits.items():
        if len(split) == 0:
            raise DataError(f"the {name} split has no points", remedy="leave the split out, or write arrow")
        if not kind.soft and bool((split.targets.data != 1).any()):
            raise DataError(
                f"{format} cannot hold soft label values, and {name} has some", remedy=f"use one of: {able}"
            )
        if split.texts is None and split.features is None:
            raise DataError(f"{name} has neither texts nor features", remedy="give its points texts")
        if split.texts is None and not kind.features:
            where = ", ".join(name for name, other in FORMATS.items() if other.features)
            raise DataError(f"{format} needs texts, and {name} has none", remedy=f"use one of: {where}")
    if len({split.texts is None for split in data.splits.values()}) > 1:
        raise DataError("some splits have texts and others have none", remedy="write arrow, or drop the texts")
    if len(data.labels) == 0:
        raise DataError("the data set has no labels", remedy="give at least one label")
