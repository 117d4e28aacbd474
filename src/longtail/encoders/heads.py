"""VECTORS → VECTORS: the residual layer before label rows; as arrays it needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import erf

from longtail.errors import ModelError
from longtail.machine import product
from longtail.parts import Arrays, BuiltHead, Head, Network
from longtail.records import record
from longtail.types import Floats

Activation = Literal["relu", "gelu"]


@record
class Residual(Head):
    """v + activation(A v + b), spectral-normed and the identity at the start (relu), or followed by a batch norm.

    With `relu` dropout comes behind the layer, as in Astec; with `gelu` before it, as in InceptionXML.
    """

    part: ClassVar[str] = "residual"
    activation: Activation = "relu"
    norm: Literal["spectral", "batchnorm"] = "spectral"
    dropout: float = Field(default=0.5, ge=0, lt=1)

    def build(self, width: int, network: Network) -> BuiltHead:
        """Make the layer in torch."""
        from longtail.encoders.towers.residual import ResidualLayer  # noqa: PLC0415  (torch)

        return ResidualLayer(self, width)

    def open(self, arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> FrozenResidual:
        """Find the arrays of a model file."""
        weight, bias, scale, shift = (arrays[f"{name}.{key}"] for key in ("weight", "bias", "scale", "shift"))
        if weight.shape != (width, width) or any(part.shape != (width,) for part in (bias, scale, shift)):
            raise ModelError(f"the layer {name} has a shape that does not fit; train again")
        return FrozenResidual(weight, bias, scale, shift, self.activation)


@dataclass(frozen=True, eq=False)
class FrozenResidual:
    """activation(A v + b) · scale + shift + v."""

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
        arrays = {"weight": self.weight, "bias": self.bias, "scale": self.scale, "shift": self.shift}
        return {f"{name}.{key}": value for key, value in arrays.items()}
