"""RECIPE + POINTS → SCORER: the stage that trains all objectives of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.errors import RecipeError
from longtail.parts import Fit, Place, Prepared, Query, Stage
from longtail.records import When, record
from longtail.training.settings import LoopSettings
from longtail.types import TopK, contains

IN_STEPS: tuple[Place, ...] = (
    "words", "batch", "candidates", "embeddings", "layers", "states", "contexts", "hidden",
)  # fmt: skip
WEIGHTS = (0.3, 0.6, 1.0)  # of augmented points, that are tried
ASKED = 256  # validation points that are asked about at once: a text may have very many candidates
MEASURED = 1000  # validation points that are measured after an epoch


@record
class Training(LoopSettings, Stage):
    """Settings of the loop, and of what validation points decide.

    `augmented` weighs the points that an augmentation made; "choose" tries some weights on validation points first.
    """

    part: ClassVar[str] = "training"
    # weight of points that an augmentation made; choose: try some on held-out points
    augmented: Annotated[float, Field(ge=0)] | Literal["choose"] = 1.0
    refit: int = Field(default=0, ge=0)  # data with fewer points are trained again on all once everything is chosen
    patience: int | None = Field(default=None, ge=1)  # stop after so many epochs that are no better on validation
    curves: bool = False  # measure validation points after every epoch, for log.csv

    def check(self, recipe: Any) -> None:
        """Ask for batches that are large enough for the encoder."""
        least = recipe.encoder.min_batch
        if self.batch_size < least:
            raise RecipeError(f"{recipe.name}: its batch norms need {least} points: --set training.batch_size={least}")

    def undecided(self) -> When:
        """Return when validation points settle something."""
        return When.WHILE if self.patience or self.curves or self.augmented == "choose" else When.NEVER

    def refits(self, points: int) -> bool:
        """Return whether so few points are trained on again."""
        return points < self.refit

    def prepare(self, fit: Fit, run: Callable[[Fit], Any]) -> Fit:
        """Weigh the points that augmentations made; "choose" tries some weights in short runs first."""
        validation = fit.validation
        if self.augmented != "choose":
            return weighed(fit, self.augmented)
        if fit.train.augmented is None or validation is None:
            return weighed(fit, 1.0)
        _ = fit.start  # once for all trials
        return weighed(fit, max(WEIGHTS, key=lambda weight: quality(run(weighed(fit, weight)), validation)))

    def run(self, fit: Fit) -> Fit:
        """Train, and freeze what was learnt."""
        from longtail.training.loop import run_loop  # noqa: PLC0415  (torch)
        from longtail.training.network import TrainedNetwork  # noqa: PLC0415

        least = fit.recipe.encoder.min_batch
        if len(fit.train) < least:
            raise RecipeError(f"{fit.recipe.name}: its batch norms need {least} points; give more data")
        network = TrainedNetwork(fit, fit.recipe.objectives, self, augmentations=prepared(fit), frozen=fit.frozen)
        run_loop(network, "training", self, patience=self.patience, validate=self._validate(fit, network))
        scorer = network.scorer()
        if scorer.retriever is not None and fit.validation is not None:
            validation = fit.validation
            chosen = scorer.retriever.choose(scorer, lambda trial: quality(trial, validation))
            scorer = scorer.led(chosen)
        return fit.changed(scorer=scorer, before=network)

    def _validate(self, fit: Fit, network: Any) -> Callable[[], dict[str, float]] | None:
        """Measure validation points, where the settings ask for it."""
        if not (self.patience or self.curves):
            return None
        if fit.validation is None:
            raise RecipeError(
                f"{fit.recipe.name}: training.patience and training.curves need held-out points, and {len(fit.train)} "
                "training points are too few to hold any out; leave these settings out, or give more data"
            )
        some = fit.validation.take(np.arange(min(len(fit.validation), MEASURED)))

        def measure() -> dict[str, float]:
            scorer, texts = network.scorer(), some.need_texts("validation").tolist()
            right = hits(scorer, texts, some)
            measured = {"P@1+3+5": 100 * sum(float(right[:, :k].sum(axis=1).mean() / k) for k in (1, 3, 5))}
            measured["P@1"] = 100 * float(right[:, 0].mean())
            if scorer.retriever is not None:
                measured |= scorer.retriever.metrics(Query(texts), scorer.tower, some.targets)
            return measured

        return measure


def weighed(fit: Fit, weight: float) -> Fit:
    """Weigh the points that an augmentation made, each by the target that it is surest of."""
    train = fit.train
    if train.augmented is None:
        return fit
    surest = train.targets.max(axis=1).toarray().ravel() if train.targets.nnz else np.zeros(len(train))
    weights = np.where(train.augmented, weight * np.minimum(surest, 1), 1.0).astype(np.float32)
    return fit.changed(points=replace(fit.points, weights=weights))


def prepared(fit: Fit, places: tuple[Place, ...] = IN_STEPS) -> list[Prepared]:
    """Make the augmentations ready that act on nothing but these places."""
    found = [part.prepare(fit) for part in fit.recipe.augment if {*part.acts_on} <= {*places}]
    return [part for part in found if part is not None]


def hits(scorer: Any, texts: Sequence[str], validation: Any) -> NDArray[np.bool_]:
    """Return which of the five best labels of validation points are right, (N, 5); some points are asked at once."""
    spare = int(np.diff(validation.excluded.indptr).max(initial=0))
    found = list[NDArray[np.bool_]]()
    for start in range(0, len(texts), ASKED):
        some = validation.take(np.arange(start, min(start + ASKED, len(texts))))
        topk = TopK(*scorer.top(Query(texts[start : start + ASKED]), 5 + spare))
        found.append(contains(some.targets, topk.without(some.excluded, 5).labels))
    return np.concatenate(found) if found else np.zeros((0, 5), np.bool_)


def quality(scorer: Any, validation: Any) -> float:
    """Return the sum of P@1 and P@5 of validation points."""
    right = hits(scorer, validation.need_texts("validation").tolist(), validation)
    return float(right[:, 0].mean() + right.mean())
