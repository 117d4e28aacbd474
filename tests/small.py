"""A tiny data set with a simple rule, and every recipe made small enough for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

import longtail as lt
from longtail.data.dataset import Split, from_rows
from longtail.model import Model
from longtail.recipe import Recipe, find_recipe
from longtail.shortlists.vectors import VectorIndex
from longtail.training import stages
from longtail.training.network import Network

ORDERED = {"encoder.words": 4, "encoder.start": "random", "training.batch": 64, "training.rate": 0.02}
SMALL: dict[str, dict[str, Any]] = {
    "frugal": {
        "encoder.dim": 32, "training.epochs": 6, "training.batch": 64, "shortlist.random": 20,
    },
    "astec": {
        "encoder.dim": 32, "encoder.start": "random", "surrogate.clusters": 8, "surrogate.training.epochs": 6,
        "surrogate.training.batch": 64, "training.epochs": 8, "training.batch": 64, "training.rate": 0.02,
        "shortlist.keep": 20, "shortlist.random": 10, "shortlist.points": 10,
    },
    "inceptionxml": ORDERED | {"encoder.dim": 64, "encoder.channels": 8, "training.epochs": 15},
    "inceptionxml_plus": ORDERED
    | {"encoder.dim": 64, "encoder.channels": 8, "training.epochs": 15, "shortlist.clusters": 8, "shortlist.top": 2},
    "xmlcnn": ORDERED | {"encoder.dim": 32, "encoder.filters": 16, "encoder.vector": 32, "training.epochs": 10},
    "knn": {},
}  # fmt: skip
TRAINED = [name for name in SMALL if name != "knn"]


def board(points: int = 400, *, named: bool = True) -> Split:
    """Make points whose one word decides their labels; every model must learn this without fail."""
    draw = np.random.default_rng(0)
    kinds = draw.integers(0, 20, points)
    texts = [f"word{kind} filler{draw.integers(0, 5)}" for kind in kinds]
    rows = [[kind, 20 + kind // 2] for kind in kinds]
    train = from_rows({"train": (texts, rows)}, label_texts=[f"name{label}" for label in range(30)]).train
    return train if named else replace(train, labels=replace(train.labels, texts=None))


def small(name: str = "frugal", /, **changes: Any) -> Recipe:
    """Find a recipe, make it small, and change settings: `training__rate=0.1` is training.rate."""
    recipe = find_recipe(name)
    for path, value in SMALL[name.partition("+")[0]].items():
        recipe = recipe.override(path, value)
    for stage in ("surrogate.training", "training", "rerank.training"):
        if getattr(recipe, stage.partition(".")[0]) is not None:
            recipe = recipe.override(f"{stage}.least", 0)  # more epochs for small data, which this is
    for path, value in changes.items():
        recipe = recipe.override(path.replace("__", "."), value)
    return recipe


def short(name: str, /, **changes: Any) -> Recipe:
    """Make a recipe that trains for two epochs; its lexical part has nothing to choose."""
    recipe = small(name, training__epochs=2, training__batch=128)
    if recipe.surrogate is not None:
        recipe = recipe.override("surrogate.training.epochs", 2).override("surrogate.training.batch", 128)
    if name.startswith("frugal"):
        recipe = recipe.override("lexical", None).override("augment.0.calibrate", False)
    for path, value in changes.items():
        recipe = recipe.override(path.replace("__", "."), value)
    return recipe


def networks(recipe: Recipe, train: Split, *, run: bool = False) -> dict[str, Network]:
    """Build the networks of all stages, by name; without `run` they stay as they start."""
    found: dict[str, Network] = {}
    real = stages._run

    def record(made, network, name, *rest, **more):
        found[name] = network
        if run:
            real(made, network, name, *rest, **more)

    with patch.object(stages, "_run", record):
        lt.fit(recipe, train)
    return found


def arrays_of(index: VectorIndex | None) -> dict[str, np.ndarray]:
    """Name every array of an index."""
    assert index is not None
    held = {"labels": index.labels, "bias": index.bias, **index.encoding.arrays()}
    held |= index.head.arrays("head") if index.head else {}
    held |= index.guide.arrays() if index.guide else {}
    return held | ({f"second.{n}": a for n, a in arrays_of(index.second).items()} if index.second else {})


def same(one: Model, two: Model) -> bool:
    """Tell whether two models learnt bit for bit the same."""
    first, second = arrays_of(one.vectors), arrays_of(two.vectors)
    assert first.keys() == second.keys()
    return all(np.array_equal(first[name], second[name]) for name in first)
