"""WORD VECTORS IN TRAINING: the table that towers of words share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from longtail.encoders.inputs import Bags
from longtail.labels.tree import Clusters
from longtail.machine import compiles
from longtail.parts import Arrays, Inputs, Network, Table


class WordTower:
    """A tower over one table of word vectors; `module` holds its other parameters."""

    module: nn.Module

    def __init__(self, start: Arrays, network: Network) -> None:
        self.words = network.table(start["words"].copy(), frozen=network.frozen)  # others start there too
        self.tables: dict[str, Table] = {"words": self.words}
        self.expected: tuple[NDArray[np.int64], Tensor] | None = None  # words of this step and their vectors
        self.places = np.zeros(len(self.words.values), np.int64)  # of the expected words among these; others are old

    def expect(self, *inputs: Inputs) -> None:
        """Gather the vectors of all words that this step will encode at once; no inputs: forget them."""
        self.expected = None
        if inputs:
            words = np.unique(np.concatenate([part.words() for part in inputs])).astype(np.int64)
            self.places[words] = np.arange(len(words))
            self.expected = words, self.words.gather(words)

    def gather(self, ids: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Return where each word of `ids` stands among gathered vectors, and these."""
        if self.expected is not None:
            words, vectors = self.expected
            places = self.places.take(ids)
            if np.array_equal(words.take(places, mode="clip"), ids):
                return torch.from_numpy(places).to(vectors.device), vectors
        words = np.unique(ids).astype(np.int64)
        vectors = self.words.gather(words)
        return torch.from_numpy(np.searchsorted(words, ids)).to(vectors.device), vectors

    def weighed(self, inputs: Any) -> Bags:
        """Weigh the words of texts."""
        return Bags(inputs.bags(len(self.words.values)))

    def bags(self, names: Any, partition: Clusters | None = None) -> Bags:
        """Weigh the words of label texts, or of clusters of labels."""
        bags = self.weighed(names)
        return bags if partition is None else Bags(partition.merged(bags.matrix))

    def sums(self, bags: Bags) -> Tensor:
        """Sum the vectors of the words of bags: (B, D)."""
        places, vectors = self.gather(bags.matrix.indices)
        starts = torch.from_numpy(bags.matrix.indptr.astype("int64")).to(vectors.device)
        weights = torch.from_numpy(bags.matrix.data).to(vectors.device)
        if compiles() and vectors.device.type == "cpu" and weights.dtype == vectors.dtype == torch.float32:
            out: Tensor = _Sums.apply(vectors, places, starts, weights)  # type: ignore[no-untyped-call]
            return out
        return functional.embedding_bag(places, vectors, starts[:-1], mode="sum", per_sample_weights=weights)

    def take_over(self, other: WordTower) -> None:
        """Start from the weights of another tower."""
        self.words.values.copy_(other.words.values)
        self.module.load_state_dict(other.module.state_dict())

    def vectors(self) -> NDArray[np.float32]:
        """Return the word vectors as they are now; they change with the next step."""
        vectors: NDArray[np.float32] = self.words.values.cpu().numpy()
        return vectors


class _Sums(torch.autograd.Function):
    """Weighted sums of vectors, compiled."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, places: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
        """Sum the vectors of each text."""
        from longtail import kernels  # noqa: PLC0415  (numba is an extra)

        ctx.save_for_backward(places, starts, weights)
        ctx.count = len(vectors)
        out = vectors.new_empty(len(starts) - 1, vectors.shape[1])
        given = (part.numpy() for part in (places, starts, weights, vectors.detach().contiguous(), out))
        kernels.sums(*given)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Give each vector what its texts say."""
        from longtail import kernels  # noqa: PLC0415  (numba is an extra)

        out = upstream.new_zeros(ctx.count, upstream.shape[1])
        kernels.sums_back(*(part.numpy() for part in (*ctx.saved_tensors, upstream.contiguous(), out)))
        return out, None, None, None
