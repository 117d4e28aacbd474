"""TF-IDF BAG → VECTOR: a weighted sum of word vectors, and a residual layer that starts as the identity."""

from __future__ import annotations

from typing import cast

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from longtail.encoders.bag import Bag
from longtail.types import Floats


class BagEncoder(nn.Module):
    """Sum word vectors and pass them through the residual layer."""

    def __init__(self, settings: Bag) -> None:
        super().__init__()
        self.settings = settings
        self.layer: nn.Linear | None = None
        if settings.residual:
            layer = nn.Linear(settings.dim, settings.dim)
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
            self.layer = cast(
                nn.Linear, spectral_norm(layer)
            )  # after the start: what is written later does not persist

    def forward(self, bags: sp.csr_array, words: NDArray[np.int64], vectors: Tensor) -> Tensor:
        """Encode bags (B, V) whose words, sorted, have these vectors (W, D)."""
        places = torch.from_numpy(np.searchsorted(words, bags.indices))
        starts = torch.from_numpy(bags.indptr[:-1].astype(np.int64))
        weights = torch.from_numpy(bags.data)
        vector = functional.embedding_bag(places, vectors, starts, mode="sum", per_sample_weights=weights)
        vector = functional.relu(vector) if self.settings.relu else vector
        vector = functional.dropout(vector, self.settings.dropout, self.training)
        if self.layer is None:
            return vector
        return functional.dropout(functional.relu(self.layer(vector)), self.settings.dropout, self.training) + vector

    @torch.no_grad()
    def arrays(self) -> dict[str, Floats]:
        """Give the residual layer as plain arrays, for scoring without torch."""
        if self.layer is None:
            return {}
        self.layer.eval()
        return {"layer.weight": self.layer.weight.numpy().copy(), "layer.bias": self.layer.bias.numpy().copy()}
