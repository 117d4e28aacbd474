"""POINTS → ENCODER: a first stage, in which the encoder learns clusters of labels. References: [Astec]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import Field

from longtail.classifiers.rows import Rows
from longtail.losses.bce import BceMean
from longtail.parts import Fit, Head, Objective, Stage
from longtail.records import record, replaced
from longtail.samplers.all_labels import AllLabels
from longtail.samplers.clusters import partition
from longtail.training.settings import LoopSettings
from longtail.training.stages.training import prepared


@record
class Surrogate(Stage):
    """The encoder learns clusters of labels, all of them scored; with `freeze` it stays as it is afterwards."""

    part: ClassVar[str] = "surrogate"
    place: ClassVar[int] = 0
    renamed: ClassVar[Mapping[str, str]] = {"clusters": "num_clusters"}
    num_clusters: int = Field(default=4096, ge=2)
    smooth: bool = False  # cluster on points and graph neighbours instead of points alone
    head: Head | None = None
    training: LoopSettings = LoopSettings(learning_rate=0.01, schedule="step", decay_every=0.7)
    freeze: bool = True

    def shortened(self, share: float) -> Self:
        """Return the same stage with a share of its steps."""
        return replaced(self, "training", self.training.shortened(share))

    def run(self, fit: Fit) -> Fit:
        """Train the encoder."""
        from longtail.training.loop import run_loop  # noqa: PLC0415  (torch)
        from longtail.training.network import TrainedNetwork, without  # noqa: PLC0415

        clusters = partition(fit, min(self.num_clusters, len(fit.train.labels)), smooth=self.smooth)
        targets = clusters.targets(fit.points.targets)
        excluded = without(clusters.targets(fit.points.excluded), targets)
        points = replace(fit.points, targets=targets, excluded=excluded, names=None)
        rows = Rows(init="random", text=None, bias=True, bias_init="prior", cosine=False)
        objective = Objective(head=self.head, sampler=AllLabels(), classifier=rows, loss=BceMean())
        network = TrainedNetwork(
            fit, (objective,), self.training, points=points, augmentations=prepared(fit, ("words",))
        )
        run_loop(network, "surrogate", self.training)
        return fit.changed(tower=network.tower, frozen=self.freeze)
