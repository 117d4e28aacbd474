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


class Noise:
    """Dropout from a store of random bytes that is read at random places: drawing fresh numbers took a third of a step.

    >>> kept = Noise(0).drop(torch.ones(1000, 100), 0.5, np.random.default_rng(0))
    >>> sorted(set(kept.flatten().tolist())), 0.98 < float(kept.mean()) < 1.02
    ([0.0, 2.0], True)
    """

    def __init__(self, seed: int) -> None:
        self.store = torch.from_numpy(np.random.default_rng([seed, 3]).integers(0, 256, 2**24, np.uint8))

    def drop(self, values: Tensor, share: float, draw: np.random.Generator) -> Tensor:
        """Zero a share of the entries, to within 1/256, and scale the others up."""
        cut, count = round(share * 256), values.numel()
        if cut == 0:
            return values
        if count > len(self.store) // 2:
            drawn = torch.from_numpy(draw.integers(0, 256, count, np.uint8))
        else:
            start = int(draw.integers(0, len(self.store) - count))
            drawn = self.store[start : start + count]
        return values * (drawn.reshape(values.shape) >= cut) * (256 / (256 - cut))


class BagEncoder(nn.Module):
    """Sum word vectors and pass them through the residual layer."""

    def __init__(self, settings: Bag, *, seed: int) -> None:
        super().__init__()
        self.settings, self.noise = settings, Noise(seed)
        self.layer: nn.Linear | None = None
        if settings.residual:
            layer = nn.Linear(settings.dim, settings.dim)
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
            self.layer = cast(
                nn.Linear, spectral_norm(layer)
            )  # after the start: what is written later does not persist

    def forward(
        self, bags: sp.csr_array, words: NDArray[np.int64], vectors: Tensor, draw: np.random.Generator
    ) -> Tensor:
        """Encode bags (B, V) whose words, sorted, have these vectors (W, D), with dropout."""
        places = torch.from_numpy(np.searchsorted(words, bags.indices))
        starts = torch.from_numpy(bags.indptr[:-1].astype(np.int64))
        weights = torch.from_numpy(bags.data)
        vector = functional.embedding_bag(places, vectors, starts, mode="sum", per_sample_weights=weights)
        vector = functional.relu(vector) if self.settings.relu else vector
        vector = self.noise.drop(vector, self.settings.dropout, draw)
        if self.layer is None:
            return vector
        return self.noise.drop(functional.relu(self.layer(vector)), self.settings.dropout, draw) + vector

    @torch.no_grad()
    def arrays(self) -> dict[str, Floats]:
        """Give the residual layer as plain arrays, for scoring without torch."""
        if self.layer is None:
            return {}
        self.layer.eval()
        return {"layer.weight": self.layer.weight.numpy().copy(), "layer.bias": self.layer.bias.numpy().copy()}
