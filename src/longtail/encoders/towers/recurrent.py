"""WORDS IN ORDER → A STATE FOR EACH in training, forwards and backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.data.sequences import Sequences
from longtail.encoders.inputs import Ordered
from longtail.encoders.recurrent import FrozenRecurrent
from longtail.encoders.towers.ordered import OrderedTower, looked_up
from longtail.parts import States, Step
from longtail.types import Floats


class RecurrentLayers(nn.Module):
    """One layer of LSTM cells in both directions, with learnt first states."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.first = nn.Parameter(torch.zeros(2, 2, 1, hidden))  # state and cell of both directions

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Read (B, T, D): (B, T, 2H), zero where there is no word.

        The way back reads texts turned round. Packed texts would cost time with the square of their length: there the
        gradient of each place is laid out over all of them.
        """
        places = turned(mask)
        ways = (self._read(embedded, 0), turn(self._read(turn(embedded, places), 1), places))
        return torch.cat(ways, dim=2) * mask[:, :, None]

    def _read(self, embedded: Tensor, way: int) -> Tensor:
        """Read texts from their first place on, with the weights of one way: (B, T, H)."""
        states = self.first[:, way].expand(-1, len(embedded), -1).contiguous()[:, None]
        weights = tuple(self.lstm.all_weights[way])
        return torch.lstm(embedded, (states[0], states[1]), weights, True, 1, 0.0, self.training, False, True)[0]


def turned(mask: Tensor) -> Tensor:
    """Return where each place stands when texts are read from their last word: (B, T); places without a word stay.

    >>> turned(torch.tensor([[True, True, True, False]])).tolist()
    [[2, 1, 0, 3]]
    """
    here = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - here, here)


def turn(values: Tensor, places: Tensor) -> Tensor:
    """Put the values (B, T, D) of each text into the order of their places."""
    return values.gather(1, places[:, :, None].expand(-1, -1, values.shape[2]))


class RecurrentTower(OrderedTower):
    """A recurrent network over word vectors."""

    settings: Any  # Recurrent

    def __call__(self, inputs: Ordered, step: Step | None) -> States:
        """Encode a batch, as long as its longest text, unless what it is mixed with may be longer."""
        if step is None or not any("embeddings" in part.acts_on for part in step.augmentations):
            inputs = shortened(inputs)
        embedded = self.embed(inputs)
        mask = torch.from_numpy(inputs.ids > 0).to(embedded.device)
        if step is None:
            states = self.module(embedded, mask)
        else:
            mixed = step.apply("embeddings", embedded)
            if mixed is not embedded:
                mask = mask | mixed.detach().ne(0).any(dim=2)  # the words of a longer partner
            embedded = step.drop(mixed, self.settings.embedding_dropout)
            states = step.drop(self.module(embedded, mask), self.settings.dropout)
        return States(mean_states(states, mask), states, mask)

    def freeze(self, tokenizer: Sequences) -> FrozenRecurrent:
        """Give the encoder as arrays."""
        return FrozenRecurrent(**vars(super().freeze(tokenizer)))


def shortened(inputs: Ordered) -> Ordered:
    """Leave out places where no text has a word."""
    return Ordered(inputs.ids[:, : max(1, int((inputs.ids > 0).sum(axis=1).max(initial=0)))])


def mean_states(states: Tensor, mask: Tensor) -> Tensor:
    """Average the states of each text: (B, D)."""
    return states.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp_min(1)


@torch.no_grad()
def states_of(layers: nn.Module, inputs: Ordered, vectors: Floats) -> tuple[Tensor, Tensor]:
    """Read texts outside of training, with word vectors (V, D): states (N, T, D), and which words there are."""
    inputs = shortened(inputs)
    words = np.unique(inputs.ids.ravel())
    places = torch.from_numpy(np.searchsorted(words, inputs.ids))
    mask = torch.from_numpy(inputs.ids > 0)
    return layers(looked_up(inputs, places, torch.from_numpy(np.array(vectors[words]))), mask), mask
