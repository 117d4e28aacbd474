"""Softmax losses in torch, their gradients in closed form: few passes over the scores, not dozens.

A kernel turns scores (B, K) into their gradient, in place, and returns the loss. Where scores are products, blocks of
points are scored, turned and multiplied back one after the other, so that their scores never leave the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longtail.labels.blocks import edge_rows
from longtail.parts import Factors
from longtail.shards import Group
from longtail.types import LabelMatrix, without

SCORES = 2**18  # that are made at once
SHARED = 2**24  # the same where processes share labels: they tell each other something about every block
ROUND = 64  # what sizes are rounded to in half precision
Positives = tuple[Tensor, Tensor, Tensor]  # points, labels, and what each pair counts in a mean over points
Kernel = Callable[[Tensor, Positives, Group], Tensor]


def decoupled(scores: Tensor, positives: Positives, group: Group) -> Tensor:
    """Compute Σ_p share_p log(1 + Σ_n e^{s_n - s_p}) and turn the scores into its gradient; -inf is no negative.

    A group of processes has a part of the labels each, and the loss of its own positives.
    """
    point, label, share = positives
    own = scores[point, label]
    scores[point, label] = -torch.inf
    largest, total = _exponentials(scores, group)
    gap = total.log()[point] + largest[point] - own
    wrong = share * gap.sigmoid()
    pushed = group.sum_(torch.zeros_like(total).index_add_(0, point, wrong))
    scores.mul_((pushed / total.clamp_min(1e-30))[:, None])
    scores[point, label] = -wrong
    return (share * functional.softplus(gap)).sum()


def supcon(scores: Tensor, positives: Positives, group: Group) -> Tensor:
    """Compute Σ_p share_p log(Σ_l e^{s_l - s_p}) and turn the scores into its gradient; -inf is not among them."""
    point, label, share = positives
    own = scores[point, label]
    largest, total = _exponentials(scores, group)
    each = total.log()[point] + largest[point] - own
    pushed = group.sum_(torch.zeros_like(total).index_add_(0, point, share))
    scores.mul_((pushed / total.clamp_min(1e-30))[:, None])
    scores[point, label] -= share
    return (share * each).sum()


def _exponentials(scores: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Turn scores into e^{s - largest}; return the largest of each point and the sum, over the labels of the group."""
    largest = scores.amax(dim=1) if scores.shape[1] else scores.new_full((len(scores),), -torch.inf)
    group.max_(largest)
    largest = torch.where(largest.isfinite(), largest, 0)
    return largest, group.sum_(scores.sub_(largest[:, None]).exp_().sum(dim=1))


def softmax_of_scores(
    kernel: Kernel, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor, group: Group
) -> Tensor:  # fmt: skip
    """Compute the loss of scores, averaged over points."""
    positive = targets > 0 if mask is None else (targets > 0) & mask
    point, label = positive.nonzero(as_tuple=True)
    positives = _shares(point, label, targets[point, label], weights, group)
    loss: Tensor = _OfScores.apply(_full(scores), mask, positives, kernel, group)  # type: ignore[no-untyped-call]
    return loss


def softmax_of_rows(
    kernel: Kernel, factors: Factors, targets: LabelMatrix, excluded: LabelMatrix, weights: Tensor, group: Group
) -> Tensor:  # fmt: skip
    """Compute the loss of what scores are the products of, averaged over points."""
    device, kept = factors.rows.device, without(targets, excluded) if excluded.nnz else targets
    point, label, hidden, unseen = (
        torch.from_numpy(part.astype("int64")).to(device)
        for matrix in (kept, excluded) for part in (edge_rows(matrix), matrix.indices)
    )  # fmt: skip
    strength = torch.from_numpy(kept.data).to(device)
    hidden_pairs, positives = (hidden, unseen), _shares(point, label, strength, weights, group)
    given = [part if part is None else _full(part) for part in (factors.vectors, factors.rows, factors.bias)]
    mixed = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    with torch.autocast(device.type, enabled=False):
        how = kernel, factors.half or mixed, group
        loss: Tensor = _OfRows.apply(*given, hidden_pairs, positives, how)  # type: ignore[no-untyped-call]
    return loss


class _OfScores(torch.autograd.Function):
    """The loss of whole scores."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, mask: Tensor | None, positives: Positives, kernel: Kernel, group: Group
    ) -> Tensor:
        """Keep the gradient."""
        gradient = scores.clone() if mask is None else scores.masked_fill(~mask, -torch.inf)
        loss = kernel(gradient, positives, group)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Give the gradient that is there already."""
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None, None, None, None


