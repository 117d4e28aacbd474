"""BATCH → BEST CLUSTERS, FOUND BEFORE → LABELS: the clusters of each point are chosen once, by a level trained before.

Positives that no chosen cluster holds give no loss, unless `positives` forces their clusters in. References: [DECAF],
[ECLARE]; methods §4.3 (2), §5.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from longtail.errors import RecipeError
from longtail.parts import Batch, Network, States, Step
from longtail.records import record
from longtail.samplers.clusters import BuiltClusters, Clusters
from longtail.types import Ints

if TYPE_CHECKING:
    from torch import Tensor

CELLS = 2**24  # scores of points and clusters that are held at once


@record
class Beam(Clusters):
    """Settings of the static beam of `top` clusters."""

    part: ClassVar[str] = "beam"
    top: int = Field(default=64, ge=1)  # clusters that each point sees
    positives: bool = False  # whether the clusters of positives are always chosen
    cluster_weight: float | None = Field(default=1.0, ge=0)  # of the cluster in the rank of a label; None: validate

    def check(self, recipe: Any) -> None:
        """Ask for a stage that trains the clusters first."""
        super().check(recipe)
        if not any(stage.part == "level" for stage in recipe.stages):
            raise RecipeError(f"{recipe.name}: the sampler `beam` needs a level stage before: --set level=level")

    def build(self, network: Network) -> BuiltBeam:
        """Find the clusters of each point as the level before scores them."""
        return BuiltBeam(self, network)


class BuiltBeam(BuiltClusters):
    """The best clusters of each point."""

    settings: Beam

    def __init__(self, settings: Beam, network: Network) -> None:
        before = network.fit.before
        assert before is not None, "Beam.check has seen the level"
        super().__init__(settings, before.over("clusters").partition)
        retriever, inputs = self.retriever(before), network.points.inputs
        beams, chunk = [], max(1, CELLS // len(self.partition))
        for start in range(0, len(inputs), chunk):
            some = inputs.take(np.arange(start, min(start + chunk, len(inputs))))
            beams.append(retriever.best(before.vectors(some)))
        self.beams: Ints = np.concatenate(beams).astype(np.int32)

    def chosen(self, batch: Batch, states: Callable[[], States], step: Step) -> tuple[Tensor, Tensor]:
        """Look the clusters of each point up."""
        import torch  # noqa: PLC0415

        device = step.network.device
        positive = torch.zeros((len(batch.rows), len(self.partition)), dtype=torch.bool)
        targets = self.partition.targets(batch.targets)
        rows = np.repeat(np.arange(len(batch.rows)), np.diff(targets.indptr))
        positive[torch.from_numpy(rows), torch.from_numpy(targets.indices.astype(np.int64))] = True
        chosen = torch.zeros_like(positive)
        chosen.scatter_(1, torch.from_numpy(self.beams[batch.rows].astype(np.int64)), True)
        if self.settings.positives:
            chosen |= positive
        return chosen.to(device), (positive & chosen).to(device)
