"""COSINES × TARGETS → TRIPLETS: a positive should be nearer than the hardest negatives of its point, by a margin.

For each of the hardest positives p and negatives n of a point, max(0, s_n - s_p + margin), weighed by a softmax. A soft
target weighs the triplets of its positive. References: [NGAME]; methods §4.4, §5.8, A5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from longtail.parts import Loss
from longtail.records import record

if TYPE_CHECKING:
    from torch import Tensor


@record
class Triplet(Loss):
    """Settings of the loss, averaged over points.

    `weigh`: "scores" is the softmax of the negatives' scores over `temperature` for each positive, 0 in place of those
    that are far enough (the encoder of NGAME); "violations" that of what the triplets cost, over all of a point (its
    classifier).

    >>> import torch
    >>> scores, targets = torch.tensor([[0.5, 0.4, 0.1]]), torch.tensor([[1.0, 0.0, 0.0]])
    >>> round(float(Triplet(negatives=1)(scores, targets, None, torch.ones(1))), 4)
    0.2
    """

    part: ClassVar[str] = "triplet"
    needs_cosines: ClassVar[bool] = True
    margin: float = Field(default=0.3, gt=0, le=2)  # by which a positive must be nearer than a negative
    positives: int = Field(default=1, ge=1)  # of each point that count: the furthest
    negatives: int = Field(default=10, ge=1)  # of each point that count: the nearest
    weigh: Literal["scores", "violations"] = "scores"  # by what negatives are weighed
    temperature: float = Field(default=0.1, gt=0)  # of the weights of negatives

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss."""
        import torch  # noqa: PLC0415

        scores = scores.float()
        right, wrong = targets > 0, targets == 0
        if mask is not None:
            right, wrong = right & mask, wrong & mask
        far, places = _most(torch.where(right, -scores, -torch.inf), self.positives)
        near, _ = _most(torch.where(wrong, scores, -torch.inf), self.negatives)
        known = far.isfinite()[:, :, None] & near.isfinite()[:, None, :]  # (B, P, n)
        far, near = torch.where(far.isfinite(), far, 0), torch.where(near.isfinite(), near, 0)
        cost = torch.relu(near[:, None, :] + far[:, :, None] + self.margin)
        ranked = near[:, None, :].expand_as(cost) / self.temperature * (cost > 0) if self.weigh == "scores" else cost
        ranked = torch.where(known, ranked.detach(), -torch.inf)
        if self.weigh == "violations":
            share = torch.softmax(ranked.flatten(1), dim=1).view_as(ranked)
        else:
            share = torch.softmax(ranked, dim=2)
        share = torch.where(known, share, 0)  # where there is nothing, a softmax is not a number
        share = share * targets.gather(1, places)[:, :, None]
        total: Tensor = ((share * torch.where(known, cost, 0)).sum(dim=(1, 2)) * weights).sum() / len(scores)
        return total


def _most(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row, and where they stand."""
    found = values.topk(min(count, values.shape[1]), dim=1)
    return found.values, found.indices
