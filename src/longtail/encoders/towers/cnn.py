"""Windows of words, the maximum over stretches of the text, and a narrow layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from longtail.encoders.cnn import Cnn


class CnnLayers(nn.Module):
    """The layers of the conventional CNN."""

    def __init__(self, settings: Cnn) -> None:
        super().__init__()
        self.settings = settings
        self.windows = nn.ModuleList(
            nn.Conv1d(settings.dim, settings.filters, size, padding=size // 2) for size in settings.kernel_sizes
        )
        self.narrow = nn.Linear(settings.filters * len(settings.kernel_sizes) * settings.pools, settings.width)

    def forward(self, embedded: Tensor, dropout: float) -> Tensor:
        """Encode (B, T, D) as (B, width)."""
        x = functional.dropout(embedded, dropout and self.settings.embedding_dropout).transpose(1, 2)
        features = [functional.relu(window(x)) for window in self.windows]
        pooled = [functional.adaptive_max_pool1d(part, self.settings.pools).flatten(1) for part in features]
        vector = functional.relu(self.narrow(torch.cat(pooled, dim=1)))
        return functional.dropout(vector, dropout)
