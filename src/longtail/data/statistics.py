"""DATASET → ITS STATISTICS, as the papers print them."""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail.data.dataset import Dataset
from longtail.types import Texts


def describe(data: Dataset) -> dict[str, Any]:
    """Count what decides how hard a data set is; shares and means are rounded, texts compared without regard to case.

    >>> from longtail.data.dataset import from_rows
    >>> describe(from_rows({"train": (["a b", "cat"], [[0], [0, 1]])}, label_texts=["cat", "dog"]))["labels_per_point"]
    1.5
    """
    out: dict[str, Any] = {"name": data.name, "fingerprint": data.fingerprint}
    out |= {f"N_{name}": len(split) for name, split in data.splits.items()}
    out["L"] = len(data.labels)
    for name, split in data.splits.items():
        suffix = "" if name == "train" else f"_{name}"
        out[f"labels_per_point{suffix}"] = _mean(split.targets.nnz, len(split))
        if split.texts is not None:
            out[f"words_per_point{suffix}"] = _words(split.texts)
        if name != "train":
            out[f"labels_in_{name}"] = int(np.count_nonzero(np.bincount(split.targets.indices, minlength=1)))
    if data.labels.texts is not None:
        out["words_per_label"] = _words(data.labels.texts)
        out["distinct_label_texts"] = len(_lower(data.labels.texts))
    if "train" in data.splits:
        train = data.train
        counts = np.bincount(train.targets.indices, minlength=len(data.labels))
        out["points_per_label"] = _mean(train.targets.nnz, len(data.labels))
        out["max_points_of_a_label"] = int(counts.max(initial=0))
        for name, rare in (
            ("share_labels_le_5", counts <= 5),
            ("share_labels_0", counts == 0),
            ("share_labels_1", counts == 1),
        ):
            out[name] = _mean(int(rare.sum()), len(counts))
        out["soft_targets"] = bool((train.targets.data != 1).any())
        if train.texts is not None and data.labels.texts is not None:
            out["share_train_texts_in_labels"] = _shared(train.texts, data.labels.texts)
            out["share_label_texts_in_train"] = _shared(data.labels.texts, train.texts)
    out["excluded_pairs"] = {name: int(split.excluded.nnz) for name, split in data.splits.items()}
    return out


def _mean(total: int, count: int) -> float:
    """Divide, with 0 for nothing."""
    return round(total / count, 4) if count else 0.0


def _lower(texts: Texts) -> set[str]:
    """Collect texts without regard to case."""
    return {text.lower() for text in texts}


def _shared(texts: Texts, others: Texts) -> float:
    """Find the share of texts that are also among the others, without regard to case."""
    known = _lower(others)
    return _mean(sum(text.lower() in known for text in texts), len(texts))


def _words(texts: Texts) -> float:
    """Count words by white space."""
    return _mean(sum(len(text.split()) for text in texts), len(texts))
