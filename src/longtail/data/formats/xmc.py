"""THE XMC REPOSITORY'S MATRIX LAYOUT ↔ ROWS: label matrices with raw texts and/or features beside them.

trn_X_Y.txt tst_X_Y.txt [val_X_Y.txt]   label matrices (or Y.trn.npz Y.tst.npz)
trn_X.txt tst_X.txt Y.txt               texts of points and labels, one a line
trn_X_Xf.txt tst_X_Xf.txt Yf.txt Xf.txt   features of points and labels, and their vocabulary
"""

from __future__ import annotations

from pathlib import Path

from longtail.data.dataset import Dataset
from longtail.data.formats.features import add_label_features, features_of, read_matrix, write_label_features
from longtail.data.formats.lines import write_texts
from longtail.data.formats.rows import Place, Points, Raw
from longtail.data.formats.sidecars import read_label_lines, read_point_texts, write_sidecars
from longtail.data.formats.sparse import write_sparse
from longtail.data.formats.survey import SHORT, Survey
from longtail.data.problems import Problems


def read_xmc(survey: Survey, problems: Problems) -> Raw:
    """Read label matrices, and texts where all splits have them, else features."""
    points = {}
    for split in survey.splits("targets"):
        path = survey.get("targets", split, prefer=".txt")
        if path is not None:
            points[split] = read_matrix(path, problems).points()
    raw = Raw(points, read_label_lines(survey, problems))
    if not add_texts(points, survey, problems):
        for split, split_points in points.items():
            path = survey.get("features", split, prefer=".txt")
            if path is None:
                remedy = f"add {SHORT[split]}_X.txt (texts) or {SHORT[split]}_X_Xf.txt (features)"
                raise problems.fatal(
                    "no text", f"{split} has neither texts nor features", file=survey.root, remedy=remedy
                )
            split_points.features = read_matrix(path, problems).matrix(problems)
            if split_points.features.shape[0] != len(split_points.counts):
                message = f"{split_points.features.shape[0]:,} rows of features for {len(split_points.counts):,} points"
                raise problems.fatal("row count", message, file=path, remedy="give one row for every point")
        add_label_features(raw, survey, problems)
    return raw


def add_texts(points: dict[str, Points], survey: Survey, problems: Problems) -> bool:
    """Read the texts of all splits from trn_X.txt and its likes, if every split has them."""
    paths = {split: survey.get("texts", split) for split in points}
    for split, path in paths.items():
        if path is not None and all(paths.values()):
            count = len(points[split].counts)
            points[split].texts = read_point_texts(path, count, problems)
            points[split].texts_at = Place(path, range(1, count + 1))
    return all(paths.values())


def write_xmc(data: Dataset, folder: Path) -> None:
    """Write label matrices, texts where there are any, and features for trainers that need them."""
    features = features_of(data)
    for name, split in data.splits.items():
        write_sparse(folder / f"{SHORT[name]}_X_Y.txt", split.targets)
        write_sparse(folder / f"{SHORT[name]}_X_Xf.txt", features.splits[name])
        if split.texts is not None:
            write_texts(folder / f"{SHORT[name]}_X.txt", split.texts)
    if data.labels.texts is not None:
        write_texts(folder / "Y.txt", data.labels.texts)
    write_label_features(features, folder)
    write_sidecars(data, folder, repository=True)
