"""SCORES × TARGETS → LOSS: pure functions on a batch and its pool; soft targets everywhere.

`scores` (B, K) are logits, `targets` (B, K) lie in [0, 1], `counted` (B, K) is False where a pair must not be learnt
from (the point is itself that label), `weights` (B,) weigh the points. The sum over points is divided by B.
References: methods §4.4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def binary_cross_entropy(scores: Tensor, targets: Tensor, counted: Tensor | None, weights: Tensor) -> Tensor:
    """Add the cross-entropy of every pair of a point, then average over points.

    >>> loss = binary_cross_entropy(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), None, torch.ones(1))
    >>> round(float(loss), 4)
    1.3863
    """
    each = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    if counted is not None:
        each = each * counted
    return (each.sum(dim=1) * weights).sum() / len(scores)


def binary_cross_entropy_mean(scores: Tensor, targets: Tensor, counted: Tensor | None, weights: Tensor) -> Tensor:
    """Average the cross-entropy over all pairs that count, so that the number of candidates does not matter.

    References: methods §4.4, §11 (pairs that are masked out are not part of the mean).
    """
    total = binary_cross_entropy(scores, targets, counted, weights) * len(scores)
    return total / (scores.numel() if counted is None else counted.sum().clamp_min(1))


def decoupled_softmax(scores: Tensor, targets: Tensor, counted: Tensor | None, weights: Tensor) -> Tensor:
    """Let each positive compete with all negatives but not with the other positives; soft targets weigh the positives.

    -(1 / Σ_p y_p) Σ_p y_p log [ e^{s_p} / (e^{s_p} + Σ_{n: y_n = 0} e^{s_n}) ].  References: [DEXML]; methods §4.4, A5.
    """
    wanted = targets > 0 if counted is None else (targets > 0) & counted
    point, label = wanted.nonzero(as_tuple=True)
    strength = targets[point, label]
    sums = torch.zeros_like(weights).index_add_(0, point, strength.to(weights.dtype))
    share = strength * (weights / sums.clamp_min(1e-6))[point] / len(scores)
    loss: Tensor = _Decoupled.apply(
        scores if scores.dtype == torch.float64 else scores.float(), point, label, share, counted
    )  # type: ignore[no-untyped-call]
    return loss


class _Decoupled(torch.autograd.Function):
    """Σ_p share_p log(1 + Σ_n e^{s_n - s_p}), its gradient in closed form: few passes over the scores, not dozens."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, point: Tensor, label: Tensor, share: Tensor, counted: Tensor | None
    ) -> Tensor:
        """Keep e^{s_n} of the negatives, scaled by the largest of each point."""
        others = scores.clone()
        others[point, label] = -torch.inf
        if counted is not None:
            others.masked_fill_(~counted, -torch.inf)
        largest = others.amax(dim=1)
        largest = torch.where(largest.isfinite(), largest, 0)
        total = others.sub_(largest[:, None]).exp_().sum(dim=1)  # (B,)
        gap = total.log()[point] + largest[point] - scores[point, label]
        wrong = share * gap.sigmoid()
        factor = torch.zeros_like(total).index_add_(0, point, wrong) / total.clamp_min(1e-30)
        ctx.save_for_backward(others, factor, point, label, wrong)
        return (share * torch.nn.functional.softplus(gap)).sum()

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Push negatives down by their part, and positives up."""
        others, factor, point, label, wrong = ctx.saved_tensors
        gradient = others * (factor * given)[:, None]
        gradient[point, label] = -wrong * given
        return gradient, None, None, None, None


def both(scores: Tensor, targets: Tensor, counted: Tensor | None, weights: Tensor) -> Tensor:
    """Add the decoupled softmax and the summed cross-entropy."""
    return decoupled_softmax(scores, targets, counted, weights) + binary_cross_entropy(
        scores, targets, counted, weights
    )


LOSSES = {
    "bce": binary_cross_entropy,
    "bce_mean": binary_cross_entropy_mean,
    "decoupled": decoupled_softmax,
    "decoupled_bce": both,
}
