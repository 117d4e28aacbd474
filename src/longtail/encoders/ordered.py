"""WORDS IN ORDER → VECTOR: what the encoders that read one word after the other share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.arrays import FLOATS, INTS, LARGEST, TRAIN, Array, checked
from longtail.data.sequences import Sequences
from longtail.data.tokens import Words
from longtail.encoders.bag import checked_words, start_words, word_cost
from longtail.encoders.inputs import Bags, Ordered
from longtail.labels.blocks import same_edges, unit_rows
from longtail.machine import need
from longtail.parts import Arrays, Encoder, Inputs, Network, Query, Tower, below
from longtail.records import Cost, Sizes, record
from longtail.types import Floats, Texts

log = logging.getLogger("longtail")
REPEATED = 1.4  # words of a long text for each that is different


@record
class OrderedEncoder(Encoder):
    """Settings that encoders of words in order share; a subclass makes the layers."""

    renamed: ClassVar[Mapping[str, str]] = {"start": "init", "words": "max_tokens", "vector": "width"}
    has_words: ClassVar[bool] = True
    flops_a_second: ClassVar[float] = 1e10  # that its layers reach on a few cores
    dim: int = Field(default=300, ge=1, le=4096)  # of word vectors
    max_tokens: int = Field(default=32, ge=1, le=512)  # words of a text that are read
    init: str = "glove"  # where word vectors come from: glove, random, ppmi or a file

    @abstractmethod
    def layers(self, seed: int) -> Any:
        """Make the torch module that turns embedded words (B, T, D) into vectors (B, width)."""

    def tokenizer(self, texts: Texts, names: Texts | None, words: Words) -> Sequences:
        """Give numbers to the words of points and label texts, the most common first."""
        return Sequences.fit(texts, names or [])

    def load_tokenizer(self, folder: Path, words: Words) -> Sequences:
        """Open tokenizer.json."""
        return Sequences.load(folder)

    def inputs(self, tokenizer: Sequences, texts: Sequence[str]) -> Ordered:
        """Turn texts into word ids, and say how many were too long."""
        return read(tokenizer, texts, self.max_tokens)

    def start(self, tokenizer: Sequences, inputs: Sequence[Inputs], seed: int) -> Arrays:
        """Choose where word vectors start, and weigh words by how rare they are."""
        start = start_words(self, tokenizer, inputs, seed)
        counts = sum(np.bincount(part.bags(len(tokenizer)).indices, minlength=len(tokenizer)) for part in inputs)
        texts = sum(len(part) for part in inputs)
        return start | {"weights": np.log((1 + texts) / (1 + counts)).astype(np.float32)}

    def build(self, start: Arrays, network: Network) -> Tower:
        """Make the tower in torch."""
        from longtail.encoders.towers.ordered import OrderedTower  # noqa: PLC0415  (torch)

        return OrderedTower(self, start, network)

    def open(self, arrays: Mapping[str, NDArray[Any]], tokenizer: Sequences) -> FrozenOrdered:
        """Put the encoder of a model file together."""
        vectors = checked_words(arrays, len(tokenizer), self.dim)
        (weights,) = checked(arrays, (Array("weights", ("vocabulary",)),), vocabulary=len(tokenizer))
        return FrozenOrdered(tokenizer, vectors, self, self._parameters(below(arrays, "encoder.")), weights)

    def _parameters(self, arrays: Arrays) -> Arrays:
        """Return the arrays of the layers if they fit; nothing is made of them yet."""
        need("torch", "train")
        import torch  # noqa: PLC0415  (for the models that need it)

        with torch.device("meta"):
            wanted = self.layers(0).state_dict()
        return checked_layers(arrays, wanted)

    def cost(self, sizes: Sizes) -> Cost:
        """Count word vectors, their optimiser state, and what the layers keep of a batch for its way back."""
        cells = sizes.batch_size * self.max_tokens * (4.0 * self.dim + 2.0 * self.width)
        read = min(1.0, REPEATED * sizes.words / self.max_tokens) if self.has_tokens else 1.0  # the others pad texts
        seconds = 3 * read * self.flops() / self.flops_a_second * sizes.passes * sizes.points
        return word_cost(sizes, self) + Cost(memory=4 * cells, seconds=seconds)

    def flops(self) -> float:
        """Estimate the operations of the layers for one text."""
        return 2.0 * self.max_tokens * self.dim * self.width


class FrozenSequence(ABC):
    """What served encoders share that read one token after the other."""

    needs_torch: ClassVar[bool] = True
    chunk: ClassVar[int] = 256  # texts that are encoded at once
    settings: Any

    @abstractmethod
    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Turn texts into token ids."""

    @abstractmethod
    def encode_ids(self, ids: NDArray[np.int32]) -> Floats:
        """Encode the token ids of some texts: (N, D)."""

    def encode(self, query: Query) -> Floats:
        """Encode texts as (N, D)."""
        vectors: Floats = query.once(self, "vectors", lambda: self.encode_inputs(self.inputs(query)))
        return vectors

    def encode_one(self, query: Query) -> Floats:
        """Encode one text."""
        vector: Floats = self.encode(query)[0]
        return vector

    def inputs(self, query: Query) -> Ordered:
        """Turn texts into token ids, unless they are."""
        return Ordered(self.ids(query.texts) if query.inputs is None else query.inputs.ids)

    def encode_inputs(self, inputs: Ordered) -> Floats:
        """Encode token ids as (N, D), zero where a text has none: layers have a bias, which is no answer."""
        out = np.empty((len(inputs), self.settings.width), np.float32)
        for start in range(0, len(inputs), self.chunk):
            some = slice(start, start + self.chunk)
            empty = ~(inputs.ids[some] > 0).any(axis=1, keepdims=True)
            out[some] = np.where(empty, np.float32(0), self.encode_ids(inputs.ids[some]))
        return out

    def operations(self) -> int:
        """Count the operations for one text of the full length, with torch's counter."""
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

        with FlopCounterMode(display=False) as counter:
            self.encode_inputs(Ordered(np.ones((1, self.settings.max_tokens), np.int32)))
        return int(counter.get_total_flops())