class _OfRows(torch.autograd.Function):
    """The loss of products, a block of points at a time."""

    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, rows: Tensor, bias: Tensor | None, hidden: tuple[Tensor, Tensor],
        positives: Positives, how: tuple[Kernel, torch.dtype | None, Group],
    ) -> Tensor:  # fmt: skip
        """Add up loss and gradients."""
        kernel, half, group = how
        total, of_vectors, of_rows = vectors.new_zeros(()), torch.empty_like(vectors), torch.zeros_like(rows)
        of_bias = None if bias is None else torch.zeros_like(bias)
        products = _Products(vectors, rows) if half is None else _HalfProducts(vectors, rows, half)
        most = int(group.max_(torch.tensor(max(len(rows), 1))))
        size = products.points((SCORES if group.alone else SHARED) // most)
        starts = torch.arange(0, len(vectors) + size, size, device=vectors.device)
        ends, hidden_ends = (torch.searchsorted(part, starts).tolist() for part in (positives[0], hidden[0]))
        for place, start in enumerate(range(0, len(vectors), size)):
            block = slice(start, start + size)
            scores = products.scores(block)
            if bias is not None:
                scores += bias
            some = slice(hidden_ends[place], hidden_ends[place + 1])
            scores[hidden[0][some] - start, hidden[1][some]] = -torch.inf
            own = slice(ends[place], ends[place + 1])
            point, label, share = (part[own] for part in positives)
            total += kernel(scores, (point - start, label, share), group)
            products.back(block, scores, of_vectors, of_rows)
            if of_bias is not None:
                of_bias += scores.sum(dim=0)
        ctx.save_for_backward(of_vectors, of_rows, of_bias)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Give the gradients that are there already."""
        parts = ctx.saved_tensors
        if upstream.item() != 1:
            parts = [part if part is None else part * upstream for part in parts]
        return *parts, None, None, None


class _Products:
    """Scores of blocks of points, and what their gradients are multiplied back to."""

    def __init__(self, vectors: Tensor, rows: Tensor) -> None:
        self.vectors, self.rows = vectors, rows

    def points(self, most: int) -> int:
        """Return how many points a block has, at most so many."""
        return max(1, most)

    def scores(self, block: slice) -> Tensor:
        """Score a block of points."""
        return self.vectors[block] @ self.rows.T

    def back(self, block: slice, gradient: Tensor, of_vectors: Tensor, of_rows: Tensor) -> None:
        """Set the gradient of the vectors of a block, and add to that of the rows."""
        of_vectors[block] = gradient @ self.rows
        of_rows.addmm_(gradient.T, self.vectors[block])


class _HalfProducts(_Products):
    """The same in half precision. Sizes are rounded, since code is made for every new one: zeros fill rows up."""

    def __init__(self, vectors: Tensor, rows: Tensor, half: torch.dtype) -> None:
        self.count, self.whole = len(rows), vectors.dtype
        filled = rows.new_empty((-(-max(len(rows), 1) // ROUND) * ROUND, rows.shape[1]), dtype=half)
        filled[: len(rows)], filled[len(rows) :] = rows, 0
        super().__init__(vectors.to(half), filled)

    def points(self, most: int) -> int:
        """Return a rounded number."""
        return max(ROUND, most // ROUND * ROUND)

    def scores(self, block: slice) -> Tensor:
        """Score a block of points, in full precision from here."""
        return super().scores(block)[:, : self.count].to(self.whole)

    def back(self, block: slice, gradient: Tensor, of_vectors: Tensor, of_rows: Tensor) -> None:
        """Multiply back in half precision, add up in full."""
        filled = self.rows.new_empty((len(gradient), len(self.rows)))
        filled[:, : self.count], filled[:, self.count :] = gradient, 0
        of_vectors[block] = filled @ self.rows
        of_rows += (filled.T @ self.vectors[block])[: self.count]


def _shares(point: Tensor, label: Tensor, strength: Tensor, weights: Tensor, group: Group) -> Positives:
    """Return the positive pairs with what each counts in a mean over points."""
    sums = group.sum_(torch.zeros_like(weights).index_add_(0, point, strength.to(weights.dtype)))
    return point, label, strength * (weights / sums.clamp_min(1e-6))[point] / len(weights)


def _full(values: Tensor) -> Tensor:
    """Return the values in full precision."""
    return values if values.dtype == torch.float64 else values.float()
