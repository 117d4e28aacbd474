"""BATCH → THE LABELS THAT ITS POINTS WERE DRAWN FOR. References: [SiameseXML]; methods §5.7."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from longtail.parts import DRAWN, Batch, BuiltSampler, Candidates, Network, Sampler, States, Step
from longtail.records import Cost, Sizes, record


@record
class Drawn(Sampler):
    """The labels of a batch that a stage draws label by label, such as `siamese`."""

    part: ClassVar[str] = "drawn"

    def cost(self, sizes: Sizes) -> Cost:
        """Count scores, targets, loss and gradient of two points a label against all labels of the batch."""
        return Cost(memory=6 * 4.0 * 2 * sizes.batch_size * min(sizes.batch_size, sizes.labels))

    def build(self, network: Network) -> BuiltSampler:
        """Make ready."""
        return _Drawn()


class _Drawn(BuiltSampler):
    """Proposes what was drawn."""

    def propose(self, batch: Batch, states: Callable[[], States], step: Step) -> Candidates:
        """Return the labels that the points of the batch were drawn for."""
        return Candidates(np.unique(step.memory[DRAWN]))
