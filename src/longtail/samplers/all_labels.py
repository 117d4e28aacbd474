"""BATCH → ALL LABELS, for small data sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from longtail.parts import Batch, BuiltSampler, Candidates, Network, Sampler, States, Step
from longtail.records import Cost, Sizes, record


@record
class AllLabels(Sampler):
    """All labels, in every step."""

    part: ClassVar[str] = "all_labels"

    def build(self, network: Network) -> BuiltSampler:
        """Make ready."""
        return _AllLabels()

    def cost(self, sizes: Sizes) -> Cost:
        """Count scores, targets, loss and gradient of a batch against all labels."""
        return Cost(memory=6 * 4.0 * sizes.batch_size * sizes.labels)


class _AllLabels(BuiltSampler):
    """Proposes every label."""

    def propose(self, batch: Batch, states: Callable[[], States], step: Step) -> Candidates:
        """Return all labels."""
        return Candidates(np.arange(batch.targets.shape[1]))
