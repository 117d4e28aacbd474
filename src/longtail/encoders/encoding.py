"""TEXTS → VECTORS, as a trained model does it: arrays that come from a file; only models that convolve need torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from longtail.data.tokens import Words
from longtail.encoders.bag import Bag
from longtail.encoders.convolutional import Cnn, Inception
from longtail.encoders.head import Arrays
from longtail.encoders.inputs import Bags, Ordered
from longtail.errors import ModelError
from longtail.types import Floats

if TYPE_CHECKING:
    from longtail.data.sequences import Sequences


@dataclass(frozen=True, eq=False)
class BagEncoding:
    """A weighted sum of word vectors."""

    words: Words
    vectors: Floats  # (V, D)
    relu: bool
    needs_torch: ClassVar[bool] = False

    def inputs(self, texts: Iterable[str]) -> Bags:
        """Turn texts into bags."""
        return Bags(self.words.bag(texts))

    def encode(self, inputs: Bags) -> Floats:
        """Encode bags as (N, D)."""
        out: Floats = np.asarray(inputs.matrix @ self.vectors, np.float32)
        return np.maximum(out, 0, out=out) if self.relu else out

    def operations(self) -> int:
        """Count the operations for a text of ten words."""
        return 2 * 10 * int(self.vectors.shape[1])

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        return {"words": self.vectors}


@dataclass(frozen=True, eq=False)
class OrderedEncoding:
    """A convolutional network over the word vectors of a text."""

    words: Sequences
    vectors: Floats  # (V, D)
    settings: Inception | Cnn
    layers: Arrays  # what the network learnt
    needs_torch: ClassVar[bool] = True

    @cached_property
    def network(self) -> Any:
        """The network in torch, ready to encode."""
        from longtail.encoders.modules import encoder_of  # noqa: PLC0415  (torch is imported by models that convolve)

        return encoder_of(self.settings, seed=0, layers=self.layers)

    def inputs(self, texts: Iterable[str]) -> Ordered:
        """Turn texts into word ids."""
        return Ordered(self.words.ids(list(texts), self.settings.words))

    def encode(self, inputs: Ordered) -> Floats:
        """Encode word ids as (N, D)."""
        out = np.empty((len(inputs), self.settings.vector), np.float32)
        for start in range(0, len(inputs), 256):
            some = inputs.take(np.arange(start, min(start + 256, len(inputs))))
            words = np.unique(some.words())
            out[start : start + 256] = self.network.vectors_of(some, words, self.vectors[words])
        return out

    def operations(self) -> int:
        """Count the operations for one text, with torch's counter."""
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

        with FlopCounterMode(display=False) as counter:
            self.encode(Ordered(np.ones((1, self.settings.words), np.int32)))
        return int(counter.get_total_flops())

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        return {"words": self.vectors} | {f"encoder.{name}": array for name, array in self.layers.items()}


Encoding: TypeAlias = BagEncoding | OrderedEncoding


def encoding_of(settings: Any, words: Words, sequences: Sequences | None, held: Mapping[str, NDArray[Any]]) -> Encoding:
    """Put the encoder of a model file together."""
    if isinstance(settings, Bag):
        made: Encoding = BagEncoding(words, held["words"], settings.relu)
    elif isinstance(settings, Inception | Cnn) and sequences is not None:
        layers = {name.removeprefix("encoder."): held[name] for name in held if name.startswith("encoder.")}
        made = OrderedEncoding(sequences, held["words"], settings, layers)
    else:
        raise ModelError(f"no encoder of this version is called {getattr(settings, 'part', settings)!r}; train again")
    if made.vectors.ndim != 2 or made.vectors.shape != (len(made.words), settings.dim):
        raise ModelError("the word vectors do not fit the vocabulary; train again")
    return made
