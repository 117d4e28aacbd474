"""SCORES × TARGETS → BINARY CROSS-ENTROPY, summed or averaged; soft targets everywhere.

`scores` (B, K) are logits, `targets` (B, K) lie in [0, 1], `mask` (B, K) is False where a pair must not be learnt from
(the point is itself that label), `weights` (B,) weigh the points. The sum over points is divided by B.
References: methods §4.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from longtail.parts import Loss
from longtail.records import record
from longtail.shards import split

if TYPE_CHECKING:
    from torch import Tensor


def binary_cross_entropy(scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
    """Add the cross-entropy of every pair of a point, then average over points."""
    from torch.nn import functional  # noqa: PLC0415

    each = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    if mask is not None:
        each = each * mask
    return (each.sum(dim=1) * weights).sum() / len(scores)


@record
class Bce(Loss):
    """Add the cross-entropy of every pair of a point, then average over points.

    >>> import torch
    >>> round(float(Bce()(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), None, torch.ones(1))), 4)
    1.3863
    """

    part: ClassVar[str] = "bce"
    adds_up: ClassVar[bool] = True

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss."""
        return binary_cross_entropy(scores, targets, mask, weights)


@record
class BceMean(Loss):
    """Average the cross-entropy over all pairs that count, so that the number of candidates does not matter.

    References: methods §4.4, §11 (pairs that are masked out are not part of the mean).
    """

    part: ClassVar[str] = "bce_mean"
    adds_up: ClassVar[bool] = True

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss."""
        total = binary_cross_entropy(scores, targets, mask, weights) * len(scores)
        pairs = weights.new_tensor(scores.numel()) if mask is None else mask.sum()
        return total / split().sum_(pairs).clamp_min(1)
