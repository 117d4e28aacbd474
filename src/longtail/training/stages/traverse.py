"""SCORER → SCORER: predictions walk one step over the label graph. References: [ECLARE]; methods §5.6."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray
from pydantic import Field

from longtail.errors import ModelError, RecipeError
from longtail.files import matrix_of
from longtail.labels.walk import normalised, random_walk
from longtail.parts import Fit, Scorer, Stage
from longtail.records import record
from longtail.scorers.traversed import TraversedScorer


@record
class Traverse(Stage):
    """The `top` best labels of a text hand `share` of their probability on to their neighbours."""

    part: ClassVar[str] = "traverse"
    place: ClassVar[int] = 2
    share: float = Field(default=0.5, ge=0, lt=1)
    top: int = Field(default=100, ge=1)

    def check(self, recipe: Any) -> None:
        """Ask for scores that are logarithms of probabilities."""
        if not recipe.objectives[0].sampler.scores_probabilities:
            raise RecipeError(f"{recipe.name}: traverse needs probabilities: the sampler clusters or beam")

    def run(self, fit: Fit) -> Fit:
        """Walk, unless a stage before has pruned the graph."""
        graph = random_walk(fit.train.original.targets, seed=fit.seed) if fit.graph is None else fit.graph
        return fit.changed(scorer=TraversedScorer(fit.scorer, normalised(graph), self.share, self.top))

    def open(self, arrays: Mapping[str, NDArray[Any]], scorer: Any, opened: Callable[..., Any]) -> Scorer:
        """Add the graph to the scorer."""
        graph = matrix_of(arrays, "traverse.graph")
        if graph.shape != (len(scorer), len(scorer)):
            raise ModelError("the label graph of the model does not fit its labels; train again")
        return TraversedScorer(scorer, graph, self.share, self.top)
