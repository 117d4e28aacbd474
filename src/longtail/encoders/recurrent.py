"""WORDS → STATES by a recurrent network that reads both ways. References: [AttentionXML]; methods §5.12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.data.sequences import Sequences
from longtail.encoders.inputs import Ordered
from longtail.encoders.ordered import FrozenOrdered, OrderedEncoder
from longtail.parts import Arrays, Inputs, Network, Query, Tower
from longtail.records import record
from longtail.types import Floats


@record
class Recurrent(OrderedEncoder):
    """Settings of a bidirectional LSTM whose first state is learnt; a text's vector is the mean of its states.

    [AttentionXML]'s code drops a fifth of the embeddings, the TailMix paper says one half. Word vectors start about as
    long as those of GloVe that it reads: with a length of one the gates hardly open.
    """

    part: ClassVar[str] = "recurrent"
    renamed: ClassVar[Mapping[str, str]] = {"start": "init", "words": "max_tokens"}
    flops_a_second: ClassVar[float] = 6e10
    hidden: int = Field(default=128, ge=1, le=4096)  # of each direction
    init_norm: float = Field(default=10.0, gt=0, le=1000)  # mean length of word vectors at the start
    max_tokens: int = Field(default=160, ge=1, le=4096)  # words of a text that are read
    dropout: float = Field(default=0.5, ge=0, lt=1)  # of the states
    embedding_dropout: float = Field(default=0.2, ge=0, lt=1)  # of word vectors

    @property
    def width(self) -> int:
        """The dimension of the states."""
        return 2 * self.hidden

    @property
    def has_tokens(self) -> bool:
        """Whether there is a state for each word."""
        return True

    def start(self, tokenizer: Sequences, inputs: Sequence[Inputs], seed: int) -> Arrays:
        """Choose where word vectors start, and how long they are."""
        start = super().start(tokenizer, inputs, seed)
        return start | {"words": start["words"] * np.float32(self.init_norm)}

    def layers(self, seed: int) -> Any:
        """Make the layers in torch."""
        from longtail.encoders.towers.recurrent import RecurrentLayers  # noqa: PLC0415  (torch)

        return RecurrentLayers(self.dim, self.hidden)

    def build(self, start: Arrays, network: Network) -> Tower:
        """Make the tower in torch."""
        from longtail.encoders.towers.recurrent import RecurrentTower  # noqa: PLC0415  (torch)

        return RecurrentTower(self, start, network)

    def open(self, arrays: Mapping[str, NDArray[Any]], tokenizer: Sequences) -> FrozenRecurrent:
        """Put the encoder of a model file together."""
        return FrozenRecurrent(**vars(super().open(arrays, tokenizer)))

    def flops(self) -> float:
        """Count the products of the gates for one text."""
        return 2.0 * self.max_tokens * 8 * self.hidden * (self.dim + self.hidden)


@dataclass(frozen=True, eq=False)
class FrozenRecurrent(FrozenOrdered):
    """The recurrent network as it is served."""

    chunk: ClassVar[int] = 64

    def encode_ids(self, ids: NDArray[np.int32]) -> Floats:
        """Encode the word ids of some texts by the means of their states: (N, D)."""
        from longtail.encoders.towers.recurrent import mean_states, states_of  # noqa: PLC0415  (torch)

        means: Floats = mean_states(*states_of(self.layers, Ordered(ids), self.vectors)).numpy()
        return means

    def tokens(self, inputs: Ordered) -> tuple[Floats, NDArray[np.bool_]]:
        """Return a state for each word, (N, T, D), and which words there are."""
        from longtail.encoders.towers.recurrent import states_of  # noqa: PLC0415  (torch)

        states, mask = states_of(self.layers, inputs, self.vectors)
        return states.numpy(), mask.numpy()

    def operations(self) -> int:
        """Count the operations for one text of the full length, which torch's counter does not see."""
        settings: Any = self.settings
        return int(settings.flops())

    def pieces(self, query: Query) -> list[str]:
        """Return the words of the only text as they are read."""
        ids = self.inputs(query).ids[0]
        return self.words.vocabulary.take(ids[ids > 0]).tolist()
