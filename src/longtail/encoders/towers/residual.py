"""The residual layer in torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from longtail.encoders.heads import FrozenResidual, Residual
from longtail.encoders.towers.norm import BatchNorm
from longtail.parts import Step


class ResidualLayer(nn.Module):
    """A residual layer, spectral-normed and the identity at the start, or followed by a batch norm."""

    def __init__(self, settings: Residual, dim: int) -> None:
        super().__init__()
        self.settings = settings
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

    def forward(self, vectors: Tensor, step: Step) -> Tensor:
        """Pass vectors (B, D) through."""
        share = self.settings.dropout
        if self.settings.activation == "relu":
            inner = functional.relu(self.layer(vectors))
        else:
            inner = functional.gelu(self.layer(step.drop(vectors, share)))
        if self.norm is not None:
            inner = self.norm(inner)
        return (step.drop(inner, share) if self.settings.activation == "relu" else inner) + vectors

    @torch.no_grad()
    def freeze(self) -> FrozenResidual:
        """Give the layer as plain arrays, for scoring without torch."""
        training = self.training
        self.eval()
        weight, bias = (array.detach().cpu().numpy().copy() for array in (self.layer.weight, self.layer.bias))
        self.train(training)
        scale, shift = np.ones_like(bias), np.zeros_like(bias)
        if self.norm is not None:
            state = self.norm.state_dict()
            scale = (state["weight"] / (state["running_var"] + self.norm.eps).sqrt()).cpu().numpy()
            shift = state["bias"].cpu().numpy() - state["running_mean"].cpu().numpy() * scale
        return FrozenResidual(weight, bias, scale, shift, self.settings.activation)
