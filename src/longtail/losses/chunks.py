"""The cross-entropy over all labels as one operation that makes its gradient on the way there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longtail.parts import Factors
from longtail.types import LabelMatrix

Pairs = tuple[LabelMatrix, LabelMatrix]  # targets and excluded, (B, K) each


def chunked_cross_entropy(factors: Factors, pairs: Pairs, weights: Tensor, chunk: int) -> Tensor:
    """Compute Σ_i w_i Σ_l bce(v_i · r_l + b_l, y_il) / B, without the excluded pairs."""
    bias = factors.rows.new_zeros(len(factors.rows)) if factors.bias is None else factors.bias
    given = (factors.vectors, factors.rows, bias)
    vectors, rows, bias = (part if part.dtype == torch.float64 else part.float() for part in given)
    with torch.autocast(rows.device.type, enabled=False):  # gradients are summed in full precision
        loss: Tensor = _Chunked.apply(vectors, rows, bias, pairs, weights, chunk)  # type: ignore[no-untyped-call]
    return loss


class _Chunked(torch.autograd.Function):
    """Scores, loss and gradients of a chunk of labels at a time."""

    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, rows: Tensor, bias: Tensor, pairs: Pairs, weights: Tensor, chunk: int
    ) -> Tensor:
        """Add up loss and gradients."""
        share = (weights / len(vectors))[:, None]
        total, of_vectors = vectors.new_zeros(()), torch.zeros_like(vectors)
        of_rows, of_bias = torch.empty_like(rows), torch.empty_like(bias)
        by_label = [part.tocsc() for part in pairs]
        for start in range(0, len(rows), chunk):
            some = slice(start, min(start + chunk, len(rows)))
            scores = torch.addmm(bias[some], vectors, rows[some].T)
            targets, excluded = (torch.from_numpy(part[:, some].toarray()).to(scores) for part in by_label)
            counted = share * (excluded == 0)
            each = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
            total += (each * counted).sum()
            gradient = scores.sigmoid_().sub_(targets).mul_(counted)
            of_vectors.addmm_(gradient, rows[some])
            torch.mm(gradient.T, vectors, out=of_rows[some])
            of_bias[some] = gradient.sum(dim=0)
        ctx.save_for_backward(of_vectors, of_rows, of_bias)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Give the gradients that are there already."""
        return *(gradient * upstream for gradient in ctx.saved_tensors), None, None, None
