"""The second convolution of the inception encoder and a hidden layer, for one objective, in torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from longtail.encoders.convolved import KERNEL, STRIDE, Convolved, FrozenConvolved
from longtail.encoders.towers.norm import BatchNorm
from longtail.encoders.towers.residual import layer_arrays
from longtail.parts import Step


class ConvolvedLayers(nn.Module):
    """A convolution, a batch norm, and a spectral-normed layer that what it takes passes by."""

    def __init__(self, settings: Convolved, width: int) -> None:
        super().__init__()
        self.settings = settings
        channels, inner = settings.channels, settings.inner_width(width)
        self.convolution = nn.Conv1d(channels, channels, KERNEL, stride=STRIDE)
        self.dim = settings.out_width(width)
        layer = nn.Linear(inner, self.dim)
        nn.init.xavier_uniform_(self.convolution.weight)
        nn.init.xavier_uniform_(layer.weight)
        for bias in (self.convolution.bias, layer.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        self.norm = BatchNorm(channels)
        self.layer = spectral_norm(layer)  # after the start: what is written into the weight later does not persist

    def forward(self, vectors: Tensor, step: Step) -> Tensor:
        """Pass flat maps (B, C · T) through."""
        settings = self.settings
        maps = vectors.reshape(len(vectors), settings.channels, vectors.shape[1] // settings.channels)
        inner: Tensor = self.norm(functional.gelu(self.convolution(maps))).flatten(1)
        hidden = functional.gelu(self.layer(step.drop(inner, settings.dropout)))
        kept = inner.shape[1] == self.dim
        return hidden + (inner if kept else functional.adaptive_avg_pool1d(inner, self.dim))

    @torch.no_grad()
    def freeze(self) -> FrozenConvolved:
        """Give the layers as plain arrays, for scoring without torch."""
        state = {name: value.cpu().numpy().copy() for name, value in self.state_dict().items()}
        scale = state["norm.weight"] / (state["norm.running_var"] + self.norm.eps) ** 0.5
        shift = state["norm.bias"] - state["norm.running_mean"] * scale
        weight, bias = layer_arrays(self, self.layer)
        return FrozenConvolved(state["convolution.weight"], state["convolution.bias"], scale, shift, weight, bias)
