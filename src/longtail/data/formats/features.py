"""TEXTS → TF-IDF FEATURES beside the texts, for trainers that read features; and feature files → matrices.

Where a data set has texts, features are written but never read back: they can be derived.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import scipy.sparse as sp

from longtail.data.dataset import Dataset
from longtail.data.formats.lines import read_texts, write_texts
from longtail.data.formats.rows import Raw
from longtail.data.formats.sparse import Entries, read_npz, read_sparse, write_sparse
from longtail.data.formats.survey import Survey
from longtail.data.problems import Problems
from longtail.data.tokens import Words
from longtail.types import Texts


@dataclass(frozen=True)
class Features:
    """Feature matrices of all splits and of the labels over one vocabulary."""

    splits: dict[str, sp.csr_array]
    labels: sp.csr_array | None
    vocabulary: Texts | None


def features_of(data: Dataset) -> Features:
    """Return the features of a data set: its own where it has no texts, else TF-IDF fitted on train and label texts."""
    if all(split.texts is None for split in data.splits.values()):
        own = {name: split.features for name, split in data.splits.items() if split.features is not None}
        return Features(own, data.labels.features, data.vocabulary)
    texts = {name: split.need_texts("TF-IDF") for name, split in data.splits.items()}
    known = [texts["train"]] if "train" in texts else list(texts.values())
    words = Words.fit(*known, *([] if data.labels.texts is None else [data.labels.texts]))
    bags = {name: words.bag(part) for name, part in texts.items()}
    return Features(bags, None if data.labels.texts is None else words.bag(data.labels.texts), words.vocabulary)


def write_label_features(features: Features, folder: Path) -> None:
    """Write Yf.txt and Xf.txt, as far as they are known."""
    if features.labels is not None:
        write_sparse(folder / "Yf.txt", features.labels)
    if features.vocabulary is not None:
        write_texts(folder / "Xf.txt", features.vocabulary)


def read_matrix(path: Path, problems: Problems) -> Entries:
    """Read a sparse matrix in either layout."""
    return read_npz(path, problems) if path.suffix.lower() == ".npz" else read_sparse(path, problems)


def add_label_features(raw: Raw, survey: Survey, problems: Problems) -> None:
    """Read label features and vocabulary beside points that have features, and make the widths agree."""
    widths = {int(points.features.shape[1]) for points in raw.points.values() if points.features is not None}
    path = survey.get("label_features", prefer=".txt")
    if path is not None:
        raw.label_features, raw.label_features_at = read_matrix(path, problems).matrix(problems), path
        widths.add(int(raw.label_features.shape[1]))
    if len(widths) > 1:
        found = f"feature matrices of different widths: {', '.join(map(str, sorted(widths)))}"
        raise problems.fatal("feature count", found, file=survey.root, remedy="use one vocabulary for all files")
    path, width = survey.get("vocabulary"), next(iter(widths), 0)
    if path is not None:
        raw.vocabulary = read_texts(path, problems, width)
        if len(raw.vocabulary) != width:
            found = f"{len(raw.vocabulary):,} words for {width:,} features"
            problems.error("feature count", found, file=path, remedy="write one word a line for every feature")
            raw.vocabulary = None
