"""BATCH → MIXED BATCH: the vector of a point moves towards that of another point, or of one of its labels.

The share λ ~ Beta(α, α) of the point's own vector and targets stays, drawn anew for each point; the rest comes from the
partner. The model mixes vectors, here only partners and targets are drawn. Points without labels stay as they are.

References: [Gandalf] table 6; methods §6.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.augment.labelmix import tail_weights
from longtail.augment.mixed import EmbeddingMixer, Mixed, blended, drawn_labels, rows_of
from longtail.augment.soft import SoftTargets, need_label_texts
from longtail.data.dataset import Split
from longtail.parts import Augmentation, Fit, Place, Step
from longtail.records import record
from longtail.types import Floats, LabelMatrix

if TYPE_CHECKING:
    from torch import Tensor


@record
class MixUp(Augmentation):
    """Settings of MixUp: the partner is another point of the batch, targets become λ y_i + (1 - λ) y_j."""

    part: ClassVar[str] = "mixup"
    acts_on: ClassVar[tuple[Place, ...]] = EmbeddingMixer.acts_on
    alpha: float = Field(default=0.4, gt=0)  # of the Beta distribution that the share is drawn from

    def prepare(self, fit: Fit) -> PointMixer:
        """Return what mixes the batches; nothing has to be computed."""
        return PointMixer(self)


@dataclass(frozen=True, eq=False)
class PointMixer(EmbeddingMixer):
    """MixUp made ready.

    >>> targets = sp.csr_array(np.array([[1, 0], [0, 1]], np.float32))
    >>> mixed = PointMixer(MixUp()).draw(targets, np.random.default_rng(3))
    >>> mixed.points, mixed.share.round(2)
    (array([1, 0]), array([0.05, 0.99], dtype=float32))
    >>> mixed.targets.toarray().round(2)
    array([[0.05, 0.95],
           [0.01, 0.99]], dtype=float32)
    """

    settings: MixUp

    def draw(self, targets: LabelMatrix, random: np.random.Generator) -> Mixed:
        """Draw partners by a permutation of the batch, and shares."""
        partners = random.permutation(targets.shape[0])
        share = _shares(self.settings.alpha, np.diff(targets.indptr) > 0, random)
        return Mixed(blended(targets, targets[partners], share), share=share, points=partners)

    def partners(self, mixed: Mixed, embedded: Tensor, step: Step) -> Tensor:
        """Return the embeddings of other points of the batch."""
        import torch  # noqa: PLC0415  (only where embeddings are)

        return embedded[torch.as_tensor(mixed.points, device=embedded.device)]


@record
class ManifoldMixUp(MixUp):
    """Settings of manifold MixUp: what the encoder makes of two points is mixed, instead of their embeddings."""

    part: ClassVar[str] = "manifoldmixup"
    acts_on: ClassVar[tuple[Place, ...]] = ("batch", "states")

    def prepare(self, fit: Fit) -> StateMixer:
        """Return what mixes the batches; nothing has to be computed."""
        return StateMixer(self)


@dataclass(frozen=True, eq=False)
class StateMixer(PointMixer):
    """Manifold MixUp made ready."""

    acts_on: ClassVar[tuple[Place, ...]] = ManifoldMixUp.acts_on

    def apply(self, place: Place, value: Any, step: Step) -> Any:
        """Change the targets of a batch, or mix its vectors."""
        if place == "batch":
            return super().apply(place, value, step)
        return replace(value, pooled=super().apply(place, value.pooled, step))


@record
class LabelMixUp(SoftTargets):
    """Settings of Label-MixUp: the partner is the text of one of the point's labels, drawn as in LabelMix.

    Targets become λ y + (1 - λ) times the label's row of the label graph, where the label itself has 1.
    """

    part: ClassVar[str] = "labelmixup"
    acts_on: ClassVar[tuple[Place, ...]] = EmbeddingMixer.acts_on
    alpha: float = Field(default=0.4, gt=0)  # of the Beta distribution that the share is drawn from
    # rare labels of a point are drawn more often: frequency to the power of minus this
    exponent: float = Field(default=0.5, ge=0)

    def prepare(self, fit: Fit) -> LabelTextMixer:
        """Make ready for the steps of a training."""
        return self.mixer(fit.train, seed=fit.seed)

    def mixer(self, train: Split, *, seed: int = 0) -> LabelTextMixer:
        """Compute the label graph and the weights of the labels from the original points."""
        need_label_texts(train, "Label-MixUp, which mixes in the text of a label,")
        points = train.original.targets
        graph = self.weights(points, threshold=self.threshold, seed=seed)
        return LabelTextMixer(self, tail_weights(points, self.exponent), graph)


@dataclass(frozen=True, eq=False)
class LabelTextMixer(EmbeddingMixer):
    """Label-MixUp made ready for one training set."""

    settings: LabelMixUp
    weights: NDArray[np.float64]  # (L,) r
    graph: sp.csr_array  # (L, L)

    def draw(self, targets: LabelMatrix, random: np.random.Generator) -> Mixed:
        """Draw a label of each point, and shares."""
        labels = drawn_labels(targets, self.weights, random)
        share = _shares(self.settings.alpha, labels >= 0, random)
        return Mixed(blended(targets, rows_of(self.graph, labels), share), share=share, labels=labels)

    def partners(self, mixed: Mixed, embedded: Tensor, step: Step) -> Tensor:
        """Return the embeddings of label texts."""
        names = step.network.points.names
        if names is None or mixed.labels is None:
            return embedded
        return step.network.tower.embed(names.take(np.maximum(mixed.labels, 0)))


def _shares(alpha: float, mixed: NDArray[np.bool_], random: np.random.Generator) -> Floats:
    """Draw λ for each point; those that are not mixed keep all of theirs."""
    return np.where(mixed, random.beta(alpha, alpha, len(mixed)), 1).astype(np.float32)
