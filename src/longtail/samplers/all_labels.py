"""BATCH → ALL LABELS, for small data sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np

from longtail.parts import Batch, BuiltSampler, Candidates, Network, Sampler, States, Step
from longtail.records import Cost, Sizes, record
from longtail.samplers.batch_pool import others_masked, some_of


@record
class AllLabels(Sampler):
    """All labels, in every step; with `pick="one"` one positive of each point counts, and the others are left out."""

    part: ClassVar[str] = "all_labels"
    pick: Literal["all", "one"] = "all"  # whether all positives of a point count, or one that is drawn

    def build(self, network: Network) -> BuiltSampler:
        """Make ready."""
        return _AllLabels(self.pick == "one")

    def cost(self, sizes: Sizes) -> Cost:
        """Count scores, targets, loss and gradient of a batch against all labels."""
        return Cost(memory=6 * 4.0 * sizes.batch_size * sizes.labels / sizes.processes)


class _AllLabels(BuiltSampler):
    """Proposes every label."""

    def __init__(self, one: bool) -> None:
        self.one = one

    def propose(self, batch: Batch, states: Callable[[], States], step: Step) -> Candidates:
        """Return all labels."""
        labels = np.arange(batch.targets.shape[1])
        own = some_of(batch.targets, 1, step.draw) if self.one else None
        return Candidates(labels, None if own is None else others_masked(batch.targets, own, labels))
