"""CHANCE → DROPOUT, from a store of random bytes that is read at random places."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


@lru_cache(maxsize=2)
def stored(seed: int) -> Tensor:
    """Draw the bytes of a seed, once for all stages."""
    return torch.from_numpy(np.random.default_rng([seed, 3]).integers(0, 256, 2**24, np.uint8))


class StoredNoise:
    """Dropout from a store of random bytes: drawing fresh numbers took a third of a step.

    >>> kept = StoredNoise(0).drop(torch.ones(1000, 100), 0.5, np.random.default_rng(0))
    >>> sorted(set(kept.flatten().tolist())), 0.98 < float(kept.mean()) < 1.02
    ([0.0, 2.0], True)
    """

    def __init__(self, seed: int) -> None:
        self.store = stored(seed)

    def drop(self, values: Tensor, share: float, draw: np.random.Generator) -> Tensor:
        """Zero a share of the entries, to within 1/256, and scale the others up."""
        cut, count = round(share * 256), values.numel()
        if cut == 0:
            return values
        if self.store.device != values.device:
            self.store = self.store.to(values.device)
        if count > len(self.store) // 2:
            drawn = torch.from_numpy(draw.integers(0, 256, count, np.uint8)).to(values.device)
        else:
            start = int(draw.integers(0, len(self.store) - count))
            drawn = self.store[start : start + count]
        return values * (drawn.reshape(values.shape) >= cut) * (256 / (256 - cut))
