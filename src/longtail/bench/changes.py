"""JOB → DATA: find and read the data of a job, with the changes that it names."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from longtail.bench.suite import Job
from longtail.bench.variants import variant
from longtail.data.dataset import Dataset, Split
from longtail.data.formats import load
from longtail.errors import DataError
from longtail.types import Texts

VALIDATION_SHARE, VALIDATION_SEED = 0.1, 1  # the same validation points for every seed of a run


def find_data(name: str) -> Path:
    """Find a data set: a path, or a name below $LONGTAIL_DATA or ../shared/data."""
    root = Path(os.environ.get("LONGTAIL_DATA", "../shared/data"))
    for path in (Path(name), root / name):
        if path.exists():
            return path
    raise DataError(
        f"there is no data set {name}", remedy="give a path, or set LONGTAIL_DATA to the folder that has it"
    )


def job_data(job: Job) -> Dataset:
    """Read the data of a job and change it: models are fitted to `train` and evaluated on `test`."""
    data = load(find_data(job.data))
    train, test = data.train, None if "validation" in job.change else data.test
    for change in job.change:
        name, _, share = change.partition(":")
        if name == "validation":
            train, test = train.divide(VALIDATION_SHARE, seed=VALIDATION_SEED)
        elif name == "first-words":
            train, test = cut(train, int(share)), None if test is None else cut(test, int(share))
        elif name == "permute-label-texts":
            train = permuted(train, float(share or 1), job.seed)
        elif test is not None:
            test = variant(test, "shuffled", job.seed)
    assert test is not None  # validation is the first of the changes
    test = replace(test, labels=train.labels)
    return replace(data, labels=train.labels).with_splits(train, test.named("test"))


def cut(split: Split, words: int) -> Split:
    """Keep the first words of every text.

    >>> from longtail.data.dataset import from_rows
    >>> data = from_rows({"train": (["a b c", "d"], [[0], [0]])}, label_texts=["x"])
    >>> cut(data.train, 2).texts.tolist()
    ['a b', 'd']
    """
    texts = split.need_texts("first-words")
    return replace(split, texts=Texts(" ".join(text.split(maxsplit=words)[:words]) for text in texts))


def permuted(train: Split, share: float, seed: int) -> Split:
    """Permute the texts of a share of the labels.

    >>> from longtail.data.dataset import from_rows
    >>> data = from_rows({"train": (["red cat"], [[0]])}, label_texts=["a", "b", "c"])
    >>> permuted(data.train, 1, seed=0).labels.texts.tolist() == ["a", "b", "c"]
    False
    """
    if train.labels.texts is None:
        raise DataError("there are no label texts to permute", remedy="leave the change permute-label-texts out")
    rng = np.random.default_rng(seed)
    order = np.arange(len(train.labels))
    moved = rng.permutation(len(order))[: round(share * len(order))]
    order[moved] = rng.permutation(moved)
    return replace(train, labels=replace(train.labels, texts=train.labels.texts.take(order)))
