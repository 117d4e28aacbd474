"""FLAT MAPS → VECTORS: a convolution and a hidden layer for one objective; as arrays they need no torch.

The mixture of the inception encoder ends with a map of channels. What stood behind it in the encoder, the second
convolution, each objective has for itself here. References: [InceptionXML-LF] appendix A.1; methods §5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field

from longtail.arrays import Array, checked
from longtail.encoders.heads import activated
from longtail.errors import RecipeError
from longtail.machine import product
from longtail.parts import Arrays, BuiltHead, Head, Network
from longtail.records import record
from longtail.types import Floats

KERNEL, STRIDE = 16, 4  # of the convolution


@record
class Convolved(Head):
    """v = norm(gelu(convolution of the map)), flattened; then gelu(A drop(v) + b) + v, averaged to as many entries.

    A is spectral-normed. Where it keeps the dimension, v is added as it is.
    """

    part: ClassVar[str] = "convolved"
    channels: int = Field(default=32, ge=1, le=512)  # of the convolution
    dim: int | None = Field(default=None, ge=1, le=4096)  # of what comes out; None: that of the encoder's words
    dropout: float = Field(default=0.25, ge=0, lt=1)  # before the layer

    def check(self, recipe: Any) -> None:
        """Ask for an encoder whose vector is a map with as many channels."""
        self.inner_width(recipe.encoder.width)
        given = recipe.encoder.fields().get("channels", self.channels)
        if given != self.channels:
            raise RecipeError(
                f"{recipe.name}: the encoder makes maps of {given} channels and the head convolved reads "
                f"{self.channels}: --set head.channels={given}"
            )

    def inner_width(self, width: int) -> int:
        """Return how many entries the convolution of a map leaves."""
        length, rest = divmod(width, self.channels)
        if rest:
            raise RecipeError(
                f"the head convolved cannot cut vectors of {width} entries into {self.channels} channels: "
                "set head.channels to the channels of the encoder"
            )
        if length < KERNEL:
            raise RecipeError(
                f"the head convolved needs maps of at least {KERNEL} places, and vectors of {width} entries have "
                f"{length} for each of {self.channels} channels: --set encoder.branches=mixture, or fewer head.channels"
            )
        return self.channels * ((length - KERNEL) // STRIDE + 1)

    def out_width(self, width: int) -> int:
        """Return the dimension of what comes out."""
        return self.dim or 4 * (width // self.channels)

    def build(self, width: int, network: Network) -> BuiltHead:
        """Make the layers in torch."""
        from longtail.encoders.towers.convolved import ConvolvedLayers  # noqa: PLC0415  (torch)

        return ConvolvedLayers(self, width)

    def open(self, arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> FrozenConvolved:
        """Find the arrays of a model file."""
        inner, channels, dim = self.inner_width(width), (self.channels,), self.out_width(width)
        shapes: dict[str, tuple[int, ...]] = {
            "kernels": (self.channels, self.channels, KERNEL),
            "offset": channels,
            "scale": channels,
        }
        shapes |= {"shift": channels, "weight": (dim, inner), "bias": (dim,)}
        return FrozenConvolved(*checked(arrays, [Array(f"{name}.{key}", shape) for key, shape in shapes.items()]))


@dataclass(frozen=True, eq=False)
class FrozenConvolved:
    """gelu(A v + bias) + pooled v, where v = gelu(convolution) · scale + shift."""

    kernels: Floats  # (C, C, KERNEL) of the convolution
    offset: Floats  # (C,)
    scale: Floats  # (C,)
    shift: Floats  # (C,)
    weight: Floats  # (E, D)
    bias: Floats  # (E,)

    @cached_property
    def pool(self) -> Floats | None:
        """What averages D entries to E, as a matrix; None: they stay as they are."""
        dim, inner = self.weight.shape
        return None if dim == inner else pooling(inner, dim)

    def __call__(self, vectors: Floats) -> Floats:
        """Pass flat maps (N, C · T), or one (C · T,), through."""
        inner = self.convolved(vectors.reshape(-1, vectors.shape[-1]))
        hidden = activated(product(inner, self.weight.T) + self.bias, "gelu")
        hidden += inner if self.pool is None else product(inner, self.pool)
        return hidden.reshape(*vectors.shape[:-1], len(self.bias))

    def convolved(self, vectors: Floats) -> Floats:
        """Convolve flat maps (N, C · T): all windows are the rows of one product (N, D)."""
        count, channels = len(vectors), len(self.kernels)
        maps = vectors.reshape(count, channels, vectors.shape[1] // channels)
        windows = sliding_window_view(maps, KERNEL, axis=2)[:, :, ::STRIDE].transpose(0, 2, 1, 3)  # (N, T, C, KERNEL)
        places = windows.shape[1]
        rows = windows.reshape(count * places, channels * KERNEL)
        out = activated(product(rows, self.kernels.reshape(channels, -1).T) + self.offset, "gelu")
        out = (out * self.scale + self.shift).reshape(count, places, channels)
        return np.ascontiguousarray(out.transpose(0, 2, 1), np.float32).reshape(count, channels * places)

    def operations(self) -> int:
        """Count the operations for one map: of the convolution, the layer and the pooling."""
        places = self.weight.shape[1] // len(self.kernels)
        return int(2 * (places * self.kernels.size + self.weight.size * (1 if self.pool is None else 2)))

    def arrays(self, name: str) -> Arrays:
        """Name the arrays for a model file."""
        arrays = {"kernels": self.kernels, "offset": self.offset, "scale": self.scale, "shift": self.shift}
        arrays |= {"weight": self.weight, "bias": self.bias}
        return {f"{name}.{key}": value for key, value in arrays.items()}


def pooling(width: int, dim: int) -> Floats:
    """Return what averages `width` entries to `dim`, as torch's adaptive pooling does: (width, dim).

    >>> pooling(3, 2).T.tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    matrix = np.zeros((width, dim), np.float32)
    for place in range(dim):
        start, end = place * width // dim, -(-(place + 1) * width // dim)
        matrix[start:end, place] = 1 / (end - start)
    return matrix
