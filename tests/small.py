"""A tiny data set with a simple rule, and every recipe made small enough for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

import longtail as lt
from longtail.data.dataset import Split, from_rows
from longtail.model import Model
from longtail.parts import States, Step
from longtail.recipe import Recipe, find_recipe, recipe_of
from longtail.training.loop import Loop
from longtail.training.network import TrainedNetwork
from longtail.training.tables import LocalTable
from longtail.training.term import Encoded, Term

ORDERED = {
    "encoder.max_tokens": 4, "encoder.init": "random", "training.batch_size": 64, "training.learning_rate": 0.02,
}  # fmt: skip
LOOP = {"epochs": 6, "batch_size": 64, "learning_rate": 0.02, "dense_learning_rate": 0.01}


def loops(*stages: str) -> dict[str, Any]:
    """Set the loops of several stages."""
    return {f"{stage}.{name}": value for stage in stages for name, value in LOOP.items()}


BEAM = {"surrogate.num_clusters": 8, "recluster.num_clusters": 8, "sampler.top": 3}
CONVOLVED = {f"{path}.head.channels": 4 for path in ("objectives.0", "objectives.1")}
CONVOLVED |= {f"phase.{path}": value for path, value in CONVOLVED.items()}
CLUSTERS = {
    "sampler.num_clusters": 8, "sampler.top": 2, "recluster.num_clusters": 8,
    "phase.objectives.0.sampler.num_clusters": 8, "phase.objectives.0.sampler.top": 2,
}  # fmt: skip
DUAL = {"encoder.dim": 32, "encoder.init": "random"} | loops("training")
SMALL: dict[str, dict[str, Any]] = {
    "frugal": {
        "encoder.dim": 32, "training.epochs": 6, "training.batch_size": 64, "sampler.random": 20,
    },
    "astec": {
        "encoder.dim": 32, "encoder.init": "random", "surrogate.num_clusters": 8, "surrogate.training.epochs": 6,
        "surrogate.training.batch_size": 64, "training.epochs": 8, "training.batch_size": 64,
        "training.learning_rate": 0.02,
        "sampler.num_candidates": 20, "sampler.random": 10, "sampler.num_neighbours": 10,
    },
    "decaf": {"encoder.dim": 32} | BEAM | loops("surrogate.training", "level.training", "training"),
    "eclare": {"encoder.dim": 32} | BEAM | loops("surrogate.training", "level.training", "training"),
    "siamesexml": {
        "encoder.dim": 32, "encoder.init": "random", "sampler.num_candidates": 20, "sampler.num_neighbours": 10,
    } | loops("siamese.training", "training"),
    "inceptionxml": ORDERED | {"encoder.dim": 64, "encoder.channels": 8, "training.epochs": 15},
    "inceptionxml_plus": ORDERED
    | {"encoder.dim": 64, "encoder.channels": 8, "training.epochs": 15, "sampler.num_clusters": 8, "sampler.top": 2},
    "inceptionxml_lf": {
        "encoder.dim": 64, "encoder.channels": 4, "encoder.max_tokens": 4, "encoder.init": "random",
    } | CONVOLVED | CLUSTERS | loops("phase.training", "training"),
    "depsl": DUAL | {"head.dim": 16, "training.epochs": 10},
    "unidec": DUAL | {"head.dim": 16, "objectives.1.head.dim": 16, "training.epochs": 20},
    "dpr": DUAL, "ance": DUAL, "dexml": DUAL,
    "ngame": DUAL | loops("phase.training"),
    "ngame_renee": DUAL | loops("phase.training"),
    "lightxml": DUAL | {"head.dim": 16, "sampler.num_clusters": 8, "sampler.top": 2, "training.epochs": 15},
    "attentionxml": {"encoder.dim": 32, "encoder.hidden": 16, "encoder.init": "random", "classifier.layers": [16],
                     "encoder.max_tokens": 4} | loops("levels.training", "training")
    | {"training.epochs": 60},
    "xmlcnn": ORDERED | {"encoder.dim": 32, "encoder.filters": 16, "encoder.width": 32, "training.epochs": 10},
    "knn": {},
    "linear": {"linear.leaf": 8},
}  # fmt: skip
# What takes long to learn, at higher rates; `short`, whose losses are golden, keeps those above.
QUICK: dict[str, dict[str, Any]] = {
    "attentionxml": {
        "training.learning_rate": 0.05, "training.dense_learning_rate": 0.025, "training.epochs": 30,
    },
}  # fmt: skip
WEIGHTS = {"laroberta"}  # recipes that start from weights in a package: encoders/test_transformer.py
UNTRAINED = ("knn", "linear")  # no steps, no torch
TRAINED = [name for name in SMALL if name not in UNTRAINED]
# Label vectors are made from label texts.
FROM_TEXTS = ["decaf", "eclare", "siamesexml", "inceptionxml_lf", "depsl", "unidec", "dpr", "ance", "dexml", "ngame"]
NEED_TEXTS = [*FROM_TEXTS, "ngame_renee"]  # its encoder is trained on them


class Given:
    """A tower for what is encoded already."""

    @staticmethod
    def encode(vectors: Any) -> Any:
        return vectors


def board(points: int = 400, *, named: bool = True) -> Split:
    """Make points whose one word decides their labels; every model must learn this without fail."""
    draw = np.random.default_rng(0)
    kinds = draw.integers(0, 20, points)
    texts = [f"word{kind} filler{draw.integers(0, 5)}" for kind in kinds]
    rows = [[kind, 20 + kind // 2] for kind in kinds]
    train = from_rows({"train": (texts, rows)}, label_texts=[f"name{label}" for label in range(30)]).train
    return train if named else replace(train, labels=replace(train.labels, texts=None))


def small(name: str = "frugal", /, **changes: Any) -> Recipe:
    """Find a recipe, make it small, and change settings: `training__epochs=1` is training.epochs."""
    return changed(changed(_shrunk(name), QUICK.get(name.partition("+")[0], {})), changes)


def _shrunk(name: str) -> Recipe:
    """Find a recipe and make it small."""
    recipe = changed(find_recipe(name), SMALL[name.partition("+")[0]])
    for path in loops_of(recipe):  # more epochs for small data, which this is
        recipe = recipe.override(f"{path}.min_steps", 0)
    return recipe


def loops_of(recipe: Recipe) -> list[str]:
    """Name the settings of the loop of each stage that has one."""
    own = [stage.part for stage in recipe.stages if "epochs" in stage.fields()]
    return [f"{stage.part}.training" for stage in recipe.stages if "training" in stage.fields()] + own


def changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Change settings of a recipe."""
    for path, value in changes.items():
        recipe = recipe.override(path.replace("__", "."), value)
    return recipe


