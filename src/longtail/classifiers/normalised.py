"""Vectors of length one in torch, with the gradient in closed form: half the passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.machine import compiles

SHORTEST = 1e-12  # vectors that are shorter are divided by this


def normalised(vectors: Tensor) -> Tensor:
    """Divide vectors (N, D) by their lengths.

    >>> normalised(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    out: Tensor = _Normalised.apply(vectors)  # type: ignore[no-untyped-call]
    return out


def normalised_sum(rows: Tensor, texts: Tensor, weight: float) -> Tensor:
    """Divide rows and weighted texts (N, D), added up, by their lengths."""
    fit = compiles() and rows.device.type == "cpu" and rows.dtype == texts.dtype == torch.float32
    if not fit:
        return normalised(rows + weight * texts)
    out: Tensor = _NormalisedSum.apply(rows, texts, weight)  # type: ignore[no-untyped-call]
    return out


class _NormalisedSum(torch.autograd.Function):
    """The same in one pass, compiled."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, texts: Tensor, weight: float) -> Tensor:
        """Keep what comes out, and the lengths."""
        from longtail import kernels  # noqa: PLC0415  (numba is an extra)

        out, lengths = torch.empty_like(rows), rows.new_empty(len(rows))
        own, other = (part.detach().contiguous().numpy() for part in (rows, texts))
        kernels.unit_sums(own, other, out.numpy(), lengths.numpy(), np.float32(weight), np.float32(SHORTEST))
        ctx.save_for_backward(out, lengths)
        ctx.weight = weight
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        """Give both their gradients."""
        from longtail import kernels  # noqa: PLC0415  (numba is an extra)

        out, lengths = ctx.saved_tensors
        of_rows, of_texts = torch.empty_like(out), torch.empty_like(out)
        gradient, weight = upstream.contiguous().numpy(), np.float32(ctx.weight)
        kernels.unit_sums_back(gradient, out.numpy(), lengths.numpy(), of_rows.numpy(), of_texts.numpy(), weight)
        return of_rows, of_texts, None


class _Normalised(torch.autograd.Function):
    """y = v / |v|, whose gradient is (g - y (g · y)) / |v|."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        """Keep what comes out, and the lengths."""
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min_(SHORTEST)
        out: Tensor = vectors / lengths
        ctx.save_for_backward(out, lengths)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        """Take the part along the vector away, in place where it is our own."""
        out, lengths = ctx.saved_tensors
        along = torch.einsum("nd,nd->n", upstream, out)[:, None]
        gradient: Tensor = torch.addcmul(upstream, out, along, value=-1).div_(lengths)
        return gradient
