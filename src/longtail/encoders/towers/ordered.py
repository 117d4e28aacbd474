"""WORDS IN ORDER → VECTORS in training: words are looked up in order, padding is zero."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from longtail.data.sequences import Sequences
from longtail.encoders.inputs import Bags, Ordered
from longtail.encoders.ordered import FrozenOrdered, OrderedEncoder, weighed
from longtail.encoders.towers.words import WordTower
from longtail.parts import Arrays, Network, States, Step
from longtail.types import Floats


class OrderedTower(WordTower):
    """Layers over word vectors in order."""

    def __init__(self, settings: OrderedEncoder, start: Arrays, network: Network) -> None:
        super().__init__(start, network)
        self.settings, self.weights = settings, start["weights"]
        self.module: nn.Module = settings.layers(network.fit.seed)

    def weighed(self, inputs: Ordered) -> Bags:
        """Weigh the words of texts by how rare they are."""
        return weighed(inputs, self.weights)

    def embed(self, inputs: Ordered) -> Tensor:
        """Look up the vectors of the words: (B, T, D)."""
        places, vectors = self.gather(inputs.ids)
        return looked_up(inputs, places, vectors)

    def __call__(self, inputs: Ordered, step: Step | None) -> States:
        """Encode a batch; dropout follows torch's own generator."""
        embedded = self.embed(inputs) if step is None else step.apply("embeddings", self.embed(inputs))
        return States(self.module(embedded, 0.0 if step is None else self.settings.dropout))  # type: ignore[attr-defined]

    def freeze(self, tokenizer: Sequences) -> FrozenOrdered:
        """Give the encoder as arrays."""
        layers = {name: value.cpu().numpy().copy() for name, value in self.module.state_dict().items()}
        return FrozenOrdered(tokenizer, self.vectors(), self.settings, layers, self.weights)


def looked_up(inputs: Ordered, places: Tensor, vectors: Tensor) -> Tensor:
    """Put vectors in the order of the words: (B, T, D)."""
    mask = torch.from_numpy(inputs.ids > 0).to(vectors.device)
    return functional.embedding(places, vectors) * mask[:, :, None]


@torch.no_grad()
def encode(layers: nn.Module, inputs: Ordered, vectors: Floats) -> Floats:
    """Encode texts outside of training, with word vectors (V, D)."""
    words = np.unique(inputs.ids.ravel())
    places = torch.from_numpy(np.searchsorted(words, inputs.ids))
    embedded = looked_up(inputs, places, torch.from_numpy(np.array(vectors[words])))
    out: Floats = layers(embedded, 0.0).numpy()
    return out
