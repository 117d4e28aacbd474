"""BATCH → MIXED BATCH: now and then a point's text is followed by the text of one of its labels.

A point i is mixed with probability 0.4. Its partner is one of its labels, drawn with probability y_ij r_j / Σ y_il r_l
where r_l = n_l^-½ prefers the tail. The text becomes x ++ z_j and the targets min(1, y + row j of the label graph), and
what is not above the threshold becomes 0. The number of points stays.

References: [InceptionXML-LF] LabelMix; methods §6.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.augment.mixed import Mixed, drawn_labels, rows_of, tidied
from longtail.augment.soft import SoftTargets, made_by, need_label_texts
from longtail.data.dataset import Split
from longtail.labels.propensity import frequencies
from longtail.parts import Batch, Fit, Place, Step
from longtail.records import record
from longtail.types import LabelMatrix, Texts


@record
class LabelMix(SoftTargets):
    """Settings of LabelMix; `soft=False` leaves the targets as they are (the ablation without soft annotation)."""

    part: ClassVar[str] = "labelmix"
    acts_on: ClassVar[tuple[Place, ...]] = ("batch",)
    can_act_once: ClassVar[bool] = True
    graph: Literal["conditionals", "walk", "glas"] = "walk"  # the label graph that gives soft targets
    probability: float = Field(default=0.4, ge=0, le=1)  # that the text of a label is appended to a point
    # rare labels of a point are drawn more often: frequency to the power of minus this
    exponent: float = Field(default=0.5, ge=0)
    soft: bool = True  # whether targets change too

    def prepare(self, fit: Fit) -> LabelMixer:
        """Make ready for the steps of a training."""
        return self.mixer(fit.train, seed=fit.seed)

    def mixer(self, train: Split, *, seed: int = 0) -> LabelMixer:
        """Compute the label graph and the weights of the labels from the original points."""
        need_label_texts(train, "LabelMix, which appends the text of a label,")
        points = train.original.targets
        graph = None
        if self.soft:
            # An edge under the threshold can matter only where it is added to a soft target.
            hard = bool((train.targets.data == 1).all())
            graph = self.weights(points, threshold=self.threshold if hard else 0, seed=seed)
        return LabelMixer(self, tail_weights(points, self.exponent), graph)

    def augment_once(self, train: Split, *, seed: int = 0) -> Split:
        """Mix all points once, for trainers that cannot do it in every batch; the number of points stays.

        >>> from longtail.data.dataset import from_rows
        >>> data = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
        >>> LabelMix(probability=1).augment_once(data.train).texts.tolist()
        ['red cat cat', 'old dog dog']
        """
        texts, names = train.need_texts("LabelMix"), need_label_texts(train, "LabelMix")
        random = np.random.default_rng((seed, 3))
        mixer = self.mixer(train, seed=seed)
        followed = mixer.partners(train.targets, random)
        targets = mixer.annotated(train.targets, followed)
        # A pair that is never trained on does not come back through a neighbour of the partner.
        if train.excluded.nnz:
            targets = sp.csr_array(targets - targets.multiply(train.excluded.astype(np.bool_)))
            targets.eliminate_zeros()
        longer = Texts(_followed(texts, names, followed))
        marks = made_by(train, followed >= 0)
        return replace(train, texts=longer, targets=targets, augmented=marks, source=train.original)


@dataclass(frozen=True, eq=False)
class LabelMixer:
    """LabelMix made ready for one training set."""

    settings: LabelMix
    weights: NDArray[np.float64]  # (L,) r
    graph: sp.csr_array | None  # (L, L), none without soft annotation
    acts_on: ClassVar[tuple[Place, ...]] = LabelMix.acts_on

    def apply(self, place: Place, batch: Batch, step: Step) -> Batch:
        """Let the texts of labels follow those of points, and change the targets."""
        mixed = self.draw(batch.targets, step.draw)
        names = step.network.points.names
        if names is None or mixed.followed is None:
            return replace(batch, targets=mixed.targets)
        return replace(batch, targets=mixed.targets, inputs=batch.inputs.followed(names, mixed.followed))

    def draw(self, targets: LabelMatrix, random: np.random.Generator) -> Mixed:
        """Mix a batch: the labels whose texts follow its points, and the targets that this gives them."""
        followed = self.partners(targets, random)
        return Mixed(self.annotated(targets, followed), followed=followed)

    def partners(self, targets: LabelMatrix, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw the label whose text follows each point, (B,) with -1 for those that stay unchanged."""
        mixed = random.random(targets.shape[0]) < self.settings.probability
        return np.where(mixed, drawn_labels(targets, self.weights, random), -1)

    def annotated(self, targets: LabelMatrix, followed: NDArray[np.int64]) -> LabelMatrix:
        """Add the partners' rows of the graph, cut at 1, and drop what is not above the threshold."""
        if self.graph is None:
            return targets
        added = sp.csr_array(targets + rows_of(self.graph, followed))
        rows = np.repeat(np.arange(len(followed)), np.diff(added.indptr))
        added.data[(added.data <= self.settings.threshold) & (followed[rows] >= 0)] = 0
        return tidied(added)


def tail_weights(targets: LabelMatrix, exponent: float) -> NDArray[np.float64]:
    """Weigh labels by their frequency to the power of -exponent, (L,): the tail is drawn more often."""
    weights: NDArray[np.float64] = np.maximum(frequencies(targets), 1) ** -exponent
    return weights


def _followed(texts: Texts, names: Texts, partners: NDArray[Any]) -> Iterator[str]:
    """Append the partner's text to each text that has one."""
    appended = iter(names.take(partners[partners >= 0]))
    for text, partner in zip(texts, partners, strict=True):
        yield f"{text} {next(appended)}" if partner >= 0 else text