def short(name: str, /, **changes: Any) -> Recipe:
    """Make a recipe that trains for two epochs; its lexical part has nothing to choose."""
    recipe = _shrunk(name)
    for path in loops_of(recipe):
        recipe = recipe.override(f"{path}.epochs", 2).override(f"{path}.batch_size", 128)
    if name.startswith("frugal"):
        recipe = recipe.override("lexical", None).override("linear", None).override("augment.0.calibrate", False)
    return changed(recipe, changes)


def dropless(recipe: Recipe) -> Recipe:
    """Leave out all dropout, in every part."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: 0.0 if key.endswith("dropout") else without(entry) for key, entry in value.items()}
        return [without(entry) for entry in value] if isinstance(value, list) else value

    return recipe_of(without(recipe.dump()))


def networks(recipe: Recipe, train: Split, *, run: bool = False) -> dict[str, TrainedNetwork]:
    """Build the networks of all stages, by name; without `run` they stay as they start, ready to be trained."""
    built: dict[str, TrainedNetwork] = {}
    real, finish = Loop.run, LocalTable.finish

    def record(self: Loop, name: str, **more: Any) -> None:
        built[name] = self.network
        if run:
            real(self, name, **more)

    with patch.object(Loop, "run", record), patch.object(LocalTable, "finish", finish if run else lambda _table: None):
        lt.fit(recipe, train)
    return built


def same(one: Model, two: Model) -> bool:
    """Return whether two models learnt bit for bit the same."""
    first, second = one.vectors.arrays(), two.vectors.arrays()
    assert first.keys() == second.keys()
    return all(np.array_equal(first[name], second[name]) for name in first)


def scores_of(term: Term, states: States, labels: np.ndarray, step: Step) -> Any:
    """Score encoded points against labels as a term does in a step: (B, K)."""
    encoded = Encoded(lambda: states)
    encoded()
    return term.classifier(*term.encoded(None, labels, encoded, step), step)
