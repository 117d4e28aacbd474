"""TOKENS → VECTOR: a pre-trained transformer, by folder, package or hub id; its layers are in `towers.transformer`.

References: [NGAME], [UniDEC]; methods §5.8, §5.16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.data.pretrained import MINILM, Pretrained
from longtail.data.tokens import Words
from longtail.encoders.inputs import Ordered
from longtail.encoders.ordered import FrozenSequence, read
from longtail.errors import MissingExtra, ModelError, RecipeError
from longtail.machine import need
from longtail.parts import Arrays, Earlier, Encoder, Inputs, Network, Query, Tower, below
from longtail.records import Cost, Sizes, record
from longtail.types import Floats, Texts

FLOPS = 5e10  # operations a second that its layers reach on a few cores


@record
class Transformer(Encoder):
    """Settings of the encoder: `model` is a folder, a hub id with the commit `revision`, or minilm, a package.

    Where a step encodes more than `chunk` texts, it keeps none of the layers but computes them again on the way back, a
    few texts at a time (gradient caching): memory does not grow with the pool. `learning_rate` is its own. `tokens`
    gives a state for each token too, for classifiers that look at words.
    """

    part: ClassVar[str] = "transformer"
    frame: ClassVar[int] = 1
    model: str = MINILM  # a folder, a hub id, or minilm
    revision: str | None = None  # the commit of a hub id
    dim: int = Field(default=384, ge=1, le=8192)  # of its states
    pooling: Literal["mean", "cls"] = "mean"  # what the vector of a text is: the mean of its tokens, or the first
    layers: int = Field(default=1, ge=1, le=100)  # the last ones, whose vectors stand side by side
    max_tokens: int = Field(default=32, ge=3, le=8192)  # tokens of a text that are read
    dropout: float = Field(default=0.1, ge=0, lt=1)  # of vectors and token states
    chunk: int = Field(default=512, ge=1)  # texts that are encoded at once; more are computed again on the way back
    learning_rate: float = Field(default=1e-4, gt=0)  # of its layers
    frozen: int = Field(default=0, ge=0, le=100)  # the first layers, which stay as they are, with the vectors of tokens
    tokens: bool = False  # whether there is a state for each token, for classifiers that look at words

    @property
    def has_tokens(self) -> bool:
        """Whether there is a state for each token."""
        return self.tokens

    @property
    def width(self) -> int:
        """The dimension of the vectors."""
        return self.dim * self.layers

    @property
    def own_rate(self) -> float:
        """The learning rate of its weights."""
        return self.learning_rate

    def tokenizer(self, texts: Texts, names: Texts | None, words: Words) -> Pretrained:
        """Open the tokenizer that the encoder was trained with."""
        found = Pretrained.find(self.model, self.revision)
        config = found.config
        width, limit = config.get("hidden_size", config.get("dim")), config.get("max_position_embeddings")
        if width != self.dim:
            raise RecipeError(f"the states of {found.source} have {width} dimensions: --set encoder.dim={width}")
        depth = config.get("num_hidden_layers", config.get("n_layers"))
        if isinstance(depth, int) and self.layers > depth:
            raise RecipeError(f"{found.source} has {depth} layers: --set encoder.layers={depth}")
        if isinstance(depth, int) and self.frozen > depth:
            raise RecipeError(f"{found.source} has {depth} layers: --set encoder.frozen={depth}")
        if isinstance(limit, int) and self.max_tokens > limit:
            raise RecipeError(f"{found.source} takes {limit} tokens at most: --set encoder.max_tokens={limit}")
        return found

    def load_tokenizer(self, folder: Path, words: Words) -> Pretrained:
        """Open what a model folder keeps of the encoder."""
        return Pretrained.load(folder)

    def inputs(self, tokenizer: Pretrained, texts: Sequence[str]) -> Ordered:
        """Turn texts into token ids, and say how many were too long."""
        return read(tokenizer, texts, self.max_tokens)

    def start(self, tokenizer: Pretrained, inputs: Sequence[Inputs], seed: int) -> Arrays:
        """Read the weights."""
        return dict(tokenizer.weights())

    def continued(self, start: Arrays, tokenizer: Pretrained, earlier: Earlier) -> Arrays:
        """Start from the weights of an earlier model, where they are of the same encoder."""
        before = below(earlier.arrays, "encoder.")
        same = before.keys() == start.keys() and all(before[name].shape == start[name].shape for name in start)
        return before if same else start

    def build(self, start: Arrays, network: Network) -> Tower:
        """Make the tower in torch."""
        from longtail.encoders.towers.transformer import TransformerTower  # noqa: PLC0415  (torch)

        return TransformerTower(self, start, network)

    def open(self, arrays: Mapping[str, NDArray[Any]], tokenizer: Pretrained) -> FrozenTransformer:
        """Put the encoder of a model file together."""
        need("torch", "train")
        from longtail.encoders.towers.transformer import fitting  # noqa: PLC0415  (torch)

        limit = tokenizer.config.get("max_position_embeddings")
        if isinstance(limit, int) and self.max_tokens > limit:
            raise ModelError(f"the encoder takes {limit} tokens, not {self.max_tokens}; train again")
        return FrozenTransformer(tokenizer, self, fitting(tokenizer, below(arrays, "encoder.")))

    def cost(self, sizes: Sizes) -> Cost:
        """Count the weights of six layers and of tokens with their moments, and what a chunk keeps for its way back."""
        weights = 4.0 * (72 * self.dim**2 + 30_000 * self.dim)
        texts = min(self.chunk, sizes.batch_size) if self.tokens else self.chunk  # label texts only without states
        cells = 4.0 * texts * self.max_tokens * self.dim * 6 * 34
        seconds = 4 * 2.0 * 72 * self.dim**2 * self.max_tokens / FLOPS * sizes.passes * sizes.points
        return Cost(5 * weights + cells, weights, seconds)


@dataclass(frozen=True, eq=False)
class FrozenTransformer(FrozenSequence):
    """A transformer as it is served."""

    tokenizer: Pretrained
    settings: Transformer
    parameters: Arrays
    chunk: ClassVar[int] = 1024  # texts that are sorted by length and encoded

    @cached_property
    def layers(self) -> Any:
        """The layers in torch, ready to encode."""
        from longtail.encoders.towers.transformer import layers_of  # noqa: PLC0415

        return layers_of(self.tokenizer, self.parameters).eval()

    def ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Turn texts into token ids."""
        return self.tokenizer.ids(texts, self.settings.max_tokens)[0]

    def encode_ids(self, ids: NDArray[np.int32]) -> Floats:
        """Encode the token ids of some texts: (N, D)."""
        from longtail.encoders.towers.transformer import encode  # noqa: PLC0415  (torch)

        return encode(self.layers, ids, self.settings)

    def tokens(self, inputs: Ordered) -> tuple[Floats, NDArray[np.bool_]]:
        """Return a state for each token, (N, T, D), and which tokens there are."""
        from longtail.encoders.towers.transformer import encode_tokens  # noqa: PLC0415  (torch)

        return encode_tokens(self.layers, inputs.ids, self.settings)

    def pieces(self, query: Query) -> list[str]:
        """Return the tokens of the only text as they are read."""
        ids = self.inputs(query).ids[0]
        return self.tokenizer.vocabulary.take(ids[ids > 0] - 1).tolist()

    def sums(self, query: Query) -> Floats:
        """Refuse: there is no table of words."""
        raise ModelError("this encoder has no word vectors to make label vectors of; train again")

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        return {f"encoder.{name}": array for name, array in self.parameters.items()}


def need_transformers() -> Any:
    """Return the library, or say how it is installed."""
    try:
        import transformers  # noqa: PLC0415
    except ModuleNotFoundError:
        raise MissingExtra("transformers", "transformers") from None
    return transformers
