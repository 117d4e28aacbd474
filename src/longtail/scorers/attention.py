"""QUERY → LABELS BY LABEL-WISE ATTENTION: each label weighs the words of a text for itself.

All labels are scored, a few texts and a stretch of labels at a time, or only those that a retriever proposes.
References: [AttentionXML]; methods §5.12.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from longtail.errors import ModelError
from longtail.parts import Arrays, Query, TokenTower
from longtail.scorers.vectors import VectorScorer
from longtail.search.exact import largest
from longtail.types import Floats, Ints

if TYPE_CHECKING:
    from torch import Tensor

TEXTS = 8  # that are scored at once
CELLS = 2**21  # weights of words for labels that are held at once
Layers = tuple[tuple[Floats, Floats], ...]  # weight (M, D) and bias (M,) of each


@dataclass(frozen=True, eq=False)
class AttentionScorer(VectorScorer):
    """The encoder, the rows by which labels look at words, and the layers that score what they see."""

    tower: TokenTower
    layers: Layers = ()

    @property
    def searchable(self) -> bool:
        """Whether labels are found by a search in the store: scores are no products."""
        return False

    def additive(self, scores: Floats) -> Floats:
        """Turn scores into what the members of an ensemble add up: probabilities."""
        return super().additive(scores) if self.retriever is not None else np.asarray(expit(scores), np.float32)

    def search(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best of all labels for each text."""
        found, values = np.full((len(query), k), -1, np.int32), np.full((len(query), k), -np.inf, np.float32)
        for some, states, mask in self._texts(query, np.arange(len(query))):
            for row, scores in zip(some, self._scores(states, mask, slice(0, len(self))), strict=True):
                places, best = largest(scores, k)
                found[row, : len(places)], values[row, : len(best)] = places, best
        return found, values

    def by_rows(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""
        out = np.empty(len(rows), np.float32)
        starts = np.searchsorted(rows, np.arange(len(query) + 1))
        wanted = np.flatnonzero(np.diff(starts))
        for some, states, mask in self._texts(query, wanted):
            for place, text in enumerate(some):
                own = slice(starts[text], starts[text + 1])
                one = slice(place, place + 1)
                out[own] = self._scores(states[one], mask[one], np.asarray(labels[own]))[0]
        return out

    def known(self, query: Query) -> NDArray[np.bool_]:
        """Return which texts have two words to choose from: (N, 1). Of a single one all labels see the same."""
        return np.asarray((self._inputs(query).ids > 0).sum(axis=1, keepdims=True) > 1, np.bool_)

    def knows(self, query: Query) -> bool:
        """Whether the only text has two words to choose from."""
        return bool(self.known(query)[0, 0])

    def score_rows(self, query: Query, rows: Floats, bias: float, best: float) -> Floats:
        """Score rows of new labels beside trained ones, of which the best of this text has the score `best`."""
        _, states, mask = next(self._texts(query, np.zeros(1, np.int64)))
        scores = self._by_layers(states, mask, rows)[0] + np.float32(bias)
        if self.retriever is None:
            return np.asarray(np.minimum(scores, best), np.float32)
        return self.retriever.score_new(scores, scores, best)

    def looks(self, query: Query, labels: NDArray[Any]) -> tuple[list[str], Floats]:
        """Return the words of the only text as they are read, and how much each label looks at each: (K, T)."""
        _, states, mask = next(self._texts(query, np.zeros(1, np.int64)))
        weights = word_weights(states, mask, as_tensor(self.store.take(labels)))[0].numpy()
        pieces = self.tower.pieces(query)
        return pieces, weights[:, : len(pieces)]

    def join(self, others: Sequence[Any], weights: Sequence[float]) -> Any:
        """Refuse: scores are no products that could be added up."""
        raise ModelError("label_attention cannot be joined with another objective; serve one of them")

    def operations(self) -> int:
        """Count the operations for one text of the full length and all labels that are scored."""
        tower: Any = self.tower
        length, labels, dim = tower.settings.max_tokens, len(self), self.store.dim
        own, scored = (0, labels) if self.retriever is None else self.retriever.operations(labels, dim)
        sizes = [len(bias) for _, bias in self.layers]
        behind = 2 * length * dim * sizes[0] + scored * sum(2 * a * b for a, b in itertools.pairwise(sizes))
        return int(tower.operations() + own + behind + 2 * scored * length * (dim + sizes[0]))

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        arrays = super().arrays()
        for place, (weight, bias) in enumerate(self.layers):
            arrays |= {f"attention.{place}.weight": weight, f"attention.{place}.bias": bias}
        return arrays

    @cached_property
    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        """The layers as tensors."""
        return [(as_tensor(weight), as_tensor(bias)) for weight, bias in self.layers]

    def _inputs(self, query: Query) -> Any:
        """Turn texts into numbers, once."""
        return query.once(self.tower, "inputs", lambda: self.tower.inputs(query))

    def _texts(self, query: Query, wanted: NDArray[Any]) -> Iterator[tuple[NDArray[Any], Tensor, Tensor]]:
        """Encode the texts at some places, a few at a time: their places, states, and which words there are."""
        import torch  # noqa: PLC0415

        inputs = self._inputs(query)
        for first in range(0, len(wanted), TEXTS):
            some = wanted[first : first + TEXTS]
            states, mask = self.tower.tokens(inputs.take(some))
            yield some, torch.from_numpy(states), torch.from_numpy(mask)

    def _scores(self, states: Tensor, mask: Tensor, labels: NDArray[Any] | slice) -> Floats:
        """Score texts (n, T, D) against labels, a stretch of them at a time: (n, K)."""
        count = labels.stop if isinstance(labels, slice) else len(labels)
        each = max(1, CELLS // max(1, len(mask) * max(mask.shape[1], *(len(bias) for _, bias in self.layers))))
        blocks = (slice(first, min(first + each, count)) for first in range(0, count, each))
        rows = (self.store.take(some if isinstance(labels, slice) else labels[some]) for some in blocks)
        return np.concatenate([self._by_layers(states, mask, some) for some in rows], axis=1)

    def _by_layers(self, states: Tensor, mask: Tensor, rows: Floats) -> Floats:
        """Score texts (n, T, D) against rows (K, D): (n, K)."""
        import torch  # noqa: PLC0415

        with torch.no_grad():
            (weight, bias), *others = self._layers
            hidden = word_weights(states, mask, as_tensor(rows)) @ (states @ weight.T) + bias
            for weight, bias in others:
                hidden = hidden.relu() @ weight.T + bias
            scores: Floats = hidden.squeeze(2).numpy()
        return scores


def as_tensor(array: Floats) -> Tensor:
    """Make a tensor of an array, which a model file may have mapped so that it cannot be written to."""
    import torch  # noqa: PLC0415

    return torch.from_numpy(array if array.flags.writeable else array.copy())


def word_weights(states: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """Return how much labels (K, D) look at the words of texts (B, T, D): (B, K, T), zero where there are no words."""
    products = (states @ rows.T).transpose(1, 2)
    weights = products.masked_fill(~mask[:, None], -math.inf).softmax(dim=2)
    return weights if bool(mask.any(dim=1).all()) else weights.nan_to_num(0.0)
