"""VECTORS → VECTORS: layers before label rows; as arrays they need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import erf

from longtail.arrays import Array, checked
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
    activation: Activation = "relu"  # of the layer
    norm: Literal["spectral", "batchnorm"] = "spectral"  # spectral norm of the layer, or a batch norm behind it
    radius: bool = False  # whether a learnt number, 1 at the start, scales the layer, as in SiameseXML
    dropout: float = Field(default=0.5, ge=0, lt=1)  # behind the layer with relu, before it with gelu

    def build(self, width: int, network: Network) -> BuiltHead:
        """Make the layer in torch."""
        from longtail.encoders.towers.residual import ResidualLayer  # noqa: PLC0415  (torch)

        return ResidualLayer(self, width, network.half)

    def open(self, arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> FrozenResidual:
        """Find the arrays of a model file."""
        return FrozenResidual(*opened(arrays, name, width, ("scale", "shift")), self.activation)


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
        inner = activated(inner, self.activation)
        return np.asarray(inner * self.scale + self.shift + vectors, np.float32)

    def operations(self) -> int:
        """Count the operations for one vector."""
        return 2 * self.weight.size

    def arrays(self, name: str) -> Arrays:
        """Name the arrays for a model file."""
        arrays = {"weight": self.weight, "bias": self.bias, "scale": self.scale, "shift": self.shift}
        return {f"{name}.{key}": value for key, value in arrays.items()}


@record
class Gated(Head):
    """a · A drop(activation(v)) + b · v, where A is spectral-normed and the identity at the start.

    With the gates "each" a and b are sigmoids of a learnt number for each dimension, which start at one half (DECAF,
    InceptionXML-LF); with "one" a is one learnt number that starts at 1, and b is 1 (ECLARE). `last` adds a relu and
    dropout, as points have them. References: methods §5.3, §5.5, §5.6.
    """

    part: ClassVar[str] = "gated"
    activation: Activation = "relu"  # before the layer
    gates: Literal["each", "one"] = "each"  # a gate for each dimension, or one number
    dropout: float = Field(default=0.2, ge=0, lt=1)  # before the layer
    last: bool = False  # whether a relu and dropout come behind it

    def build(self, width: int, network: Network) -> BuiltHead:
        """Make the layer in torch."""
        from longtail.encoders.towers.residual import GatedLayer  # noqa: PLC0415  (torch)

        return GatedLayer(self, width)

    def open(self, arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> FrozenGated:
        """Find the arrays of a model file."""
        return FrozenGated(*opened(arrays, name, width, ("inner", "outer")), self.activation, self.last)


@dataclass(frozen=True, eq=False)
class FrozenGated:
    """inner · (A activation(v) + bias) + outer · v, and a relu if it is the last."""

    weight: Floats  # (D, D)
    bias: Floats
    inner: Floats
    outer: Floats
    activation: Activation
    last: bool

    def __call__(self, vectors: Floats) -> Floats:
        """Pass vectors (N, D), or one (D,), through."""
        active = activated(vectors.copy(), self.activation)
        layer = product(active, self.weight.T) if vectors.ndim == 2 else active @ self.weight.T
        out = np.asarray(self.inner * (layer + self.bias) + self.outer * vectors, np.float32)
        return np.maximum(out, 0, out=out) if self.last else out

    def operations(self) -> int:
        """Count the operations for one vector."""
        return 2 * self.weight.size

    def arrays(self, name: str) -> Arrays:
        """Name the arrays for a model file."""
        arrays = {"weight": self.weight, "bias": self.bias, "inner": self.inner, "outer": self.outer}
        return {f"{name}.{key}": value for key, value in arrays.items()}


@record
class Project(Head):
    """A v + b of another dimension, through tanh if it is asked for. References: [UniDEC] §2.3; methods §5.16."""

    part: ClassVar[str] = "project"
    dim: int = Field(default=256, ge=1, le=8192)  # of what comes out
    tanh: bool = False  # whether the result passes a tanh
    dropout: float = Field(default=0.1, ge=0, lt=1)  # behind the layer

    def out_width(self, width: int) -> int:
        """Return the dimension of what comes out."""
        return self.dim

    def build(self, width: int, network: Network) -> BuiltHead:
        """Make the layer in torch."""
        from longtail.encoders.towers.residual import ProjectLayer  # noqa: PLC0415  (torch)

        return ProjectLayer(self, width)

    def open(self, arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> FrozenProject:
        """Find the arrays of a model file."""
        schema = Array(f"{name}.weight", (self.dim, width)), Array(f"{name}.bias", (self.dim,))
        weight, bias = checked(arrays, schema)
        return FrozenProject(weight, bias, self.tanh)


@dataclass(frozen=True, eq=False)
class FrozenProject:
    """A v + b, or its tanh."""

    weight: Floats  # (E, D)
    bias: Floats  # (E,)
    tanh: bool

    def __call__(self, vectors: Floats) -> Floats:
        """Pass vectors (N, D), or one (D,), through."""
        out = product(vectors, self.weight.T) if vectors.ndim == 2 else vectors @ self.weight.T
        out += self.bias
        return np.tanh(out, out=out) if self.tanh else out

    def operations(self) -> int:
        """Count the operations for one vector."""
        return 2 * int(self.weight.size)

    def arrays(self, name: str) -> Arrays:
        """Name the arrays for a model file."""
        return {f"{name}.weight": self.weight, f"{name}.bias": self.bias}


def opened(
    arrays: Mapping[str, NDArray[Any]], name: str, width: int, more: tuple[str, str]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Find a square layer of a model file, and two vectors more, if they fit."""
    vectors = [Array(f"{name}.{key}", (width,)) for key in ("bias", *more)]
    weight, bias, *rest = checked(arrays, [Array(f"{name}.weight", (width, width)), *vectors])
    return weight, bias, rest[0], rest[1]


def activated(values: Floats, activation: Activation) -> Floats:
    """Apply relu, in place, or gelu."""
    if activation == "relu":
        return np.maximum(values, 0, out=values)
    return np.asarray(values * (0.5 + 0.5 * erf(values / np.float32(np.sqrt(2)))), np.float32)
