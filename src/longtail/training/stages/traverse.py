"""SCORER → SCORER: predictions walk one step over the label graph. References: [ECLARE]; methods §5.6."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from numpy.typing import NDArray
from pydantic import Field

from longtail.arrays import checked, matrix_of, number
from longtail.errors import RecipeError
from longtail.labels.walk import normalised, random_walk
from longtail.parts import Fit, Scorer, Stage
from longtail.records import When, record
from longtail.scorers.traversed import TraversedScorer
from longtail.training.stages.training import quality

SHARES = (0.0, 0.1, 0.25, 0.5)  # that are tried; the last is the paper's


@record
class Traverse(Stage):
    """The `top` best labels of a text hand on to their neighbours; `share` of the result is what was handed on."""

    part: ClassVar[str] = "traverse"
    place: ClassVar[int] = 2
    reads_served: ClassVar[bool] = True
    share: float | None = Field(default=None, ge=0, lt=1)  # of what was handed on: a half in the paper; None: validate
    top: int = Field(default=100, ge=1)  # labels of a text that hand on to their neighbours

    def check(self, recipe: Any) -> None:
        """Ask for scores that are logarithms of probabilities."""
        if not recipe.objectives[0].sampler.scores_probabilities:
            raise RecipeError(f"{recipe.name}: traverse needs probabilities: the sampler clusters or beam")

    def undecided(self) -> When:
        """Return when validation points settle the share: with the weights that it is for."""
        return When.WHILE if self.share is None else When.NEVER

    def run(self, fit: Fit) -> Fit:
        """Walk, unless a stage before has pruned the graph, and choose the share."""
        graph = normalised(random_walk(fit.train.original.targets, seed=fit.seed) if fit.graph is None else fit.graph)
        first, validation = TraversedScorer(fit.scorer, graph, SHARES[-1], self.top), fit.validation
        if self.share is not None:
            first = replace(first, share=self.share)
        elif validation is not None:
            trials = [replace(first, share=share) for share in SHARES]
            first = max(trials, key=lambda trial: quality(trial, validation))
        return fit.changed(scorer=first)

    def open(self, arrays: Mapping[str, NDArray[Any]], scorer: Any, opened: Callable[..., Any]) -> Scorer:
        """Add the graph to the scorer."""
        graph = matrix_of(arrays, "traverse.graph", len(scorer), len(scorer))
        (share,) = checked(arrays, (number("traverse.share", 0, 1),))
        return TraversedScorer(scorer, graph, float(share[0]), self.top)
