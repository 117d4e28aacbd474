"""TEXT → LABELS BY VECTORS: a bag of word vectors against one vector per label, all labels in chunks, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.tokens import Words
from longtail.errors import ModelError
from longtail.files import read_arrays, write_arrays
from longtail.types import Floats, Ints

POINTS, LABELS = 1024, 65536  # rows of a block


@dataclass(frozen=True, eq=False)
class VectorIndex:
    """Word vectors, the residual layer and label vectors of a trained bag model."""

    words: Words
    vectors: Floats  # (V, D)
    labels: Floats  # (L, D)
    bias: Floats  # (L,)
    layer: tuple[Floats, Floats] | None  # (D, D), (D,)
    relu: bool
    cosine: bool

    def encode(self, bags: sp.csr_array) -> Floats:
        """Encode bags (N, V) as (N, D)."""
        out: Floats = np.asarray(bags @ self.vectors, np.float32)
        if self.relu:
            np.maximum(out, 0, out=out)
        if self.layer is not None:
            weight, bias = self.layer
            out = np.maximum(out @ weight.T + bias, 0) + out
        return unit(out) if self.cosine else out

    def top(self, bags: sp.csr_array, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each bag, exactly; equal scores go to the smaller label."""
        k = min(k, len(self.labels))
        found, values = np.empty((bags.shape[0], k), np.int32), np.empty((bags.shape[0], k), np.float32)
        for start in range(0, bags.shape[0], POINTS):
            encoded = self.encode(bags[start : start + POINTS])
            best, scores = np.zeros((len(encoded), 0), np.int64), np.zeros((len(encoded), 0), np.float32)
            for first in range(0, len(self.labels), LABELS):
                block = encoded @ self.labels[first : first + LABELS].T + self.bias[first : first + LABELS]
                kept = np.argpartition(-block, min(k, block.shape[1] - 1), axis=1)[:, :k]
                best = np.hstack([best, kept + first])
                scores = np.hstack([scores, np.take_along_axis(block, kept, 1)])
            order = np.lexsort((best, -scores))[:, :k]
            found[start : start + POINTS] = np.take_along_axis(best, order, 1)
            values[start : start + POINTS] = np.take_along_axis(scores, order, 1)
        return found, values

    def pairs(self, bags: sp.csr_array, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: bag rows[i] with labels[i]."""
        encoded = self.encode(bags)
        out = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), LABELS):
            some = slice(start, start + LABELS)
            out[some] = np.einsum("nd,nd->n", encoded[rows[some]], self.labels[labels[some]]) + self.bias[labels[some]]
        return out

    def save(self, folder: Path) -> None:
        """Write the arrays into a model folder; the words are written by their owner."""
        arrays: dict[str, NDArray[Any]] = {"vectors": self.vectors, "labels": self.labels, "bias": self.bias}
        arrays["flags"] = np.array([self.relu, self.cosine], np.uint8)
        if self.layer is not None:
            arrays |= {"layer.weight": self.layer[0], "layer.bias": self.layer[1]}
        write_arrays(folder / "weights.safetensors", arrays)

    @classmethod
    def load(cls, folder: Path, words: Words) -> VectorIndex:
        """Open what `save` wrote."""
        held = read_arrays(folder / "weights.safetensors")
        layer = (held["layer.weight"], held["layer.bias"]) if "layer.weight" in held else None
        relu, cosine = (bool(flag) for flag in held["flags"])
        index = cls(words, held["vectors"], held["labels"], held["bias"], layer, relu, cosine)
        wide = index.vectors.shape[1:]
        sound = len(index.vectors) == len(words) and index.labels.shape[1:] == wide and len(wide) == 1
        sound = sound and len(index.bias) == len(index.labels)
        if not sound or (layer is not None and (layer[0].shape != wide * 2 or layer[1].shape != wide)):
            raise ModelError(f"{folder / 'weights.safetensors'}: shapes disagree; train again")
        return index


def unit(vectors: Floats) -> Floats:
    """Scale rows to length one; zero rows stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)
