"""VECTORS → VECTORS: the residual layer before label rows, as arrays that need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from longtail.errors import ModelError
from longtail.machine import product
from longtail.types import Floats

Arrays: TypeAlias = dict[str, NDArray[Any]]
Activation = Literal["relu", "gelu"]


@dataclass(frozen=True, eq=False)
class Head:
    """A residual layer: activation(A v + b) · scale + shift + v."""

    weight: Floats  # (D, D)
    bias: Floats
    scale: Floats
    shift: Floats
    activation: Activation

    def __call__(self, vectors: Floats) -> Floats:
        """Pass vectors (N, D), or one (D,), through."""
        inner = product(vectors, self.weight.T) if vectors.ndim == 2 else vectors @ self.weight.T
        inner += self.bias
        if self.activation == "relu":
            np.maximum(inner, 0, out=inner)
        else:
            inner = inner * (0.5 + 0.5 * erf(inner / np.float32(np.sqrt(2))))
        return np.asarray(inner * self.scale + self.shift + vectors, np.float32)

    def arrays(self, name: str) -> Arrays:
        """Name the arrays for a model file."""
        held = {"weight": self.weight, "bias": self.bias, "scale": self.scale, "shift": self.shift}
        return {f"{name}.{key}": value for key, value in held.items()} | {f"{name}.{self.activation}": np.ones(1)}

    @classmethod
    def of_arrays(cls, held: Mapping[str, NDArray[Any]], name: str) -> Head | None:
        """Find the arrays of a model file, if it has them."""
        if f"{name}.weight" not in held:
            return None
        activation: Activation = "relu" if f"{name}.relu" in held else "gelu"
        weight, bias, scale, shift = (held[f"{name}.{key}"] for key in ("weight", "bias", "scale", "shift"))
        head = cls(weight, bias, scale, shift, activation)
        dim = len(head.bias)
        if head.weight.shape != (dim, dim) or head.scale.shape != (dim,) or head.shift.shape != (dim,):
            raise ModelError(f"the layer {name} has a shape that does not fit; train again")
        return head
