"""Vectors of length one in torch, with the gradient in closed form: half the passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SHORTEST = 1e-12  # vectors that are shorter are divided by this


def normalised(vectors: Tensor) -> Tensor:
    """Divide vectors (N, D) by their lengths.

    >>> normalised(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    out: Tensor = _Normalised.apply(vectors)  # type: ignore[no-untyped-call]
    return out


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
