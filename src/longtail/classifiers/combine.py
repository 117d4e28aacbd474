"""SEVERAL LABEL VECTORS → ONE, in torch: gates for each dimension, or attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from longtail.parts import Step
from longtail.scorers.texts import FrozenAttention, FrozenGates


class Gates(nn.Module):
    """Σ_k σ(g_k) · v_k. References: [DECAF]; methods §5.5."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Parameter(torch.zeros(count, width))

    def forward(self, vectors: Sequence[Tensor], step: Step) -> Tensor:
        """Combine vectors (K, D) each."""
        return (self.gates.sigmoid()[:, None] * torch.stack(list(vectors))).sum(dim=0)

    @torch.no_grad()
    def freeze(self) -> FrozenGates:
        """Give the gates as an array."""
        return FrozenGates(self.gates.sigmoid().cpu().numpy().copy())


class Attention(nn.Module):
    """Σ_k a_k · v_k with a = softmax(V [A relu(drop(v_1)) + b, …]). References: [ECLARE]; methods §5.6.

    Nothing stands between A and V, so that V A is computed first: a small product instead of one for every label.
    """

    def __init__(self, count: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.layer: Any = spectral_norm(nn.Linear(width, width))
        self.shares: Any = spectral_norm(nn.Linear(count * width, count, bias=False))

    def forward(self, vectors: Sequence[Tensor], step: Step) -> Tensor:
        """Combine vectors (K, D) each."""
        stacked = torch.stack(list(vectors), dim=1)  # (K, S, D)
        shares, offset = self.product()
        active = functional.relu(step.drop(stacked.flatten(1), self.dropout))
        attention = functional.linear(active, shares, offset).softmax(dim=1)
        combined: Tensor = (attention[:, :, None] * stacked).sum(dim=1)
        return combined

    def product(self) -> tuple[Tensor, Tensor]:
        """Return V A (S, S · D) and V b (S,)."""
        shares: Tensor = self.shares.weight
        parts = shares.view(len(shares), len(shares), -1)  # (S, S, D)
        return (parts @ self.layer.weight).flatten(1), (parts @ self.layer.bias).sum(dim=1)

    @torch.no_grad()
    def freeze(self) -> FrozenAttention:
        """Give the product of the layers as arrays, normed as outside of training."""
        training = self.training
        shares, offset = (part.cpu().numpy().copy() for part in self.eval().product())
        self.train(training)
        return FrozenAttention(shares, offset)
