"""POINTS → ENCODER: a first stage, in which the encoder learns clusters of labels. References: [Astec]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from longtail.errors import RecipeError
from longtail.labels.tree import LABELS_EACH, partition
from longtail.labels.walk import HOPS, RESTART
from longtail.parts import Fit, Objective
from longtail.records import Cost, Sizes, named, record
from longtail.training.settings import LoopSettings, LoopStage
from longtail.training.stages.training import prepared

FEW = 4096  # clusters at least, where nobody says how many: with fewer the encoder learns less


def score_clusters() -> Objective:
    """Return the usual objective: every cluster has a free row and is scored in every step."""
    rows = named("rows", init="random", text=None, bias=True, bias_init="prior", cosine=False)
    return Objective(over="clusters", sampler=named("all_labels"), classifier=rows, loss=named("bce_mean"))


@record
class Surrogate(LoopStage):
    """The encoder learns clusters of labels instead of labels; with `freeze` it stays as it is afterwards."""

    part: ClassVar[str] = "surrogate"
    place: ClassVar[int] = 0
    renamed: ClassVar[Mapping[str, str]] = {"clusters": "num_clusters"}
    num_clusters: int | None = Field(default=4096, ge=2)  # of labels; None: about four labels each, and at least 4,096
    smooth: bool = False  # cluster on points and graph neighbours instead of points alone
    hops: int = Field(default=HOPS, ge=1)  # of the walk that finds neighbours
    restart: float = Field(default=RESTART, ge=0, le=1)  # of the walk that labels are clustered by
    objective: Objective = Field(default_factory=score_clusters)  # what its steps minimise
    training: LoopSettings = LoopSettings(learning_rate=0.01, schedule="step", decay_every=0.7)  # settings of its loop
    freeze: bool = True  # whether the encoder stays as it is afterwards

    def check(self, recipe: Any) -> None:
        """Ask for an objective over clusters."""
        if self.objective.over != "clusters":
            raise RecipeError(f"{recipe.name}: a surrogate learns clusters: --set surrogate.objective.over=clusters")
        super().check(recipe)

    def total_cost(self, sizes: Sizes) -> Cost:
        """Add up the cost of its parts, which count a cluster for LABELS_EACH labels."""
        return super().total_cost(replace(sizes, labels=LABELS_EACH * self._count(sizes.labels)))

    def _count(self, labels: int) -> int:
        """Return the number of clusters of so many labels."""
        return min(self.num_clusters or max(FEW, labels // 4), labels)

    def run(self, fit: Fit) -> Fit:
        """Train the encoder."""
        from longtail.training.loop import run_loop  # noqa: PLC0415  (torch)
        from longtail.training.network import TrainedNetwork  # noqa: PLC0415

        count = self._count(len(fit.train.labels))
        walk = {"hops": self.hops, "restart": self.restart} if self.smooth else None
        clusters = partition(fit.train, fit.words, count, walk=walk, seed=fit.seed)
        network = TrainedNetwork(fit, (self.objective,), self.training, augmentations=prepared(fit), partition=clusters)
        run_loop(network, self.part, self.training)
        return fit.changed(before=network, frozen=self.freeze)
