"""Orthogonal attention, a projection of words to channels, and convolutions along the embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from longtail.encoders.inception import Inception
from longtail.encoders.towers.norm import BatchNorm


class InceptionLayers(nn.Module):
    """The layers of the inception encoder."""

    order: Tensor

    def __init__(self, settings: Inception, *, seed: int) -> None:
        super().__init__()
        self.settings = settings
        words, dim, width = settings.max_tokens, settings.dim, settings.channels
        if settings.attention:
            over_words, over_dims = nn.Linear(words, words, bias=False), nn.Linear(dim, dim, bias=False)
            nn.init.xavier_normal_(over_words.weight)
            nn.init.xavier_normal_(over_dims.weight)
            self.over_words, self.over_dims = spectral_norm(over_words), spectral_norm(over_dims)
            self.gates = nn.Parameter(torch.zeros(2))  # the attention starts as the identity
        self.project = nn.Linear(words, width)
        kernels = (4, 8, 16)
        branches = [
            nn.Conv1d(width, width, k, stride=4, padding=2 * (k // 4 - 1), padding_mode="circular") for k in kernels
        ]
        self.branches = nn.ModuleList(branches)
        mixture = settings.branches == "mixture"
        if mixture:
            self.route = nn.Linear(width, len(kernels))
            self.mix = nn.Parameter(torch.zeros(2))  # of the branches and of what passes them by: halves at the start
        else:
            self.second = nn.Conv1d(3 * width, width, 16, stride=4)
        layers: list[Any] = [self.project, *branches, self.route if mixture else self.second]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.norms = nn.ModuleList(BatchNorm(n) for n in ((width, width) if mixture else (width, 3 * width, width)))
        order = np.random.default_rng([seed, 4]).permutation(dim) if settings.permute_dims else np.arange(dim)
        self.register_buffer("order", torch.from_numpy(order))

    def attend(self, x: Tensor) -> Tensor:
        """Let words and then dimensions attend to each other; no softmax, as in the paper (B, T, D)."""
        by_words = x @ x.transpose(1, 2) @ self.over_words(x.transpose(1, 2)).transpose(1, 2)
        first = self.gates[0] * by_words + x
        # (U Vᵀ)(W U) with U = firstᵀ, V = xᵀ, grouped as U (Vᵀ (W U)): T² D instead of T D² for two of three products.
        inner = x @ self.over_dims(first).transpose(1, 2)  # (B, T, T)
        attended: Tensor = self.gates[1] * (inner.transpose(1, 2) @ first) + first
        return attended

    def shares(self, x: Tensor) -> Tensor:
        """Decide for each map (B, C, D) how much each branch counts: (B, 3)."""
        shares: Tensor = self.route(x.mean(dim=2)).softmax(dim=1)
        return shares

    def mixed(self, x: Tensor) -> Tensor:
        """Add up the branches of maps (B, C, D), and the maps themselves, averaged: (B, C, D / 4)."""
        shares, (inner, outer) = self.shares(x), self.mix.sigmoid()
        branches = torch.stack([branch(x) for branch in self.branches], dim=1)  # (B, 3, C, D / 4)
        added = (shares[:, :, None, None] * branches).sum(dim=1)
        mixed: Tensor = inner * self.norms[1](functional.gelu(added)) + outer * functional.avg_pool1d(x, 4)
        return mixed

    def forward(self, embedded: Tensor, dropout: float) -> Tensor:
        """Encode (B, T, D) as (B, width); dropout follows torch's own generator."""
        settings = self.settings
        x = embedded[:, :, self.order] if settings.permute_dims else embedded
        x = functional.dropout(x, dropout)
        x = self.attend(x) if settings.attention else x
        x = self.norms[0](functional.gelu(self.project(x.transpose(1, 2)).transpose(1, 2)))  # (B, C, D)
        x = functional.dropout(x, dropout) if settings.drop_projection else x
        if settings.branches == "mixture":
            return functional.dropout(self.mixed(x), dropout).flatten(1)
        x = torch.cat([branch(x) for branch in self.branches], dim=1)  # (B, 3 C, D / 4)
        x = functional.dropout(self.norms[1](functional.gelu(x)), dropout)
        vector: Tensor = self.norms[2](functional.gelu(self.second(x))).flatten(1)
        return vector
