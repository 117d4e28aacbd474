"""The layers before label rows in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from longtail.encoders.heads import FrozenGated, FrozenProject, FrozenResidual, Gated, Project, Residual
from longtail.encoders.towers.norm import BatchNorm
from longtail.parts import Step
from longtail.types import Floats


class ResidualLayer(nn.Module):
    """A residual layer, spectral-normed and the identity at the start, or followed by a batch norm."""

    def __init__(self, settings: Residual, dim: int, half: torch.dtype | None = None) -> None:
        super().__init__()
        self.settings, self.quick = settings, half  # what is multiplied in training, if not in full precision
        layer = nn.Linear(dim, dim)
        if settings.activation == "relu":
            nn.init.eye_(layer.weight)
        else:
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        batchnorm = settings.norm == "batchnorm"
        self.norm = BatchNorm(dim) if batchnorm else None
        # Normed after the start: what is written into the weight later does not persist.
        if not batchnorm:
            spectral_norm(layer)
        self.layer = layer
        self.radius = nn.Parameter(torch.ones(1)) if settings.radius else None

    def _layer(self, vectors: Tensor) -> Tensor:
        """Apply the layer, scaled if it has a radius."""
        if self.quick is None or not self.training:
            out: Tensor = self.layer(vectors)
        else:
            out = functional.linear(vectors.to(self.quick), self.layer.weight.to(self.quick)).to(vectors.dtype)
            out = out + self.layer.bias
        return out if self.radius is None else self.radius * out

    def forward(self, vectors: Tensor, step: Step) -> Tensor:
        """Pass vectors (B, D) through."""
        share = self.settings.dropout
        if self.settings.activation == "relu":
            inner = functional.relu(self._layer(vectors))
        else:
            inner = functional.gelu(self._layer(step.drop(vectors, share)))
        if self.norm is not None:
            inner = self.norm(inner)
        return (step.drop(inner, share) if self.settings.activation == "relu" else inner) + vectors

    @torch.no_grad()
    def freeze(self) -> FrozenResidual:
        """Give the layer as plain arrays, for scoring without torch."""
        weight, bias = layer_arrays(self, self.layer)
        if self.radius is not None:
            radius = np.float32(self.radius.item())
            weight, bias = radius * weight, radius * bias
        scale, shift = np.ones_like(bias), np.zeros_like(bias)
        if self.norm is not None:
            state = self.norm.state_dict()
            scale = (state["weight"] / (state["running_var"] + self.norm.eps).sqrt()).cpu().numpy()
            shift = state["bias"].cpu().numpy() - state["running_mean"].cpu().numpy() * scale
        return FrozenResidual(weight, bias, scale, shift, self.settings.activation)


class GatedLayer(nn.Module):
    """A residual layer with gates, spectral-normed and the identity at the start."""

    def __init__(self, settings: Gated, dim: int) -> None:
        super().__init__()
        self.settings = settings
        layer = nn.Linear(dim, dim)
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
        self.layer = spectral_norm(layer)
        each = settings.gates == "each"
        self.inner = nn.Parameter(torch.zeros(dim) if each else torch.ones(1))
        self.outer = nn.Parameter(torch.zeros(dim)) if each else None

    def gates(self) -> tuple[Tensor, Tensor | float]:
        """Return what the layer and what passes it by are multiplied with."""
        return (self.inner, 1.0) if self.outer is None else (self.inner.sigmoid(), self.outer.sigmoid())

    def forward(self, vectors: Tensor, step: Step) -> Tensor:
        """Pass vectors (B, D) through."""
        settings, (inner, outer) = self.settings, self.gates()
        active = functional.relu(vectors) if settings.activation == "relu" else functional.gelu(vectors)
        out = inner * self.layer(step.drop(active, settings.dropout)) + outer * vectors
        return step.drop(functional.relu(out), settings.dropout) if settings.last else out

    @torch.no_grad()
    def freeze(self) -> FrozenGated:
        """Give the layer as plain arrays, for scoring without torch."""
        weight, bias = layer_arrays(self, self.layer)
        gates = [torch.as_tensor(gate).expand(len(bias)).cpu().numpy().astype(np.float32) for gate in self.gates()]
        return FrozenGated(weight, bias, gates[0].copy(), gates[1].copy(), self.settings.activation, self.settings.last)


class ProjectLayer(nn.Module):
    """A layer of another dimension, whose rows are orthogonal at the start: it keeps angles as well as it can."""

    def __init__(self, settings: Project, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.layer = nn.Linear(width, settings.dim)
        nn.init.orthogonal_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, vectors: Tensor, step: Step) -> Tensor:
        """Pass vectors (B, D) through."""
        out = self.layer(vectors)
        return step.drop(out.tanh() if self.settings.tanh else out, self.settings.dropout)

    @torch.no_grad()
    def freeze(self) -> FrozenProject:
        """Give the layer as plain arrays, for scoring without torch."""
        weight, bias = layer_arrays(self, self.layer)
        return FrozenProject(weight, bias, self.settings.tanh)


@torch.no_grad()
def layer_arrays(module: nn.Module, layer: Any) -> tuple[Floats, ...]:
    """Return the weight, normed as it is used outside of training, and the bias of a layer, if it has one."""
    training = module.training
    module.eval()
    parts = [part for part in (layer.weight, layer.bias) if part is not None]
    arrays = tuple(part.detach().cpu().numpy().copy() for part in parts)
    module.train(training)
    return arrays
