"""BAGS → VECTORS in training."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from longtail.data.tokens import Words
from longtail.encoders.bag import Bag, FrozenBag
from longtail.encoders.inputs import Bags
from longtail.encoders.towers.words import WordTower
from longtail.parts import Arrays, Network, States, Step


class BagTower(WordTower):
    """Sum word vectors, then relu and dropout."""

    def __init__(self, settings: Bag, start: Arrays, network: Network) -> None:
        super().__init__(start, network)
        self.settings, self.module = settings, nn.Module()

    def embed(self, inputs: Bags) -> Tensor:
        """Sum the vectors of the words: (B, D)."""
        return self.sums(inputs)

    def __call__(self, inputs: Bags, step: Step | None) -> States:
        """Encode a batch."""
        embedded = self.embed(inputs) if step is None else step.apply("embeddings", self.embed(inputs))
        vectors = functional.relu(embedded) if self.settings.relu else embedded
        return States(vectors if step is None else step.drop(vectors, self.settings.dropout))

    def freeze(self, tokenizer: Words) -> FrozenBag:
        """Give the encoder as arrays."""
        return FrozenBag(tokenizer, self.vectors(), self.settings.relu)
