"""SCORES → PROBABILITIES: how often a label with such a score turned out to be right, on points that were held out.

A monotone step function is fitted by pooling neighbours that stand in the wrong order (isotonic regression), and read
with straight lines between its steps, so that a better score never gets a smaller probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from longtail.arrays import Array, checked
from longtail.errors import ModelError
from longtail.files import read_arrays, write_arrays
from longtail.types import Floats, LabelMatrix, TopK, contains, counted

FILE = "probabilities.safetensors"
SCHEMA = Array("scores", ("steps",)), Array("values", ("steps",), low=0, high=1)
LEAST = 50  # predictions that are needed to say anything
PRIOR = 1.0  # hits and misses that are added to each pool: no probability is quite 0 or 1


@dataclass(frozen=True, eq=False)
class Probabilities:
    """Scores in ascending order and the probability of each; between them is a straight line.

    >>> calibrated = Probabilities.fit(np.linspace(0, 1, 100), np.arange(100) >= 50)
    >>> [round(float(value), 2) for value in calibrated(np.array([0.1, 0.9, -np.inf]))]
    [0.01, 0.99, 0.0]
    """

    scores: Floats  # (S,)
    values: Floats  # (S,)

    @classmethod
    def fit(cls, scores: NDArray[Any], hits: NDArray[Any]) -> Probabilities:
        """Fit to predictions with their scores, and whether each was right."""
        order = np.argsort(scores, kind="stable")
        pools: list[list[float]] = []  # of each: hits, predictions, lowest and highest score
        for score, hit in zip(np.asarray(scores)[order].tolist(), np.asarray(hits)[order].tolist(), strict=True):
            pools.append([float(hit), 1.0, score, score])
            while len(pools) > 1 and pools[-2][0] * pools[-1][1] >= pools[-1][0] * pools[-2][1]:
                last = pools.pop()
                pools[-1] = [pools[-1][0] + last[0], pools[-1][1] + last[1], pools[-1][2], last[3]]
        places = [edge for _, _, low, high in pools for edge in (low, high)]
        values = [(right + PRIOR / 2) / (count + PRIOR) for right, count, _, _ in pools for _ in range(2)]
        return cls(np.asarray(places, np.float32), np.maximum.accumulate(np.asarray(values, np.float32)))

    def __call__(self, scores: NDArray[Any]) -> Floats:
        """Turn scores into probabilities; what is not there (-inf) has none."""
        out = np.interp(scores, self.scores, self.values)
        return np.where(np.isneginf(scores), 0, out).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write into a model folder."""
        write_arrays(folder / FILE, {"scores": self.scores, "values": self.values})

    @classmethod
    def load(cls, folder: Path) -> Probabilities | None:
        """Open what `save` wrote, if it is there."""
        if not (folder / FILE).exists():
            return None
        curve = cls(*checked(read_arrays(folder / FILE), SCHEMA))
        if not len(curve.scores) or any((part[1:] < part[:-1]).any() for part in (curve.scores, curve.values)):
            raise ModelError(f"{folder / FILE}: not a rising curve of probabilities; train again")
        return curve


def fit_probabilities(top: TopK, targets: LabelMatrix) -> Probabilities | None:
    """Fit to predictions of points whose labels are known; None where they are too few to say anything."""
    mask = top.labels >= 0
    if mask.sum() < LEAST:
        return None
    return Probabilities.fit(top.scores[mask], contains(targets, top.labels)[mask])


@dataclass(frozen=True)
class Evidence:
    """What was held out in training: points (None where nobody knows), the predictions for them, and the right ones.

    >>> Evidence(4, 12, 3).lack("right prediction", 20)
    '4 points were held out in training, with 3 right predictions, and 20 are needed'
    """

    points: int | None = None
    predictions: int = 0
    right: int = 0

    def __post_init__(self) -> None:
        if any(type(count) is not int or count < 0 for count in (self.points or 0, self.predictions, self.right)):
            raise ModelError("the counts of held-out points are damaged; train again")

    @classmethod
    def of(cls, top: TopK, targets: LabelMatrix) -> Evidence:
        """Count the predictions for points whose labels are known."""
        return cls(len(top), int((top.labels >= 0).sum()), int(contains(targets, top.labels).sum()))

    def lack(self, what: Literal["prediction", "right prediction"], needed: int) -> str:
        """Say why that is not enough."""
        if not self.points:
            return f"no points{', or too few,' if self.points is None else ''} were held out in training"
        found = counted(self.predictions if what == "prediction" else self.right, what)
        held = f"{counted(self.points, 'point')} {'was' if self.points == 1 else 'were'} held out in training"
        return f"{held}, with {found}, and {needed} are needed"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.points:
            return "train with more points"
        return "train a recipe that chooses on held-out points (knn, frugal), with more points"


@dataclass(frozen=True)
class Reliability:
    """Predictions with about the same probability: the mean prediction, the observed share, and how many they are."""

    predicted: float
    observed: float
    count: int


def reliability(probabilities: NDArray[Any], hits: NDArray[Any], bins: int = 10) -> list[Reliability]:
    """Compare predicted and observed shares in bins of equal width; empty ones are left out.

    >>> reliability(np.array([0.1, 0.15, 0.9]), np.array([False, False, True]), bins=2)
    [Reliability(predicted=0.125, observed=0.0, count=2), Reliability(predicted=0.9, observed=1.0, count=1)]
    """
    predicted = np.asarray(probabilities, np.float64).ravel()
    observed = np.asarray(hits).ravel()
    bin_of = np.minimum((predicted * bins).astype(int), bins - 1)
    rows = []
    for number in range(bins):
        inside = bin_of == number
        if inside.any():
            rows.append(Reliability(float(predicted[inside].mean()), float(observed[inside].mean()), int(inside.sum())))
    return rows
