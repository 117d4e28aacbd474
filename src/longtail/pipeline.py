"""RECIPE + DATA → MODEL → NUMBERS: walk a recipe from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from longtail.data.dataset import Split
from longtail.data.tokens import WORD, Words
from longtail.errors import DataError, RecipeError, ResourceError
from longtail.labels.propensity import Propensity, frequencies
from longtail.machine import held
from longtail.metrics import Evaluation
from longtail.metrics import evaluate as measure
from longtail.model import Examples, Model
from longtail.probabilities import fit_probabilities
from longtail.recipe import Recipe, find_recipe
from longtail.shortlists.blend import choose_blend
from longtail.shortlists.lexical import Lexical
from longtail.types import Progress

PROCESS = 150_000_000  # bytes of Python and the libraries, where the system does not tell
CALIBRATED = 10  # predictions of each held-out point that probabilities are fitted to
SHORT = 0.25  # of the steps, where a network is trained only to choose by
HELD, MOST_HELD, FEW = 0.1, 3000, 20  # points held out to choose by; too few points to hold any out


@runtime_checkable
class MakesPoints(Protocol):
    """An augmentation that acts on the data set, before training."""

    def fit(self, train: Split, *, seed: int) -> Self:
        """Return the same settings with what the training points settle, so that it is kept with the model."""

    def augment(self, train: Split, *, seed: int) -> Split:
        """Return more or other training points."""


def fit(recipe: str | Recipe, train: Split, *, scratch: Path | None = None, progress: Progress | None = None) -> Model:
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
    points = apart = None
    if _chooses(recipe) and len(train) >= FEW:
        share = HELD if recipe.encoder is None else HELD / 2  # a network cannot learn from what is held out
        leave = recipe.encoder is not None  # a network is judged by labels that it has seen, as it will be
        kept, apart = train.divide(share, seed=recipe.seed, most=MOST_HELD, leave=leave)
        _, points = _augmented(recipe, kept)  # what is counted for the choice must not know the points held out
    settled, whole = _augmented(recipe, train)
    chosen = trial = None
    if isinstance(recipe.lexical, Lexical):
        few = Lexical(neighbours=10, power=2.0, share=0.4 if train.labels.texts else 0.0)  # too few points to choose
        chosen = recipe.lexical.or_else(few)
        if points is not None and apart is not None:
            trial = recipe.lexical.choose(points, apart, words)
            chosen = trial.settings
    vectors = sequences = None
    again = False
    if recipe.encoder is not None:
        from longtail.training.stages import learn  # noqa: PLC0415  (torch is imported by recipes that train)

        again = points is not None and _refits(recipe, len(train))
        first = scratch / "choice" if scratch and again else scratch
        vectors, sequences = learn(
            _shortened(recipe) if again else recipe, whole if points is None else points, words,
            held=apart, fingerprint=train.fingerprint, scratch=first, progress=progress,
        )  # fmt: skip
        if trial is not None and apart is not None and recipe.blend is None:
            settled = replace(settled, blend=choose_blend(vectors, trial, apart))
    settled = replace(settled, lexical=chosen)
    original = train.original
    counts, labels = frequencies(original.targets), replace(train.labels, features=None)
    model = Model(settled, labels, counts, len(original), train.dataset, words, None, vectors, sequences)
    if points is not None and apart is not None:
        model = replace(model, lexical=trial)
        model = replace(model, probabilities=fit_probabilities(model.predict_split(apart, CALIBRATED), apart.targets))
    if again:
        vectors, sequences = learn(
            recipe, whole, words, fingerprint=train.fingerprint, scratch=scratch, progress=progress
        )
        model = replace(model, vectors=vectors)
    examples = None if original.texts is None else Examples(original.texts, original.targets)
    return replace(model, lexical=chosen.fit(whole, words) if chosen else None, examples=examples)


def _chooses(recipe: Recipe) -> bool:
    """Tell whether something has to be chosen on points that are held out."""
    training, shortlist = recipe.training, recipe.shortlist
    asked = [getattr(training, name, None) for name in ("patience", "curves")]
    if any(asked) or getattr(training, "augmented", None) == "choose" or getattr(shortlist, "beta", 0) is None:
        return True
    if not isinstance(recipe.lexical, Lexical):
        return False
    return not recipe.lexical.settled or (recipe.encoder is not None and recipe.blend is None)


def _refits(recipe: Recipe, points: int) -> bool:
    """Tell whether a small data set is trained again on all its points, once the blending weight is chosen."""
    training, shortlist = recipe.training, recipe.shortlist
    needs = [getattr(training, name, None) for name in ("patience", "curves")]
    if any(needs) or getattr(training, "augmented", None) == "choose" or getattr(shortlist, "beta", 0) is None:
        return False  # these need held-out points while they train
    return recipe.blend is None and points < getattr(training, "refit", 0)


def _shortened(recipe: Recipe) -> Recipe:
    """Train for a part of the steps, to choose by."""
    training: Any = recipe.training
    changed = {"epochs": max(1, round(SHORT * training.epochs)), "least": round(SHORT * training.least)}
    return replace(recipe, training=replace(training, **changed))


def _augmented(recipe: Recipe, train: Split) -> tuple[Recipe, Split]:
    """Let the augmentations settle what they learn from the points, and make theirs."""
    parts = []
    for part in recipe.augment:
        if isinstance(part, MakesPoints):
            part = part.fit(train, seed=recipe.seed)  # noqa: PLW2901
            train = part.augment(train, seed=recipe.seed)
        elif recipe.encoder is None:
            raise RecipeError(f"{recipe.name}: {part.part} changes batches, and this recipe trains on none")
        parts.append(part)
    return replace(recipe, augment=tuple(parts)), train


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
    """Estimate the peak memory, the disk and the time of a fit from a sample of the texts, before anything is built."""
    texts = train.need_texts(recipe.name)
    some = texts.take(np.random.default_rng(0).permutation(len(texts))[:2000])
    found = [set(WORD.findall(text.lower())) for text in some]
    words = float(np.mean([len(entry) for entry in found])) if found else 0.0
    labels = len(train.labels)
    rows = len(train) + labels + (labels if recipe.augment else 0)  # label points
    entries, pairs = words * rows, train.targets.nnz * (3 if recipe.augment else 1)
    index = entries * 24 + rows * 16 + pairs * 8
    memory, disk, seconds = 1.5 * index + 250 * rows, index, 1 + rows * 4e-5
    dim, epochs = getattr(recipe.encoder, "dim", 0), getattr(recipe.training, "epochs", 0)
    if dim:
        table = (labels + 0.2 * rows) * dim * 4.0  # label rows and word vectors
        memory += 4 * table + 400e6  # values, two moments, the vectors of the index; torch itself
        disk += table
        seconds += epochs * rows * dim * 3e-7
    return Estimate(int(_most_held() + memory), int(disk), seconds)


def need_memory(needs: Estimate) -> None:
    """Refuse a fit that the free memory cannot hold."""
    free = available()
    if free is not None and needs.memory_bytes - _most_held() > free:
        raise ResourceError(
            f"this needs about {needs.memory_bytes / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "use a smaller encoder.dim, fewer points, or a larger machine"
        )


def _most_held() -> int:
    """Tell how much memory this process has held at most so far."""
    return (held() or (PROCESS, PROCESS))[1]


def available() -> int | None:
    """Tell how much memory is free, where the system says so."""
    facts = Path("/proc/meminfo")
    if not facts.exists():
        return None
    for line in facts.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
