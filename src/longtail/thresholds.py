"""HELD-OUT PREDICTIONS → THRESHOLDS: which scores are good enough to say yes, for F1 or for a wanted precision.

The predictions of held-out points are kept with a model, so that thresholds can be tuned whenever they are asked for:
one for all labels ("global"), one for head, torso and tail each ("bins"), or one for each label with enough held-out
points ("labels"; the others have that of their bin). "bins:0.9" asks for a precision of 0.9 instead of the best F1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, ModelError, nearest
from longtail.files import read_arrays, write_arrays
from longtail.labels.propensity import bins
from longtail.types import Floats, Ints, LabelMatrix, TopK, contains

FILE = "thresholds.safetensors"
KINDS = ("global", "bins", "labels")
BINS = 3  # head, torso, tail
LEAST, FEW = 20, 5  # positives that a bin, and a label, needs for a threshold of its own
Chooser = Callable[[Floats, NDArray[np.bool_], int], float]


@dataclass(frozen=True)
class Decision:
    """How to decide: the kind of thresholds, and the precision that is wanted; None: the best F1."""

    kind: str
    precision: float | None = None

    @classmethod
    def parse(cls, text: str) -> Decision:
        """Read "global", "bins" or "labels", with a wanted precision after a colon.

        >>> Decision.parse("bins:0.9")
        Decision(kind='bins', precision=0.9)
        """
        kind, colon, share = text.partition(":")
        if kind not in KINDS:
            raise DataError(f"there are no thresholds {kind!r}", remedy=nearest(kind, KINDS))
        try:
            precision = float(share) if colon else None
        except ValueError:
            precision = -1.0
        if precision is not None and not 0 < precision <= 1:
            raise DataError(f"a precision of {share!r}", remedy=f"give a share, more than 0 and at most 1: {kind}:0.9")
        return cls(kind, precision)

    def __call__(self, scores: Floats, hits: NDArray[np.bool_], positives: int) -> float:
        """Choose the threshold of a group of predictions, with so many positives found or not."""
        return best_f1(scores, hits, positives) if self.precision is None else reached(scores, hits, self.precision)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions for points that nothing was learnt from, and how many of these points have each label."""

    scores: Floats  # (P,)
    labels: Ints  # (P,)
    hits: NDArray[np.bool_]  # (P,)
    positives: NDArray[np.int64]  # (L,)
    _tuned: dict[tuple[Decision, int], Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, top: TopK, targets: LabelMatrix) -> HeldOut | None:
        """Take the predictions of points whose labels are known; None where they say too little."""
        mask = top.labels >= 0
        hits = contains(targets, top.labels)[mask]
        if hits.sum() < LEAST:
            return None
        return cls(top.scores[mask], top.labels[mask], hits, np.bincount(targets.indices, minlength=targets.shape[1]))

    def thresholds(self, decision: Decision, frequencies: NDArray[Any]) -> Floats:
        """Tune a threshold for each label, (L,), by their training points; new labels are of the tail."""
        key = decision, len(frequencies)
        if key not in self._tuned:
            self._tuned[key] = self._tune(decision, frequencies)
        return self._tuned[key]

    def _tune(self, decision: Decision, frequencies: NDArray[Any]) -> Floats:
        count = len(self.positives)
        out = np.full(len(frequencies), decision(self.scores, self.hits, int(self.positives.sum())), np.float32)
        if decision.kind == "global":
            return out
        groups = bins(frequencies, BINS)
        for number in range(BINS):
            mask = groups[self.labels] == number
            positives = int(self.positives[groups[:count] == number].sum())
            if positives >= LEAST and self.hits[mask].any():
                out[groups == number] = decision(self.scores[mask], self.hits[mask], positives)
        if decision.kind == "labels":
            order = np.argsort(self.labels, kind="stable")
            names, starts = np.unique(self.labels[order], return_index=True)
            for label, own in zip(names.tolist(), np.split(order, starts[1:]), strict=True):
                if self.positives[label] >= FEW and self.hits[own].any():
                    out[label] = decision(self.scores[own], self.hits[own], int(self.positives[label]))
        return out

    def save(self, folder: Path) -> None:
        """Write into a model folder."""
        labels = np.flatnonzero(self.positives)
        arrays: dict[str, NDArray[Any]] = {"scores": self.scores, "labels": self.labels}
        arrays |= {"hits": self.hits.astype(np.uint8), "shape": np.array([len(self.positives)])}
        write_arrays(folder / FILE, arrays | {"with": labels, "positives": self.positives[labels]})

    @classmethod
    def load(cls, folder: Path, labels: int) -> HeldOut | None:
        """Open what `save` wrote for a model with so many labels, if it is there."""
        if not (folder / FILE).exists():
            return None
        arrays = read_arrays(folder / FILE)
        positives, own = np.zeros(labels, np.int64), arrays["labels"]
        some = arrays["with"]
        inside = all(not len(part) or 0 <= part.min() <= part.max() < labels for part in (own, some))
        if not inside or not len(own) == len(arrays["scores"]) == len(arrays["hits"]) or arrays["shape"][0] != labels:
            raise ModelError(f"{folder / FILE}: does not fit the labels of the model; train again")
        positives[some] = arrays["positives"]
        return cls(arrays["scores"], own, arrays["hits"] > 0, positives)


def best_f1(scores: Floats, hits: NDArray[np.bool_], positives: int) -> float:
    """Choose the threshold with the largest F1 of all predictions together.

    >>> best_f1(np.float32([0.9, 0.8, 0.2]), np.array([True, True, False]), 2)
    0.5
    """
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(hits[order])
    values = 2 * found / (np.arange(1, len(order) + 1) + max(positives, 1))
    return _between(scores[order], int(np.where(_last(scores[order]), values, -1).argmax()))


def reached(scores: Floats, hits: NDArray[np.bool_], precision: float) -> float:
    """Choose the lowest threshold above which so large a share is right; infinity where no threshold reaches it.

    >>> round(reached(np.float32([0.9, 0.7, 0.5, 0.1]), np.array([True, True, False, False]), 0.6), 2)
    0.3
    """
    order = np.argsort(-scores, kind="stable")
    shares = np.cumsum(hits[order]) / np.arange(1, len(order) + 1)
    good = np.flatnonzero((shares >= precision) & _last(scores[order]))
    return _between(scores[order], int(good[-1])) if len(good) else np.inf


def _last(ranked: Floats) -> NDArray[np.bool_]:
    """Return which of equal scores is the last: a threshold cannot part them."""
    return np.append(ranked[1:] != ranked[:-1], True)


def _between(ranked: Floats, place: int) -> float:
    """Return what lies in the middle between a score and the next lower one."""
    return float(ranked[place] if place + 1 == len(ranked) else (ranked[place] + ranked[place + 1]) / 2)
