"""RECIPE + DATA → MODEL → NUMBERS: walk a recipe from top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import numpy as np

from longtail.data.dataset import Split
from longtail.data.tokens import WORD, Words
from longtail.errors import DataError, RecipeError
from longtail.labels.propensity import Propensity, frequencies
from longtail.metrics import Evaluation
from longtail.metrics import evaluate as measure
from longtail.model import Model
from longtail.recipe import Recipe, find_recipe
from longtail.shortlists.blend import choose_blend
from longtail.shortlists.lexical import Lexical
from longtail.shortlists.vectors import VectorIndex

Step = Callable[[str, int, int], None]
HELD, MOST_HELD, FEW = 0.05, 3000, 200  # points held out to choose a blend; too few points to hold any out


@runtime_checkable
class MakesPoints(Protocol):
    """An augmentation that acts on the data set, before training."""

    def fit(self, train: Split, *, seed: int) -> Self:
        """Return the same settings with what the training points settle, so that it is kept with the model."""

    def augment(self, train: Split, *, seed: int) -> Split:
        """Return more or other training points."""


def fit(recipe: str | Recipe, train: Split, *, scratch: Path | None = None, progress: Step | None = None) -> Model:
    """Fit a recipe, by name or value, to the training points.

    `scratch` is a folder for checkpoints: a run that was stopped continues there. `progress` is told how far it is.

    >>> from longtail.data.dataset import from_rows
    >>> data = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    >>> fit("knn", data.train).predict(["my cat"], k=1)[0][0][:2]
    (0, 'cat')
    """
    recipe = find_recipe(recipe)
    if len(train) == 0 or len(train.labels) == 0:
        raise DataError("there is nothing to learn from: no points or no labels", remedy="check the training file")
    if recipe.encoder is None and recipe.lexical is None:
        raise RecipeError(f"{recipe.name}: no part of this recipe makes scores")
    words = Words.fit(train.need_texts(recipe.name), train.labels.texts or [])
    recipe, whole = _augmented(recipe, train)
    vectors = lexical = None
    if recipe.encoder is not None:
        recipe, vectors = _trained(recipe, train, words, scratch, progress)
    if isinstance(recipe.lexical, Lexical):
        lexical = recipe.lexical.fit(whole, words, seed=recipe.seed)
        recipe = replace(recipe, lexical=lexical.settings)
    counts, labels = frequencies(train.targets), replace(train.labels, features=None)
    return Model(recipe, labels, counts, len(train), train.dataset, words, lexical, vectors)


def _augmented(recipe: Recipe, train: Split) -> tuple[Recipe, Split]:
    """Let the augmentations settle what they learn from the points, and make theirs."""
    parts = []
    for part in recipe.augment:
        if not isinstance(part, MakesPoints):
            raise RecipeError(f"{recipe.name}: {part.part} needs a model that mixes batches; no recipe here does yet")
        parts.append(part.fit(train, seed=recipe.seed))
        train = parts[-1].augment(train, seed=recipe.seed)
    return replace(recipe, augment=tuple(parts)), train


def _trained(
    recipe: Recipe, train: Split, words: Words, scratch: Path | None, progress: Step | None
) -> tuple[Recipe, VectorIndex]:
    """Train the network; where words are blended in, hold some points out and choose by them how much."""
    from longtail.training.checkpoint import Checkpoint  # noqa: PLC0415  (torch is imported by recipes that train)
    from longtail.training.loop import train as run  # noqa: PLC0415
    from longtail.training.network import BagNetwork, plan_of  # noqa: PLC0415

    plan = plan_of(recipe)
    blends = isinstance(recipe.lexical, Lexical) and recipe.blend is None and len(train) >= FEW
    kept, held = train.divide(HELD, seed=recipe.seed, most=MOST_HELD) if blends else (train, train)
    _, points = _augmented(recipe, kept)
    names = words.bag(train.labels.texts or [""] * len(train.labels))
    network = BagNetwork(plan, words, points, names, seed=recipe.seed)
    checkpoint = log = None
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
        checkpoint = Checkpoint(
            scratch / "checkpoint.safetensors", {"recipe": recipe.dump(), "data": train.fingerprint}
        )
        log = scratch / "log.csv"
    run(network, len(points), plan.training, seed=recipe.seed, checkpoint=checkpoint, log=log, progress=progress)
    vectors = network.index()
    if blends and isinstance(recipe.lexical, Lexical):
        lexical = recipe.lexical.fit(points, words, seed=recipe.seed)
        recipe = replace(recipe, lexical=lexical.settings, blend=choose_blend(vectors, lexical, held))
    return recipe, vectors


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
