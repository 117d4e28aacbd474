"""LABELS + TWO POINTS EACH → ENCODER: points and label texts learn to lie side by side, label by label.

A batch is a batch of labels. For each, two of its points are drawn: the first is to be near its label and far from the
hardest other label of the batch, and so is the middle between the second and the text of its label. References:
[SiameseXML]; methods §5.7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from longtail.errors import DataError, RecipeError
from longtail.parts import DRAWN, Batch, Fit, Objective, Place, Points, States, Step
from longtail.records import named, record
from longtail.training.settings import LoopSettings, LoopStage
from longtail.training.stages.training import prepared
from longtail.types import LabelMatrix, no_pairs


def contrast_labels() -> Objective:
    """Return the usual objective: cosines between points and what the encoder makes of label texts."""
    texts = named("label_text", texts="tower", transform=None, cosine=True, scale=1.0, learn_scale=False)
    return Objective(sampler=named("drawn"), classifier=texts, loss=named("contrastive"))


@record
class Siamese(LoopStage):
    """Settings of the stage; `mixed` is the weight of the points that are mixed with the text of their label."""

    part: ClassVar[str] = "siamese"
    place: ClassVar[int] = 0
    objective: Objective = Field(default_factory=contrast_labels)  # what its steps minimise
    mixed: float = Field(default=0.3, ge=0, le=1)  # weight of points that are mixed with the text of their label
    # settings of its loop
    training: LoopSettings = LoopSettings(epochs=50, batch_size=1024, learning_rate=0.01, schedule="step")
    freeze: bool = True  # whether the encoder stays as it is afterwards

    def check(self, recipe: Any) -> None:
        """Ask for the sampler that takes labels as they are drawn."""
        if self.objective.sampler.part != "drawn":
            raise RecipeError(f"{recipe.name}: the stage siamese needs the sampler drawn")
        if self.training.order.part != "shuffled":
            raise RecipeError(f"{recipe.name}: the stage siamese draws labels, whose order can only be shuffled")
        super().check(recipe)

    def run(self, fit: Fit) -> Fit:
        """Train the encoder."""
        from longtail.training.loop import run_loop  # noqa: PLC0415  (torch)
        from longtail.training.network import TrainedNetwork  # noqa: PLC0415

        names = fit.points.names
        if names is None:
            raise DataError(
                "the labels of this data set have no texts, and a siamese encoder learns from them",
                remedy="add a label file (lbl.jsonl, Y.txt …), or train astec or frugal",
            )
        pairs = Pairs.of(fit, self.mixed)
        labels = np.flatnonzero(np.diff(pairs.by_label.indptr))
        count = len(fit.train.labels)
        own = sp.csr_array((np.ones(len(labels), np.float32), (np.arange(len(labels)), labels)), (len(labels), count))
        ones = np.ones(len(labels), np.float32)
        points = Points(names.take(labels), own, no_pairs((len(labels), count)), ones, names)
        augmentations = [*prepared(fit, ("words",)), pairs]
        by_labels = fit.changed(points=points)
        network = TrainedNetwork(by_labels, (self.objective,), self.training, augmentations=augmentations)
        run_loop(network, self.part, self.training)
        return fit.changed(before=network, frozen=self.freeze)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Draws two points for each label of a batch."""

    points: Points
    by_label: LabelMatrix  # (L, N) the original points of each label
    mixed: float
    acts_on: ClassVar[tuple[Place, ...]] = ("batch", "states")

    @classmethod
    def of(cls, fit: Fit, mixed: float) -> Pairs:
        """Sort the original points by label; those that an augmentation made come in the stages after this one."""
        targets = fit.points.targets
        if fit.train.augmented is not None:
            original = sp.diags_array(1.0 - fit.train.augmented, dtype=np.float32)
            targets = sp.csr_array(original @ targets)
            targets.eliminate_zeros()
        return cls(fit.points, sp.csr_array(targets.T), mixed)

    def apply(self, place: Place, value: Any, step: Step) -> Any:
        """Exchange labels for points, or mix the second half of these with the texts of their labels."""
        return self._drawn(value, step) if place == "batch" else self._mixed(value, step)

    def _drawn(self, batch: Batch, step: Step) -> Batch:
        labels = batch.targets.indices.astype(np.int64)
        step.memory[DRAWN] = labels
        starts, sizes = self.by_label.indptr[labels], np.diff(self.by_label.indptr)[labels]
        places = starts + (step.draw.random((2, len(labels))) * sizes).astype(np.int64)
        rows = self.by_label.indices[places].ravel().astype(np.int64)
        weights = np.repeat(np.array([2 * (1 - self.mixed), 2 * self.mixed], np.float32), len(labels))
        return replace(self.points.take(rows), weights=weights)

    def _mixed(self, states: States, step: Step) -> States:
        import torch  # noqa: PLC0415
        from torch.nn import functional  # noqa: PLC0415

        names = self.points.names
        assert names is not None, "Siamese.run has seen them"
        labels = step.memory[DRAWN]
        texts = step.network.tower(names.take(labels), step.plain()).pooled
        first, second = states.pooled[: len(labels)], states.pooled[len(labels) :]
        middle = functional.normalize(second) + functional.normalize(texts)
        return replace(states, pooled=torch.cat([first, middle]))
