"""POINTS → ENCODER: a first stage, in which the encoder learns clusters of labels. References: [Astec]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import Field

from longtail.labels.tree import partition
from longtail.parts import Fit, Objective, Stage
from longtail.records import named, record, replaced
from longtail.training.settings import LoopSettings
from longtail.training.stages.training import prepared
from longtail.types import without


def score_clusters() -> Objective:
    """Return the usual objective: every cluster has a free row and is scored in every step."""
    rows = named("rows", init="random", text=None, bias=True, bias_init="prior", cosine=False)
    return Objective(sampler=named("all_labels"), classifier=rows, loss=named("bce_mean"))


@record
class Surrogate(Stage):
    """The encoder learns clusters of labels instead of labels; with `freeze` it stays as it is afterwards."""

    part: ClassVar[str] = "surrogate"
    place: ClassVar[int] = 0
    renamed: ClassVar[Mapping[str, str]] = {"clusters": "num_clusters"}
    num_clusters: int = Field(default=4096, ge=2)
    smooth: bool = False  # cluster on points and graph neighbours instead of points alone
    objective: Objective = Field(default_factory=score_clusters)
    training: LoopSettings = LoopSettings(learning_rate=0.01, schedule="step", decay_every=0.7)
    freeze: bool = True

    def steps(self, points: int) -> tuple[int, float]:
        """Return the points of a step, and how often each point is looked at."""
        return self.training.steps(points)

    def shortened(self, share: float) -> Self:
        """Return the same stage with a share of its steps."""
        return replaced(self, "training", self.training.shortened(share))

    def run(self, fit: Fit) -> Fit:
        """Train the encoder."""
        from longtail.training.loop import run_loop  # noqa: PLC0415  (torch)
        from longtail.training.network import TrainedNetwork  # noqa: PLC0415

        count = min(self.num_clusters, len(fit.train.labels))
        clusters = partition(fit.train, fit.words, count, smooth=self.smooth, seed=fit.seed)
        targets = clusters.targets(fit.points.targets)
        excluded = without(clusters.targets(fit.points.excluded), targets)  # a cluster with a positive is one
        points = replace(fit.points, targets=targets, excluded=excluded, names=None)
        network = TrainedNetwork(
            fit, (self.objective,), self.training, points=points, augmentations=prepared(fit, ("words",))
        )
        run_loop(network, "surrogate", self.training)
        return fit.changed(tower=network.tower, frozen=self.freeze)
