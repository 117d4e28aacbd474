"""BAG → VECTOR: a weighted sum of word vectors. The trained half is in `towers.bag`: it is served without torch.

v = drop(relu(Σ_t x_t E_t)); `relu=False` leaves the sum as it is. References: [Astec]; methods §5.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.arrays import Array, checked
from longtail.data.tokens import Words
from longtail.data.vectors import word_vectors
from longtail.encoders.inputs import Bags
from longtail.parts import Arrays, Encoder, Inputs, Network, Query, Tower
from longtail.records import Cost, Sizes, record
from longtail.types import Floats

GLOVE = 80e6  # bytes that reading it takes


@record
class Bag(Encoder):
    """Settings of the bag encoder; `init` says where word vectors come from: random, glove, ppmi or a file."""

    part: ClassVar[str] = "bag"
    renamed: ClassVar[Mapping[str, str]] = {"start": "init", "residual": "head, a part of the objective"}
    sums_words: ClassVar[bool] = True
    has_words: ClassVar[bool] = True
    dim: int = Field(default=256, ge=1, le=8192)  # of word vectors, and of the vector of a text
    dropout: float = Field(default=0.5, ge=0, lt=1)  # of the vector of a text
    relu: bool = False  # whether negative entries of the sum become zero
    init: str = "random"  # where word vectors come from: random, glove, ppmi or a file

    @property
    def width(self) -> int:
        """The dimension of the vectors."""
        return self.dim

    def inputs(self, tokenizer: Words, texts: Sequence[str]) -> Bags:
        """Turn texts into bags."""
        return Bags(tokenizer.bag(texts))

    def start(self, tokenizer: Words, inputs: Sequence[Inputs], seed: int) -> Arrays:
        """Choose where word vectors start."""
        return start_words(self, tokenizer, inputs, seed)

    def build(self, start: Arrays, network: Network) -> Tower:
        """Make the tower in torch."""
        from longtail.encoders.towers.bag import BagTower  # noqa: PLC0415  (torch)

        return BagTower(self, start, network)

    def open(self, arrays: Mapping[str, NDArray[Any]], tokenizer: Words) -> FrozenBag:
        """Put the encoder of a model file together."""
        return FrozenBag(tokenizer, checked_words(arrays, len(tokenizer), self.dim), self.relu)

    def cost(self, sizes: Sizes) -> Cost:
        """Count word vectors, their optimiser state, and the sums of a batch."""
        return word_cost(sizes, self) + Cost(seconds=sizes.passes * sizes.points * self.dim * 3e-7)


@dataclass(frozen=True, eq=False)
class FrozenBag:
    """A weighted sum of word vectors."""

    words: Words
    vectors: Floats  # (V, D)
    relu: bool
    needs_torch: ClassVar[bool] = False

    def encode(self, query: Query) -> Floats:
        """Encode texts as (N, D)."""
        vectors: Floats = query.once(self, "vectors", lambda: self.encode_inputs(self._inputs(query)))
        return vectors

    def _inputs(self, query: Query) -> Bags:
        """Turn texts into bags."""
        return Bags(query.bag(self.words)) if query.inputs is None else query.inputs

    def encode_inputs(self, inputs: Bags) -> Floats:
        """Encode bags as (N, D)."""
        out: Floats = np.asarray(inputs.matrix @ self.vectors, np.float32)
        return np.maximum(out, 0, out=out) if self.relu else out

    def encode_one(self, query: Query) -> Floats:
        """Encode one text without matrices."""
        vector: Floats = query.once(self, "vector", lambda: self._sum(*query.terms(self.words)))
        return vector

    def _sum(self, words: NDArray[Any], weights: Floats) -> Floats:
        """Add up word vectors."""
        vector: Floats = weights @ self.vectors.take(words, axis=0)
        return np.maximum(vector, 0, out=vector) if self.relu else vector

    def sums(self, query: Query) -> Floats:
        """Sum the vectors of the words of texts: (N, D)."""
        return np.asarray(self._inputs(query).matrix @ self.vectors, np.float32)

    def operations(self) -> int:
        """Count the operations for a text of ten words."""
        return 2 * 10 * int(self.vectors.shape[1])

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        return {"words": self.vectors}


def start_words(settings: Any, tokenizer: Any, inputs: Sequence[Inputs], seed: int) -> Arrays:
    """Choose where the word vectors of an encoder start."""
    bags = sp.csr_array(sp.vstack([part.bags(len(tokenizer)) for part in inputs]))
    return {"words": word_vectors(tokenizer.vocabulary, settings.dim, settings.init, bags, seed=seed)}


def checked_words(arrays: Mapping[str, NDArray[Any]], count: int, dim: int) -> Floats:
    """Return the word vectors of a model file if they fit its vocabulary."""
    (vectors,) = checked(arrays, (Array("words", ("vocabulary", "dim")),), vocabulary=count, dim=dim)
    return vectors


def word_cost(sizes: Sizes, settings: Any) -> Cost:
    """Count the vectors of words with their moments and a copy to serve, the bags, and GloVe while it is read."""
    table = 4.0 * settings.dim * sizes.vocabulary
    bags = 24.0 * sizes.words * (sizes.points + sizes.labels)
    return Cost(memory=(2 + sizes.moments) * table + bags + (GLOVE if settings.init == "glove" else 0), disk=table)
