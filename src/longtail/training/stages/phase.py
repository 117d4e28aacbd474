"""POINTS → WEIGHTS TO GO ON FROM: a run of the loop whose weights the next stages take over.

`phase` has objectives of its own; `level` trains the recipe's objective over clusters alone, for a static beam to be
read off it. References: [InceptionXML-LF] appendix A; [DECAF], [ECLARE]; methods §5.3, §5.5.
"""

from __future__ import annotations

from typing import Any, ClassVar

from longtail.errors import RecipeError
from longtail.parts import Fit, Objective
from longtail.records import record
from longtail.training.settings import LoopStage
from longtail.training.stages.training import prepared


@record
class Phase(LoopStage):
    """Train objectives; later stages start from the weights that have the same name and shape."""

    part: ClassVar[str] = "phase"
    objectives: tuple[Objective, ...] = ()  # what its steps minimise the sum of
    freeze: bool = False  # whether the encoder stays as it is afterwards

    def check(self, recipe: Any) -> None:
        """Ask for something to train."""
        if not self.trained(recipe):
            raise RecipeError(f"{recipe.name}: the stage {self.part} has no objective to train")
        super().check(recipe)

    def trained(self, recipe: Any) -> tuple[Objective, ...]:
        """Return the objectives of this stage."""
        return self.objectives

    def run(self, fit: Fit) -> Fit:
        """Train."""
        from longtail.training.loop import run_loop  # noqa: PLC0415  (torch)
        from longtail.training.network import TrainedNetwork  # noqa: PLC0415

        objectives, settings = self.trained(fit.recipe), self.training
        network = TrainedNetwork(
            fit, objectives, settings, augmentations=prepared(fit), partition=fit.partition, frozen=fit.frozen
        )
        run_loop(network, self.part, settings)
        return fit.changed(before=network, frozen=fit.frozen or self.freeze)


@record
class Level(Phase):
    """Train the recipe's objective over clusters, on the clusters that labels are in now."""

    part: ClassVar[str] = "level"

    def trained(self, recipe: Any) -> tuple[Objective, ...]:
        """Return the recipe's objective over clusters."""
        return tuple(objective for objective in recipe.objectives if objective.over == "clusters")[:1]
