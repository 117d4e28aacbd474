"""SCORES × TARGETS → SOFTMAX OVER THE POOL: pick some labels, the positives that a batch's pool holds.

Decoupled: each positive competes with all negatives but not with the other positives. SupCon: with everything in the
pool. Soft targets weigh the positives. References: [DEXML], [UniDEC] §2.3; methods §4.4, §5.16, A5.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from longtail.parts import Factors, Loss
from longtail.records import Cost, Sizes, record
from longtail.shards import ALONE, Group, split
from longtail.types import LabelMatrix

if TYPE_CHECKING:
    from torch import Tensor

    from longtail.losses.softmax import Kernel


@record
class PickSome(Loss):
    """Settings of a softmax over the pool; a subclass says which.

    `directions`: each point chooses among labels, each label among the points of the batch, or both, of which the first
    has the weight `balance`. The mean is over labels that have a point in the batch.
    """

    adds_up: ClassVar[bool] = True
    temperature: float = Field(default=1.0, gt=0)  # that scores are divided by
    # who chooses: each point a label, each label a point, or both
    directions: Literal["points", "labels", "both"] = "points"
    # the weight of points that choose labels, where both directions count
    balance: float = Field(default=0.5, ge=0, le=1)

    def cost(self, sizes: Sizes) -> Cost:
        """Count what processes tell each other about each point: the strength of positives, maximum, sum and push."""
        return Cost(sent=sizes.told * 4 * 4.0 * sizes.batch_size)

    @property
    def by_rows(self) -> bool:
        """Whether it can do without whole scores."""
        return self.directions == "points"

    @abstractmethod
    def kernel(self) -> Kernel:
        """Return what turns scores into their gradient."""

    def softmax(
        self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor, group: Group
    ) -> Tensor:  # fmt: skip
        """Compute the loss of points that choose among labels, which a group of processes may share."""
        from longtail.losses.softmax import softmax_of_scores  # noqa: PLC0415  (torch)

        return softmax_of_scores(self.kernel(), scores, targets, mask, weights, group)

    def of_rows(self, factors: Factors, targets: LabelMatrix, excluded: LabelMatrix, weights: Tensor) -> Tensor:
        """Compute the loss of points that choose among labels from what scores are the products of."""
        from longtail.losses.softmax import softmax_of_rows  # noqa: PLC0415  (torch)

        if self.temperature != 1:
            bias = None if factors.bias is None else factors.bias / self.temperature
            factors = replace(factors, vectors=factors.vectors / self.temperature, bias=bias)
        return softmax_of_rows(self.kernel(), factors, targets, excluded, weights, split())

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss."""
        if self.temperature != 1:
            scores = scores / self.temperature
        if self.directions == "points":
            return self.softmax(scores, targets, mask, weights, split())
        weighed = targets * weights[:, None]  # the weight of a point is that of its targets here
        chosen = (weights > 0)[:, None].expand_as(targets)  # without weight it is nobody's negative either
        seen = chosen if mask is None else mask & chosen
        anchors = ((weighed > 0) & seen).any(dim=0).to(weights.dtype)
        anchors = anchors * (len(anchors) / split().sum_(anchors.sum()).clamp_min(1))
        turned = self.softmax(scores.T, weighed.T, seen.T, anchors, ALONE)  # a process has all points
        if self.directions == "labels":
            return turned
        return self.balance * self.softmax(scores, targets, mask, weights, split()) + (1 - self.balance) * turned


@record
class Decoupled(PickSome):
    """-(1 / Σ_p y_p) Σ_p y_p log [ e^{s_p} / (e^{s_p} + Σ_{n: y_n = 0} e^{s_n}) ], averaged over points."""

    part: ClassVar[str] = "decoupled"

    def kernel(self) -> Kernel:
        """Return what turns scores into their gradient."""
        from longtail.losses.softmax import decoupled  # noqa: PLC0415  (torch)

        return decoupled


@record
class SupCon(PickSome):
    """-(1 / Σ_p y_p) Σ_p y_p log [ e^{s_p} / Σ_l e^{s_l} ], averaged over points."""

    part: ClassVar[str] = "supcon"

    def kernel(self) -> Kernel:
        """Return what turns scores into their gradient."""
        from longtail.losses.softmax import supcon  # noqa: PLC0415  (torch)

        return supcon
