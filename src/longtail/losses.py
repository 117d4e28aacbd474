"""SCORES × TARGETS → LOSS: pure functions on a batch and its pool; soft targets everywhere.

`scores` (B, K) are logits, `targets` (B, K) lie in [0, 1], `counted` (B, K) is False where a pair must not be learnt
from (the point is itself that label), `weights` (B,) weigh the points. The sum over points is divided by B.
References: methods §4.4.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

NEVER = -1e9


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
    if counted is not None:
        scores, targets = scores.masked_fill(~counted, NEVER), targets * counted
    negatives = scores.masked_fill(targets > 0, NEVER).logsumexp(dim=1)  # (B,)
    point, label = (targets > 0).nonzero(as_tuple=True)
    positive = scores[point, label]
    strength = targets[point, label]
    share = strength * (weights / targets.sum(dim=1).clamp_min(1e-6))[point]
    return (share * (torch.logaddexp(positive, negatives[point]) - positive)).sum() / len(scores)


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
