"""SEVERAL LABEL VECTORS → ONE, in torch: gates for each dimension, or attention."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Σ_k a_k · v_k with a = softmax(V [A relu(drop(v_1)), …]). References: [ECLARE]; methods §5.6."""

    def __init__(self, count: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.layer = spectral_norm(nn.Linear(width, width))
        self.shares = spectral_norm(nn.Linear(count * width, count, bias=False))

    def forward(self, vectors: Sequence[Tensor], step: Step) -> Tensor:
        """Combine vectors (K, D) each."""
        stacked = torch.stack(list(vectors), dim=1)  # (K, S, D)
        inner = self.layer(functional.relu(step.drop(stacked.flatten(1), self.dropout)).view_as(stacked))
        attention = self.shares(inner.flatten(1)).softmax(dim=1)
        combined: Tensor = (attention[:, :, None] * stacked).sum(dim=1)
        return combined

    @torch.no_grad()
    def freeze(self) -> FrozenAttention:
        """Give the layers as arrays."""
        from longtail.encoders.towers.residual import layer_arrays  # noqa: PLC0415

        weight, bias = layer_arrays(self, self.layer)
        return FrozenAttention(weight, bias, layer_arrays(self, self.shares)[0])
