"""SUMS OF WORD VECTORS → LABEL VECTORS: how vectors of labels are made from their texts, without torch.

A vector of a label is made of one or more: what each of its heads makes of its text, of the texts of its neighbours, or
of its free row. They are added up with a gate for each dimension (DECAF) or with attention (ECLARE, InceptionXML-LF). A
label that came after training has only a text, which stands for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from longtail.arrays import Array, checked
from longtail.parts import Arrays, FrozenHead
from longtail.types import Floats

CHUNK = 4096  # labels whose vectors are made at once


class Combine(Protocol):
    """Makes one vector of several."""

    def __call__(self, vectors: list[Floats]) -> Floats:
        """Combine vectors (K, D) each."""

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""


@dataclass(frozen=True, eq=False)
class FrozenGates:
    """Σ_k gate_k · v_k, with a gate for each dimension."""

    gates: Floats  # (S, D)

    def __call__(self, vectors: list[Floats]) -> Floats:
        """Combine vectors (K, D) each."""
        return np.asarray(sum(gate * part for gate, part in zip(self.gates, vectors, strict=True)), np.float32)

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        return {"texts.gates": self.gates}


@dataclass(frozen=True, eq=False)
class FrozenAttention:
    """Σ_k a_k · v_k with a = softmax(V [relu(v_1), relu(v_2), …] + b)."""

    shares: Floats  # (S, S · D)
    offset: Floats  # (S,)

    def __call__(self, vectors: list[Floats]) -> Floats:
        """Combine vectors (K, D) each."""
        active = np.maximum(np.concatenate(vectors, axis=1), 0)
        attention = softmax(active @ self.shares.T + self.offset, axis=1)
        return np.asarray(sum(attention[:, [k]] * part for k, part in enumerate(vectors)), np.float32)

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        return {"texts.shares": self.shares, "texts.offset": self.offset}


@dataclass(frozen=True, eq=False)
class TextRows:
    """What each part of a label passes through, and how they are combined."""

    heads: tuple[FrozenHead | None, ...]
    combine: Combine | None = None  # None where there is only one part

    def __call__(self, *parts: Floats) -> Floats:
        """Make label vectors (K, D) of their parts, (K, D) each, in chunks."""
        out = np.empty_like(parts[0])
        for start in range(0, len(out), CHUNK):
            some = slice(start, start + CHUNK)
            own = [part[some] for part in parts]
            vectors = [part if head is None else head(part) for head, part in zip(self.heads, own, strict=True)]
            out[some] = vectors[0] if self.combine is None else self.combine(vectors)
        return out

    def of_texts(self, sums: Floats) -> Floats:
        """Make vectors of labels that have only a text."""
        return self(*[sums] * len(self.heads))

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        arrays = {} if self.combine is None else self.combine.arrays()
        for place, head in enumerate(self.heads):
            arrays |= {} if head is None else head.arrays(f"texts.head{place}")
        return arrays


def open_combine(arrays: Mapping[str, NDArray[Any]], by: str, parts: int, width: int) -> Combine:
    """Find how vectors are combined in the arrays of a model file."""
    if by == "gates":
        return FrozenGates(*checked(arrays, (Array("texts.gates", (parts, width)),)))
    schema = Array("texts.shares", (parts, parts * width)), Array("texts.offset", (parts,))
    return FrozenAttention(*checked(arrays, schema))
