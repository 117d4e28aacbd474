"""SCORES × TARGETS → DECOUPLED SOFTMAX: each positive competes with all negatives but not with the other positives.

Soft targets weigh the positives. References: [DEXML]; methods §4.4, A5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from longtail.losses.bce import binary_cross_entropy
from longtail.parts import Loss
from longtail.records import record

if TYPE_CHECKING:
    from torch import Tensor


@record
class Decoupled(Loss):
    """Settings of the decoupled softmax.

    `directions`: each point chooses among labels, each label among the points of the batch, or both, in equal parts.
    """

    part: ClassVar[str] = "decoupled"
    temperature: float = Field(default=1.0, gt=0)  # that scores are divided by
    directions: Literal["points", "labels", "both"] = "points"

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss."""
        from longtail.losses.softmax import decoupled_softmax  # noqa: PLC0415  (torch)

        if self.temperature != 1:
            scores = scores / self.temperature
        if self.directions == "points":
            return decoupled_softmax(scores, targets, mask, weights)
        columns = targets.new_ones(targets.shape[1])
        weighed = targets * weights[:, None]  # the weight of a point is that of its targets here
        chosen = (weights > 0)[:, None].expand_as(targets)  # without weight it is nobody's negative either
        turned = decoupled_softmax(scores.T, weighed.T, (chosen if mask is None else mask & chosen).T, columns)
        if self.directions == "labels":
            return turned
        return 0.5 * (decoupled_softmax(scores, targets, mask, weights) + turned)


@record
class DecoupledBce(Loss):
    """Add the decoupled softmax and the summed cross-entropy."""

    part: ClassVar[str] = "decoupled_bce"

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss."""
        from longtail.losses.softmax import decoupled_softmax  # noqa: PLC0415  (torch)

        softmax = decoupled_softmax(scores, targets, mask, weights)
        return softmax + binary_cross_entropy(scores, targets, mask, weights)
