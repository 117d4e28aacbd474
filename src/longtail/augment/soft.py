"""LABEL MATRIX → SOFT TARGETS OF LABELS: what Gandalf and LabelMix share.

Row j says how relevant every label is to a text that means label j. Graphs, frequencies and bins always come from the
original points (`Split.original`), never from those that an augmentation made or changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.data.dataset import Split
from longtail.errors import DataError
from longtail.labels.calibration import above
from longtail.labels.graph import conditionals, random_walk, ratios, sigmoid_targets, similarity
from longtail.labels.walk import HEAD, HOPS, RESTART, TOP
from longtail.parts import Augmentation, Place
from longtail.records import record
from longtail.types import LabelMatrix, Texts, label_matrix


@record
class SoftTargets(Augmentation):
    """Settings of the label graph; `hops`, `restart`, `top` and `head` are those of the walk."""

    acts_on: ClassVar[tuple[Place, ...]] = ("dataset",)
    graph: Literal["conditionals", "walk", "glas"] = "conditionals"  # how label correlations are estimated
    threshold: float = Field(default=0.1, ge=0, lt=1)  # smaller targets are dropped
    hops: int = Field(default=HOPS, ge=1)  # steps of the random walk
    restart: float = Field(default=RESTART, ge=0, le=1)  # probability that the walk goes back to its label
    top: int | None = Field(default=TOP, ge=1)  # neighbours that a label keeps; None: all
    head: int = Field(default=HEAD, ge=0)  # labels with more points than this are not walked over; 0: all are

    def weights(self, targets: LabelMatrix, *, threshold: float, seed: int, own: bool = True) -> sp.csr_array:
        """Return the graph's rows (L, L), values in (0, 1] strictly above the threshold, the self edge always kept.

        `own` makes the self edge of σ(S) 1; the other graphs have it anyway.
        """
        if self.graph == "conditionals":
            return conditionals(targets, threshold=threshold)
        if self.graph == "glas":
            return sigmoid_targets(similarity(targets, threshold=threshold), own=own)
        walk = random_walk(targets, hops=self.hops, restart=self.restart, top=self.top, head=self.head, seed=seed)
        return above(ratios(walk), threshold)


def need_label_texts(train: Split, what: str) -> Texts:
    """Return the label texts, or say why `what` cannot work without them."""
    if train.labels.texts is None:
        raise DataError(
            f"the labels of this data set have no texts, and {what} works with label texts",
            remedy="add a label file (lbl.jsonl, Y.txt …), or train without it: knn alone needs no label texts",
        )
    return train.labels.texts


def made_by(train: Split, fresh: NDArray[Any]) -> NDArray[np.bool_]:
    """Add the points that are fresh (N,) to those that an earlier augmentation made."""
    before = np.zeros(len(train), np.bool_) if train.augmented is None else train.augmented
    both: NDArray[np.bool_] = before | fresh
    return both


def binarised(train: Split, cut: float) -> Split:
    """Leave out the targets below a cut and make the others 1, for trainers that take hard labels only."""
    targets = train.targets
    kept = np.where(targets.data >= np.float32(cut), 1, 0)
    return replace(train, targets=label_matrix(targets.indptr, targets.indices, targets.shape, kept))
