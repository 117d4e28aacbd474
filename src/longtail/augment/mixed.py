"""BATCH → MIXED BATCH: what the augmentations of batches give to the model, and the draws that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.parts import Place, Step
from longtail.types import Floats, LabelMatrix

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mixed:
    """What an augmentation makes of a batch: new targets, and with what each point is mixed."""

    targets: LabelMatrix  # (B, L)
    followed: NDArray[np.int64] | None = None  # (B,) the label whose text follows the point's; -1 none
    share: Floats | None = None  # (B,) how much of the point's own embedding stays
    points: NDArray[np.int64] | None = None  # (B,) place in the batch of the partner
    labels: NDArray[np.int64] | None = None  # (B,) partner label whose text is mixed in, -1 none


class EmbeddingMixer(ABC):
    """An augmentation that draws partners for a batch and then mixes embeddings with theirs."""

    acts_on: ClassVar[tuple[Place, ...]] = ("batch", "embeddings")

    @abstractmethod
    def draw(self, targets: LabelMatrix, random: np.random.Generator) -> Mixed:
        """Draw partners and shares for a batch with these targets (B, L)."""

    @abstractmethod
    def partners(self, mixed: Mixed, embedded: Tensor, step: Step) -> Tensor:
        """Return the embeddings of the partners."""

    def apply(self, place: Place, value: Any, step: Step) -> Any:
        """Change the targets of a batch, or mix its embeddings (B, …)."""
        if place == "batch":
            mixed = step.memory[self] = self.draw(value.targets, step.draw)
            return replace(value, targets=mixed.targets)
        import torch  # noqa: PLC0415  (only where embeddings are)

        mixed = step.memory[self]
        shares = torch.from_numpy(mixed.share).to(value.device).reshape(-1, *[1] * (value.dim() - 1))
        return shares * value + (1 - shares) * self.partners(mixed, value, step)


def drawn_labels(targets: LabelMatrix, weights: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw one label of each point with probability ∝ target × weight (L,): (B,), -1 for points that have none.

    >>> targets = sp.csr_array(np.array([[0, 1, 0], [0, 0, 0]], np.float32))
    >>> drawn_labels(targets, np.ones(3), np.random.default_rng(0))
    array([ 1, -1])
    """
    place = random.random(targets.shape[0])
    heaped = np.concatenate([[0.0], np.cumsum(weights[targets.indices] * targets.data)])
    first, last = heaped[targets.indptr[:-1]], heaped[targets.indptr[1:]]
    found = np.searchsorted(heaped, first + place * (last - first), "right") - 1
    found = np.clip(found, targets.indptr[:-1], targets.indptr[1:] - 1)  # rounding must not leave the row
    labels = np.full(len(place), -1, np.int64)
    some = last > first
    labels[some] = targets.indices[found[some]]
    return labels


def rows_of(graph: sp.csr_array, labels: NDArray[np.int64]) -> sp.csr_array:
    """Gather the rows of a label graph (L, L): (B, L), empty where the label is -1."""
    some = labels >= 0
    pointer = np.concatenate([[0], np.cumsum(some)]).astype(np.int32)
    chosen, ones = labels[some].astype(np.int32), np.ones(some.sum(), np.float32)
    choice = sp.csr_array((ones, chosen, pointer), shape=(len(labels), graph.shape[0]))
    return sp.csr_array(choice @ graph)


def blended(targets: LabelMatrix, others: sp.csr_array, share: Floats) -> LabelMatrix:
    """Return share · targets + (1 - share) · others row by row, canonical and at most 1.

    >>> one, other = (sp.csr_array(np.array([row], np.float32)) for row in ([1, 1, 0], [0, 1, 1]))
    >>> blended(one, other, np.array([0.75], np.float32)).toarray()
    array([[0.75, 1.  , 0.25]], dtype=float32)
    """
    own, theirs = (
        sp.csr_array((part.data * np.repeat(weight, np.diff(part.indptr)), part.indices, part.indptr), part.shape)
        for part, weight in ((targets, share), (others, 1 - share))
    )
    return tidied(sp.csr_array(own + theirs))


def tidied(targets: sp.csr_array) -> LabelMatrix:
    """Sort the labels of each point, cut values at 1 and drop zeros, in place."""
    np.minimum(targets.data, 1, out=targets.data)
    targets.eliminate_zeros()
    targets.sort_indices()
    return targets
