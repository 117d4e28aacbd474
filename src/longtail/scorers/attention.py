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
from longtail.scorers.wrapped import Ranked
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
        for first, states, mask in self._texts(query):
            for row, scores in enumerate(self._all_scores(states, mask), first):
                places, best = largest(scores, k)
                found[row, : len(places)], values[row, : len(best)] = places, best
        return found, values

    def by_rows(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""
        out = np.empty(len(rows), np.float32)
        starts = np.searchsorted(rows, np.arange(len(query) + 1))
        for first, states, mask in self._texts(query):
            for place in range(len(states)):
                some = slice(starts[first + place], starts[first + place + 1])
                if some.start < some.stop:
                    wanted = self.store.take(np.asarray(labels[some]))
                    out[some] = self._scores(states[place : place + 1], mask[place : place + 1], wanted)[0]
        return out

    def top_one(self, query: Query, n: int) -> Ranked:
        """Find the n best labels of the only text, best first; none where no word is known."""
        labels, scores = self.top(query, n)
        mask = labels[0] >= 0
        return labels[0][mask], scores[0][mask]

    def score_one(self, query: Query, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for the only text."""
        order = np.argsort(labels, kind="stable")
        scores = np.empty(len(labels), np.float32)
        scores[order] = self.pairs(query, np.zeros(len(labels), np.int64), labels[order])
        return scores

    def score_rows(self, query: Query, rows: Floats, bias: float, best: float) -> Floats:
        """Score rows of new labels beside trained ones, of which the best of this text has the score `best`."""
        _, states, mask = next(self._texts(query))
        scores = self._scores(states, mask, rows)[0] + np.float32(bias)
        if self.retriever is None:
            return np.asarray(np.minimum(scores, best), np.float32)
        return self.retriever.score_new(scores, scores, best)

    def looks(self, query: Query, labels: NDArray[Any]) -> tuple[list[str], Floats]:
        """Return the words of the only text as they are read, and how much each label looks at each: (K, T)."""
        _, states, mask = next(self._texts(query))
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

    def _texts(self, query: Query) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Encode a few texts at a time: the place of the first, their states, and which words there are."""
        import torch  # noqa: PLC0415

        inputs = self.tower.inputs(query)
        for first in range(0, len(query), TEXTS):
            states, mask = self.tower.tokens(inputs.take(np.arange(first, min(first + TEXTS, len(query)))))
            yield first, torch.from_numpy(states), torch.from_numpy(mask)

    def _all_scores(self, states: Tensor, mask: Tensor) -> Floats:
        """Score texts against all labels: (n, L)."""
        each = max(1, CELLS // max(1, mask.numel()))
        blocks = range(0, len(self), each)
        return np.concatenate(
            [self._scores(states, mask, self.store.take(slice(i, min(i + each, len(self))))) for i in blocks], axis=1
        )

    def _scores(self, states: Tensor, mask: Tensor, rows: Floats) -> Floats:
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
