"""Softmax losses in torch; the decoupled one has its gradient in closed form: few passes over scores, not dozens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def decoupled_softmax(scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
    """Compute -(1 / Σ_p y_p) Σ_p y_p log [ e^{s_p} / (e^{s_p} + Σ_{n: y_n = 0} e^{s_n}) ], averaged over points."""
    point, label, share = shares(targets, mask, weights)
    loss: Tensor = _Decoupled.apply(
        scores if scores.dtype == torch.float64 else scores.float(), point, label, share, mask
    )  # type: ignore[no-untyped-call]
    return loss


class _Decoupled(torch.autograd.Function):
    """Σ_p share_p log(1 + Σ_n e^{s_n - s_p}), its gradient in closed form: few passes over the scores, not dozens."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, point: Tensor, label: Tensor, share: Tensor, mask: Tensor | None) -> Tensor:
        """Keep e^{s_n} of the negatives, scaled by the largest of each point."""
        others = scores.clone()
        others[point, label] = -torch.inf
        if mask is not None:
            others.masked_fill_(~mask, -torch.inf)
        largest = others.amax(dim=1)
        largest = torch.where(largest.isfinite(), largest, 0)
        total = others.sub_(largest[:, None]).exp_().sum(dim=1)  # (B,)
        gap = total.log()[point] + largest[point] - scores[point, label]
        wrong = share * gap.sigmoid()
        factor = torch.zeros_like(total).index_add_(0, point, wrong) / total.clamp_min(1e-30)
        ctx.save_for_backward(others, factor, point, label, wrong)
        return (share * torch.nn.functional.softplus(gap)).sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Push negatives down by their part, and positives up."""
        others, factor, point, label, wrong = ctx.saved_tensors
        gradient = others * (factor * upstream)[:, None]
        gradient[point, label] = -wrong * upstream
        return gradient, None, None, None, None


def supcon(scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
    """Compute -(1 / Σ_p y_p) Σ_p y_p log [ e^{s_p} / Σ_l e^{s_l} ], averaged over points."""
    scores = scores if scores.dtype == torch.float64 else scores.float()
    point, label, share = shares(targets, mask, weights)
    seen = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return (share * (torch.logsumexp(seen, dim=1)[point] - scores[point, label])).sum()


def shares(targets: Tensor, mask: Tensor | None, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positive pairs, points and labels, and what each counts in a mean over points."""
    positive = targets > 0 if mask is None else (targets > 0) & mask
    point, label = positive.nonzero(as_tuple=True)
    strength = targets[point, label]
    sums = torch.zeros_like(weights).index_add_(0, point, strength.to(weights.dtype))
    return point, label, strength * (weights / sums.clamp_min(1e-6))[point] / len(targets)
