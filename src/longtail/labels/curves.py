"""COUNTS OF A PAIR OF LABELS → PROBABILITY: three curves that can be fitted, kept as JSON, and compared.

Each answers: label j has n_j points, label l has n_l, and G_jl points have both; how probable is it that a text which
means label j has label l? The plain conditional G_jl / n_j is the naive answer: it trusts one point as much as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, nearest

Numbers = NDArray[np.float64]

STEPS = (2, 3, 5, 10, 30)  # counts n_j at which a new isotonic curve may begin
LEAST = 100  # pairs that a curve of its own needs
RIDGE = 1.0  # of the logistic model, in units of one pair
ROUNDS = 50  # of Newton's method; it ends long before
ENOUGH = 100_000  # pairs for the few coefficients of the logistic model; more only cost time


class Counts(NamedTuple):
    """The counts of P pairs (j, l)."""

    together: Numbers  # (P,) G_jl
    own: Numbers  # (P,) n_j
    other: Numbers  # (P,) n_l

    def plain(self) -> Numbers:
        """Return the conditionals G_jl / n_j."""
        out: Numbers = self.together / self.own
        return out

    def take(self, rows: NDArray[Any] | slice) -> Counts:
        """Select pairs."""
        return Counts(*(column[rows] for column in self))


class Curve(Protocol):
    """A fitted curve."""

    @property
    def name(self) -> str:
        """The name in CURVES."""

    def __call__(self, counts: Counts) -> Numbers:
        """Return the probability of each pair, (P,)."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object that `curve_of` reads."""


def pooled(values: Numbers, weights: Numbers) -> Numbers:
    """Return the closest sequence that never falls, by pooling neighbours that do (weighted least squares).

    >>> pooled(np.array([1.0, 0.0, 2.0]), np.array([1.0, 3.0, 1.0])).tolist()
    [0.25, 0.25, 2.0]
    """
    sums: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        total, mass, size = value * weight, weight, 1
        while sums and sums[-1] * mass >= total * masses[-1]:
            total, mass, size = total + sums.pop(), mass + masses.pop(), size + sizes.pop()
        sums.append(total)
        masses.append(mass)
        sizes.append(size)
    return np.repeat(np.array(sums) / np.array(masses), sizes) if sums else np.zeros(0)