@dataclass(frozen=True, eq=False)
class FrozenOrdered(FrozenSequence):
    """Layers over the word vectors of a text."""

    words: Sequences
    vectors: Floats  # (V, D)
    settings: OrderedEncoder
    parameters: Arrays  # of the layers
    weights: Floats  # (V,) of the words in the sums of label texts

    @cached_property
    def layers(self) -> Any:
        """The layers in torch, ready to encode."""
        import torch  # noqa: PLC0415  (for the models that need it)

        layers = self.settings.layers(0)
        layers.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in self.parameters.items()})
        return layers.eval().requires_grad_(False)

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Turn texts into word ids."""
        return self.words.ids(texts, self.settings.max_tokens)[0]

    def encode_ids(self, ids: NDArray[np.int32]) -> Floats:
        """Encode the word ids of some texts: (N, D)."""
        from longtail.encoders.towers.ordered import encode  # noqa: PLC0415  (torch)

        return encode(self.layers, Ordered(ids), self.vectors)

    def sums(self, query: Query) -> Floats:
        """Sum the weighed vectors of the words of texts: (N, D)."""
        return np.asarray(weighed(self.inputs(query), self.weights).matrix @ self.vectors, np.float32)

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        arrays: Arrays = {"words": self.vectors, "weights": self.weights}
        return arrays | {f"encoder.{name}": array for name, array in self.parameters.items()}


def read(tokenizer: Any, texts: Sequence[str], length: int) -> Ordered:
    """Turn texts into ids of words or tokens, and say how many were too long."""
    ids, cut = tokenizer.ids(texts, length)
    if cut:
        log.warning(
            "%s of %s texts are longer than %d words or tokens and are cut there; encoder.max_tokens reads more",
            f"{cut:,}", f"{len(ids):,}", length,
        )  # fmt: skip
    return Ordered(ids)


def checked_layers(arrays: Mapping[str, NDArray[Any]], wanted: Mapping[str, Any], remedy: str = TRAIN) -> Arrays:
    """Return the arrays of layers in torch if they fit; whole numbers are counts, or places in a list as long."""
    schema = []
    for name, tensor in wanted.items():
        shape, whole = tuple(tensor.shape), not tensor.is_floating_point()
        high = len(tensor) - 1 if whole and len(shape) == 1 else LARGEST
        schema.append(Array(name, shape, INTS if whole else FLOATS, 0 if whole else -LARGEST, high))
    return dict(zip(wanted, checked(arrays, schema, remedy=remedy), strict=True))


def weighed(inputs: Ordered, weights: Floats) -> Bags:
    """Weigh the words of texts: bags (N, V) of length one."""
    bags = inputs.bags(len(weights))
    return Bags(unit_rows(same_edges(bags, bags.data * weights[bags.indices])))
