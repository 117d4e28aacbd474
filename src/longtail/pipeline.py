"""RECIPE + DATA → MODEL → NUMBERS: walk a recipe from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, runtime_checkable

import numpy as np

from longtail.data.dataset import Split
from longtail.data.tokens import WORD
from longtail.errors import DataError, RecipeError
from longtail.labels.propensity import Propensity, frequencies
from longtail.metrics import Evaluation
from longtail.metrics import evaluate as measure
from longtail.model import Model
from longtail.recipe import Recipe, find_recipe
from longtail.shortlists.lexical import Lexical


@runtime_checkable
class MakesPoints(Protocol):
    """An augmentation that acts on the data set, before training."""

    def fit(self, train: Split, *, seed: int) -> Self:
        """Return the same settings with what the training points settle, so that it is kept with the model."""

    def augment(self, train: Split, *, seed: int) -> Split:
        """Return more or other training points."""


def fit(recipe: str | Recipe, train: Split) -> Model:
    """Fit a recipe, by name or value, to the training points.

    >>> from longtail.data.dataset import from_rows
    >>> data = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    >>> fit("knn", data.train).predict(["my cat"], k=1)[0][0][:2]
    (0, 'cat')
    """
    recipe = find_recipe(recipe)
    if len(train) == 0 or len(train.labels) == 0:
        raise DataError("there is nothing to learn from: no points or no labels", remedy="check the training file")
    original, parts = train, []
    for part in recipe.augment:
        if not isinstance(part, MakesPoints):
            raise RecipeError(f"{recipe.name}: {part.part} needs a model that trains in batches")
        parts.append(part.fit(train, seed=recipe.seed))
        train = parts[-1].augment(train, seed=recipe.seed)
    if not isinstance(recipe.lexical, Lexical):
        raise RecipeError(f"{recipe.name}: no part of this recipe makes scores")
    lexical = recipe.lexical.fit(train, seed=recipe.seed)
    recipe = replace(recipe, augment=tuple(parts), lexical=lexical.settings)
    counts = frequencies(original.targets)
    return Model(recipe, replace(original.labels, features=None), counts, len(original), original.dataset, lexical)


def evaluate(
    model: Model, split: Split, *, ks: Sequence[int] = (1, 3, 5), bins: int = 3, propensity: Propensity | None = None
) -> Evaluation:
    """Predict a split and measure: P, nDCG, recall, PSP, PSnDCG, coverage, and each bin's share."""
    top = model.predict_split(split, max(ks))
    return measure(
        top, split.targets, train_frequencies=model.frequencies, train_points=model.points,
        propensity=propensity or Propensity.of(model.dataset), ks=ks, bin_count=bins,
    )  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """What a run will probably need."""

    memory_bytes: int
    disk_bytes: int
    seconds: float


def estimate(recipe: Recipe, train: Split) -> Estimate:
    """Estimate memory, disk and time from a sample of the texts, before anything is built."""
    texts = train.need_texts(recipe.name)
    some = texts.take(np.random.default_rng(0).permutation(len(texts))[:2000])
    words = float(np.mean([len(set(WORD.findall(text.lower()))) for text in some])) if len(some) else 0.0
    rows = len(train) + len(train.labels)
    entries = int(words * rows)
    held = entries * 16 + rows * 16 + train.targets.nnz * 8
    return Estimate(memory_bytes=150_000_000 + 3 * held, disk_bytes=held + rows * 40, seconds=1 + rows * 3e-5)
