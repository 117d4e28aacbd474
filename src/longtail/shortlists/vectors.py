"""TEXT → LABELS BY VECTORS: what an encoder makes of a text against one vector per label, without torch if it can.

All labels are scored in chunks, or only those that a guide (clusters, or what is near) proposes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from longtail.data.tokens import Words
from longtail.encoders.encoding import Encoding, encoding_of
from longtail.encoders.head import Head
from longtail.encoders.inputs import Inputs
from longtail.errors import ModelError
from longtail.files import read_arrays, write_arrays
from longtail.recipe import Recipe
from longtail.shortlists.exact import top_products, unit
from longtail.shortlists.meta import Meta, MetaGuide
from longtail.shortlists.near import Near, NearGuide
from longtail.shortlists.stored import Stored
from longtail.types import Floats, Ints, best_of, rows_of

if TYPE_CHECKING:
    from longtail.data.sequences import Sequences

POINTS = 1024  # texts scored at once
MORE = 50  # labels that are looked at beyond those asked for, where their order may still change


def known(vectors: Floats) -> NDArray[np.bool_]:
    """Tell which encoded texts have anything to go by: (N, 1)."""
    return np.asarray(vectors.any(axis=1, keepdims=True), np.bool_)


def answered(vectors: Floats, labels: Ints, scores: Floats) -> tuple[Ints, Floats]:
    """Leave texts without a known word without labels."""
    held = known(vectors)
    return np.where(held, labels, np.int32(-1)), np.where(held, scores, np.float32(-np.inf))


@dataclass(frozen=True, eq=False)
class VectorIndex:
    """The encoder, the head before the label rows, and one vector per label."""

    encoding: Encoding
    head: Head | None
    labels: Floats  # (L, D)
    bias: Floats  # (L,)
    cosine: bool
    guide: MetaGuide | NearGuide | None = None
    second: VectorIndex | None = None  # ranks what this one found again
    again: int = 0  # so many of them at least

    def encode(self, inputs: Inputs) -> Floats:
        """Encode inputs as (N, D), ready for the product with label vectors."""
        return self._headed(self.encoding.encode(inputs))  # type: ignore[arg-type]

    def _headed(self, vectors: Floats) -> Floats:
        """Pass what the encoder made through the head."""
        out = self.head(vectors) if self.head else vectors
        return unit(out) if self.cosine else out

    def blocks(self, texts: Sequence[str]) -> Iterator[tuple[slice, Floats]]:
        """Encode texts block by block, up to the head."""
        for start in range(0, len(texts), POINTS):
            some = slice(start, min(start + POINTS, len(texts)))
            yield some, self.encoding.encode(self.encoding.inputs(texts[some]))  # type: ignore[arg-type]

    def encoded(self, texts: Sequence[str]) -> Floats:
        """Encode texts, ready for the product with label vectors: (N, D), zero where no word is known."""
        made = [np.where(known(vectors), self._headed(vectors), np.float32(0)) for _, vectors in self.blocks(texts)]
        return np.concatenate(made) if made else np.zeros((0, self.labels.shape[1]), np.float32)

    def top(self, texts: Sequence[str], k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text; equal scores go to the smaller label, places without one hold -1."""
        k = min(k, len(self.labels))
        found, values = np.full((len(texts), k), -1, np.int32), np.full((len(texts), k), -np.inf, np.float32)
        for some, vectors in self.blocks(texts):
            if self.guide is None:
                labels, scores = top_products(self._headed(vectors), self.labels, k, bias=self.bias)
            else:
                best = best_of(self._guided(vectors), max(k, self.again))
                if self.second is not None:
                    best = best_of(self.second.ranked(texts[some], best.labels, best.scores), k)
                labels, scores = best.labels, best.scores
            found[some, : labels.shape[1]], values[some, : labels.shape[1]] = answered(vectors, labels, scores)
        return found, values

    def _guided(self, vectors: Floats) -> sp.csr_array:
        """Score what the guide proposes for encoded texts: (N, L)."""
        if self.guide is None:
            raise ModelError("there is no guide")
        proposed = self.guide.candidates(vectors)
        rows = np.repeat(np.arange(len(vectors)), np.diff(proposed.indptr))
        by_rows = self.pairs(self._headed(vectors), rows, proposed.indices)
        data = self.guide.combined(by_rows, proposed)
        return sp.csr_array((data, proposed.indices, proposed.indptr), shape=proposed.shape)

    def ranked(self, texts: Sequence[str], labels: Ints, scores: Floats) -> sp.csr_array:
        """Add to given scores (N, k) the probability that this index gives the same labels: (N, L)."""
        rows, places = np.nonzero(labels >= 0)
        sums = scores.copy()
        own = self.pairs(self.encode(self.encoding.inputs(texts)), rows, labels[rows, places])
        sums[rows, places] += expit(own)
        return rows_of(labels, sums, len(self.labels))

    def found(self, texts: Sequence[str], k: int) -> tuple[Floats, Ints, Floats]:
        """Encode texts, find their best labels, and multiply both: (N, D), (N, k), (N, k)."""
        whole = self.encoded(texts)
        if self.guide is None:
            return whole, *answered(whole, *top_products(whole, self.labels, k, bias=self.bias))
        labels, scores = self.top(texts, k + MORE)  # the scores of a guide are of another kind
        rows, places = np.nonzero(labels >= 0)
        scores[rows, places] = self.pairs(whole, rows, labels[rows, places])
        return whole, labels, scores

    def pairs(self, encoded: Floats, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: encoded text rows[i] with labels[i]; rows ascend."""
        return np.asarray(Stored(self.labels).pairs(encoded, rows, labels) + self.bias[labels], np.float32)

    def operations(self) -> int:
        """Count the multiplications and additions of one prediction: the encoder, its heads, and the scored labels."""
        labels, dim = (int(size) for size in self.labels.shape)
        scored, total = labels, self.encoding.operations()
        if isinstance(self.guide, MetaGuide):
            clusters = len(self.guide.rows)
            scored = round(labels * min(1, self.guide.top / clusters))
            total += 2 * clusters * dim + (2 * dim * dim if self.guide.head else 0)
        elif isinstance(self.guide, NearGuide):
            scored = min(self.guide.settings.keep, labels)
            total += 2 * dim * (labels + len(self.guide.points))
        again = 0 if self.second is None else self.second.encoding.operations() + 2 * dim * (dim + self.again)
        return total + (2 * dim * dim if self.head else 0) + 2 * scored * dim + again

    def save(self, folder: Path, name: str = "weights.safetensors") -> None:
        """Write the arrays into a model folder; the vocabulary is written by its owner."""
        arrays: dict[str, NDArray[Any]] = {"labels": self.labels, "bias": self.bias, **self.encoding.arrays()}
        if self.head is not None:
            arrays |= self.head.arrays("head")
        if self.guide is not None:
            arrays |= self.guide.arrays()
        write_arrays(folder / name, arrays)
        if self.second is not None:
            self.second.save(folder, "second.safetensors")

    @classmethod
    def load(cls, folder: Path, recipe: Recipe, words: Words, sequences: Sequences | None) -> VectorIndex:
        """Open what `save` wrote."""
        index = cls._read(folder / "weights.safetensors", recipe, words, sequences)
        if (folder / "second.safetensors").exists():
            second = cls._read(folder / "second.safetensors", recipe, words, sequences, guided=False)
            return replace(index, second=second, again=int(getattr(recipe.rerank, "top", 0)))
        return index

    @classmethod
    def _read(
        cls, file: Path, recipe: Recipe, words: Words, sequences: Sequences | None, *, guided: bool = True
    ) -> VectorIndex:
        """Put one file together and check that its parts fit each other."""
        held = read_arrays(file)
        encoding, head = encoding_of(recipe.encoder, words, sequences, held), Head.of_arrays(held, "head")
        guide: MetaGuide | NearGuide | None = None
        if guided and isinstance(recipe.shortlist, Meta):
            guide = MetaGuide.of_arrays(held, recipe.shortlist.top)
        elif guided and isinstance(recipe.shortlist, Near):
            guide = NearGuide.of_arrays(held, recipe.shortlist)
        cosine = bool(getattr(recipe.classifier, "cosine", False))
        index = cls(encoding, head, held["labels"], held["bias"], cosine, guide)
        dim = getattr(recipe.encoder, "vector", getattr(recipe.encoder, "dim", 0))
        sound = index.labels.shape == (len(index.bias), dim) and (head is None or len(head.bias) == dim)
        if not sound:
            raise ModelError(f"{file}: shapes disagree; train again")
        return index
