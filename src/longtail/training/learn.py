"""RECIPE + POINTS → SCORER: walk through the stages of a recipe, each of which a killed run continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.machine import halved, threads
from longtail.parts import Earlier, Encoder, Fit, Points, Tokenizer
from longtail.recipe import Recipe
from longtail.records import StageDone
from longtail.scorers.ensemble import EnsembleScorer
from longtail.types import Progress

SHORT = 0.25  # of the steps, where weights are trained only to choose by


def learn(
    recipe: Recipe, train: Split, words: Words, *, validation: Split | None = None, fingerprint: str = "",
    scratch: Path | None = None, progress: Progress | None = None, earlier: Earlier | None = None,
) -> tuple[Any, Tokenizer, tuple[StageDone, ...]]:  # fmt: skip
    """Run the stages of a recipe, for each member of an ensemble.

    Returns the scorer, the encoder's tokenizer, and what each stage did. `earlier` is a model that is trained on.
    """
    with _own_threads():
        return _members(recipe, train, words, validation, fingerprint, scratch, progress, earlier)


@contextmanager
def _own_threads() -> Iterator[None]:
    """Let torch use half of the cores, inside the block, where something else is done beside a training."""
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    if halved():
        torch.set_num_threads(min(before, threads()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _members(
    recipe: Recipe, train: Split, words: Words, validation: Split | None, fingerprint: str, scratch: Path | None,
    progress: Progress | None, earlier: Earlier | None,
) -> tuple[Any, Tokenizer, tuple[StageDone, ...]]:  # fmt: skip
    """Train every member of an ensemble."""
    scorers: list[Any] = []
    done: list[StageDone] = []
    for place, member in enumerate(recipe.members()):
        folder, told = scratch, progress
        if recipe.ensemble > 1:
            folder = None if scratch is None else scratch / f"member{place}"
            told = progress and _of_member(progress, f"member {place + 1} of {recipe.ensemble}")
        fit = _learn(
            member, train, words, validation=validation, fingerprint=fingerprint, scratch=folder, progress=told,
            earlier=earlier,
        )  # fmt: skip
        scorers.append(fit.scorer)
        done += [replace(stage, member=place) for stage in fit.done]
    scorer = scorers[0] if len(scorers) == 1 else EnsembleScorer(scorers[0], tuple(scorers[1:]))
    return scorer, fit.tokenizer, tuple(done)


def _learn(
    recipe: Recipe, train: Split, words: Words, *, validation: Split | None, fingerprint: str, scratch: Path | None,
    progress: Progress | None, earlier: Earlier | None,
) -> Fit:  # fmt: skip
    """Run the stages of one member."""
    encoder = recipe.encoder
    assert encoder is not None, "Recipe.check has seen it"
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    tokenizer = encoder.tokenizer(train.need_texts("training"), train.labels.texts, words)
    points = as_numbers(encoder, tokenizer, train)
    fit = Fit(recipe, train, validation, words, tokenizer, points, scratch, fingerprint, progress, earlier=earlier)

    def trial(some: Fit) -> Any:
        return run_stages(some.changed(recipe=shortened(recipe), scratch=None, done=[])).scorer

    for stage in recipe.stages:
        fit = stage.prepare(fit, trial)
    return run_stages(fit)


def _of_member(progress: Progress, member: str) -> Progress:
    """Say which member of an ensemble the progress is of."""
    return lambda what, done, total: progress(f"{member}, {what}", done, total)


def run_stages(fit: Fit) -> Fit:
    """Run all stages, each from where the one before ended."""
    for stage in fit.recipe.stages:
        fit = stage.run(fit)
    return fit


def shortened(recipe: Recipe) -> Recipe:
    """Train for a share of the steps, in every stage, to choose by."""
    return replace(recipe, stages=tuple(stage.shortened(SHORT) for stage in recipe.stages))


def as_numbers(encoder: Encoder, tokenizer: Tokenizer, train: Split) -> Points:
    """Turn texts into numbers."""
    names = train.labels.texts
    return Points(
        inputs=encoder.inputs(tokenizer, train.need_texts("training")),
        targets=train.targets,
        excluded=train.excluded,
        weights=np.ones(len(train), np.float32),
        names=None if names is None else encoder.inputs(tokenizer, names),
    )