@dataclass(frozen=True)
class Isotonic:
    """A rising curve over the conditional for each range of n_j: from each of `starts` up to the next."""

    starts: tuple[int, ...]
    places: tuple[tuple[float, ...], ...]
    heights: tuple[tuple[float, ...], ...]
    name: str = "isotonic"

    @classmethod
    def fit(cls, counts: Counts, outcomes: NDArray[Any]) -> Isotonic:
        """Pool the outcomes, in the order of the conditional, until they rise."""
        starts = [1]
        for step in STEPS:
            inside = np.count_nonzero((counts.own >= starts[-1]) & (counts.own < step))
            if inside >= LEAST and np.count_nonzero(counts.own >= step) >= LEAST:
                starts.append(step)
        places, heights = [], []
        group = np.searchsorted(starts, counts.own, "right") - 1
        for number in range(len(starts)):
            inside_group = group == number
            distinct, inverse = np.unique(counts.plain()[inside_group], return_inverse=True)
            masses = np.bincount(inverse, minlength=len(distinct)).astype(float)
            means = np.bincount(inverse, outcomes[inside_group], len(distinct)) / masses
            rising = pooled(means, masses)
            ends = np.ones(len(rising), np.bool_)  # inside a level stretch only its two ends say something
            ends[1:-1] = (rising[1:-1] != rising[:-2]) | (rising[1:-1] != rising[2:])
            places.append(tuple(distinct[ends].tolist()))
            heights.append(tuple(rising[ends].tolist()))
        return cls(tuple(starts), tuple(places), tuple(heights))

    def __call__(self, counts: Counts) -> Numbers:
        """Read the curve of each pair's range, straight between its knots."""
        group = np.searchsorted(self.starts, counts.own, "right") - 1
        out = np.zeros(len(counts.own))
        for number, (places, heights) in enumerate(zip(self.places, self.heights, strict=True)):
            inside = group == number
            out[inside] = np.interp(counts.plain()[inside], places, heights)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object."""
        return {
            "curve": self.name, "starts": list(self.starts), "places": [list(row) for row in self.places],
            "heights": [list(row) for row in self.heights],
        }  # fmt: skip


@dataclass(frozen=True)
class Logistic:
    """σ(coefficients · features) of the smoothed log-odds, the counts, and whether the conditional is exactly 1."""

    coefficients: tuple[float, ...]
    name: str = "logistic"

    @classmethod
    def fit(cls, counts: Counts, outcomes: NDArray[Any]) -> Logistic:
        """Maximise the likelihood with a slight ridge, by Newton's method."""
        sample = slice(None, None, -(-len(outcomes) // ENOUGH) or 1)
        features, outcomes = _features(counts.take(sample)), outcomes[sample]
        coefficients = np.zeros(features.shape[1])
        ridge = RIDGE * np.eye(features.shape[1])
        for _ in range(ROUNDS):
            probability = _sigmoid(features @ coefficients)
            gradient = features.T @ (outcomes - probability) - ridge @ coefficients
            hessian = (features * (probability * (1 - probability))[:, None]).T @ features + ridge
            step = np.linalg.solve(hessian, gradient)
            coefficients += step * min(1.0, 5 / max(np.abs(step).max(), 1e-12))  # no wild first steps
            if np.abs(step).max() < 1e-6:
                break
        return cls(tuple(coefficients.tolist()))

    def __call__(self, counts: Counts) -> Numbers:
        """Weigh the features."""
        return _sigmoid(_features(counts) @ np.array(self.coefficients))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object."""
        return {"curve": self.name, "features": list(FEATURES), "coefficients": list(self.coefficients)}


FEATURES = ("1", "log odds", "log n_j", "log n_j · log odds", "log n_l", "G = n_j", "G = n_j = 1")


def _features(counts: Counts) -> Numbers:
    """Describe pairs, (P, F)."""
    together, own, other = counts
    odds = np.log((together + 0.5) / (own - together + 0.5))
    size = np.log(own)
    columns = (np.ones(len(own)), odds, size, size * odds, np.log(other), together >= own, own <= 1)
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def _sigmoid(values: Numbers) -> Numbers:
    """Return 1 / (1 + e^-x) without overflow."""
    out: Numbers = 0.5 * (1 + np.tanh(0.5 * values))
    return out


@dataclass(frozen=True)
class Shrunk:
    """(G_jl + strength · n_l / N) / (n_j + strength): `strength` points of the average kind are added to each label.

    With strength 1, a label with one point halves what that point says: the value measured where it can be measured.

    >>> counts = Counts(np.array([1.0, 30.0]), np.array([1.0, 30.0]), np.array([2.0, 50.0]))
    >>> Shrunk(points=1000)(counts).round(2).tolist()
    [0.5, 0.97]
    """

    points: int
    strength: float = 1.0
    name: str = "shrunk"

    def __call__(self, counts: Counts) -> Numbers:
        """Add the average points."""
        prior = counts.other / max(self.points, 1)
        out: Numbers = (counts.together + self.strength * prior) / (counts.own + self.strength)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object."""
        return {"curve": self.name, "points": self.points, "strength": self.strength}


def curve_of(value: Mapping[str, Any]) -> Curve:
    """Read back what `to_dict` gave."""
    kind = str(value.get("curve"))
    if kind == "isotonic":
        places, heights = (tuple(tuple(map(float, row)) for row in value[key]) for key in ("places", "heights"))
        return Isotonic(tuple(map(int, value["starts"])), places, heights)
    if kind == "logistic":
        return Logistic(tuple(map(float, value["coefficients"])))
    if kind == "shrunk":
        return Shrunk(int(value["points"]), float(value["strength"]))
    raise DataError(f"{kind!r} is not a curve", remedy=nearest(kind, ("isotonic", "logistic", "shrunk")))
