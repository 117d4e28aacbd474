"""CHANCE → DROPOUT, from a store of random bytes that is read at random places."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.machine import compiles


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

    def drop(
        self, values: Tensor, share: float, draw: np.random.Generator, own: tuple[NDArray[np.int64], int] | None = None
    ) -> Tensor:
        """Zero a share of the entries, to within 1/256, and scale the others up; `own`: of rows of a larger matrix."""
        places, rows = (None, len(values)) if own is None or len(own[0]) != len(values) else own
        cut, count = round(share * 256), rows * math.prod(values.shape[1:])
        if cut == 0:
            return values
        if self.store.device != values.device:
            self.store = self.store.to(values.device)
        if count > len(self.store) // 2:
            drawn = torch.from_numpy(draw.integers(0, 256, count, np.uint8)).to(values.device)
        else:
            start = int(draw.integers(0, len(self.store) - count))
            drawn = self.store[start : start + count]
        if places is not None:
            drawn = drawn.reshape(rows, -1)[torch.from_numpy(places).to(drawn.device)].flatten()
        if compiles() and values.device.type == "cpu" and values.dtype == torch.float32:
            kept: Tensor = _Dropped.apply(values, drawn, cut)  # type: ignore[no-untyped-call]
            return kept
        return values * (drawn.reshape(values.shape) >= cut) * (256 / (256 - cut))


class _Dropped(torch.autograd.Function):
    """Dropout in one pass, compiled."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, drawn: Tensor, cut: int) -> Tensor:
        """Remember what was drawn."""
        ctx.save_for_backward(drawn)
        ctx.cut = cut
        return _dropped(values.detach(), drawn, cut)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        """Drop the same of the gradient."""
        (drawn,) = ctx.saved_tensors
        return _dropped(upstream, drawn, ctx.cut), None, None


def _dropped(values: Tensor, drawn: Tensor, cut: int) -> Tensor:
    """Zero what was drawn below the cut, and scale the rest up."""
    from longtail import kernels  # noqa: PLC0415  (numba is an extra)

    values = values.contiguous()
    out = torch.empty_like(values)
    flat = (part.reshape(-1).numpy() for part in (values, drawn, out))
    given, chance, kept = flat
    kernels.drop(given, chance, np.uint8(cut), np.float32(256 / (256 - cut)), kept)
    return out
