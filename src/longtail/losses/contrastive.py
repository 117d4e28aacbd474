"""COSINES × TARGETS → PROBABILISTIC CONTRASTIVE LOSS: positives are drawn near, negatives pushed off.

A positive of cosine s costs -ln c + d (1 - s), a negative -ln(1 - c e^{d (s - 1)}); a soft target weighs its positive.
Scores must be cosines: `classifier.scale=1`. References: [SiameseXML]; methods §4.4, §5.7.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from longtail.parts import Loss
from longtail.records import record

if TYPE_CHECKING:
    from torch import Tensor


@record
class Contrastive(Loss):
    """Settings of the loss: summed over the pairs of a point, averaged over points.

    `hardest` keeps so many negatives of each point (all where None); one that costs less than `floor` costs nothing.

    >>> import torch
    >>> loss = Contrastive()(torch.tensor([[0.5, 0.2, 0.1]]), torch.tensor([[1.0, 0.0, 0.0]]), None, torch.ones(1))
    >>> round(float(loss), 4), round(-math.log(0.9) + 1.5 * 0.5 - math.log(1 - 0.9 * math.exp(1.5 * -0.8)), 4)
    (1.1715, 1.1715)
    """

    part: ClassVar[str] = "contrastive"
    needs_cosines: ClassVar[bool] = True
    c: float = Field(default=0.9, gt=0, lt=1)  # the probability that two equal vectors belong together
    d: float = Field(default=1.5, gt=0)  # how quickly it falls with the distance
    hardest: int | None = Field(default=1, ge=1)  # negatives of each point that count; None: all
    floor: float = Field(default=0.0, ge=0)  # negatives that cost less cost nothing

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss."""
        import torch  # noqa: PLC0415

        scores = scores.float().clamp(max=1)
        positive = targets * (-math.log(self.c) + self.d * (1 - scores))
        negative = -torch.log1p(-self.c * torch.exp(self.d * (scores - 1)))
        wrong = targets == 0 if mask is None else (targets == 0) & mask
        negative = torch.where(wrong & (negative >= self.floor), negative, 0)
        if self.hardest is not None and self.hardest < negative.shape[1]:
            negative = negative.topk(self.hardest, dim=1).values
        positive = positive if mask is None else positive * mask
        total: Tensor = ((positive.sum(dim=1) + negative.sum(dim=1)) * weights).sum() / len(scores)
        return total
