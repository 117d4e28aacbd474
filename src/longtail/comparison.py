"""TOP-K × TOP-K → WHAT CHANGED: two sets of predictions for the same points, side by side.

Differences come with an interval: the points are resampled with replacement (a paired bootstrap), so that a
difference that a few points decide is seen as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Split
from longtail.evaluation import Evaluation, aligned
from longtail.markup import html_table
from longtail.types import LabelMatrix, TopK, best_of, contains

DRAWS = 1000
METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "Cov@5")  # of a table of models
DIFFERENCES = ("metric", "before", "after", "difference", "95 %", "certain")  # of a table of a pair
NORMAL = 1.96  # standard errors to each side of a 95 % interval
Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """A metric of two models in percent, and the difference with its 95 % interval."""

    metric: str
    first: float
    second: float
    difference: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Return whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object, rounded to 4 decimals."""
        values = {key: round(value, 4) for key, value in asdict(self).items() if key != "metric"}
        return {"metric": self.metric, **values, "certain": self.certain}


@dataclass(frozen=True, eq=False)
class Gains:
    """What each point adds to P@k and PSP@k."""

    hits: NDArray[np.float64]  # (N,) relevant labels among the first k
    gains: NDArray[np.float64]  # (N,) their inverse propensities
    best: NDArray[np.float64]  # (N,) the most that the point could gain


def gains(top: TopK, targets: LabelMatrix, inverse: NDArray[Any], k: int) -> Gains:
    """Count the hits of every point among its first k labels, plainly and by inverse propensity (L,)."""
    hits, gained, best = _by_place(top, targets, inverse, k)
    return Gains(hits.sum(1).astype(np.float64), gained.sum(1), best.sum(1))


def _by_place(
    top: TopK, targets: LabelMatrix, inverse: NDArray[Any], k: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Return whether each of the first k labels is a hit, what it gains, and what the best order gains: (N, k) each."""
    labels = top.labels[:, :k]
    hits = contains(targets, labels)
    ideal: sp.csr_array = targets.copy()
    ideal.data = np.asarray(inverse, np.float32)[targets.indices]
    order = best_of(ideal, k).labels
    return hits, np.where(hits, inverse[labels], 0.0), np.where(order >= 0, inverse[order], 0.0)


def intervals(top: TopK, targets: LabelMatrix, inverse: NDArray[Any], ks: Sequence[int]) -> dict[str, Interval]:
    """Return 95 % intervals of P, nDCG, R, PSP and PSnDCG in percent, by the spread over points.

    PSP and PSnDCG are ratios of means, the others means. Coverage is neither: it counts labels, and has no interval.

    >>> from longtail.types import label_matrix
    >>> truth = label_matrix(np.arange(5), np.array([0, 1, 0, 1]), (4, 2))
    >>> found = intervals(TopK(np.zeros((4, 1), np.int32), np.zeros((4, 1), np.float32)), truth, np.ones(2), (1,))
    >>> [round(value) for value in found["P@1"]]
    [1, 99]
    """
    out: dict[str, Interval] = {}
    if len(top) == 0:
        return out
    hits, gained, best = _by_place(top, targets, inverse, max(ks))
    discounts, sizes = 1 / np.log2(np.arange(2, max(ks) + 2)), np.diff(targets.indptr)
    most, ones = np.append(1.0, np.cumsum(discounts)), np.ones(len(top))  # no point without labels has a hit
    for k in ks:
        found, reached = hits[:, :k], most[np.minimum(sizes, k)]
        falling = discounts[: found.shape[1]]
        out[f"P@{k}"] = _interval(found.sum(1), k * ones)
        out[f"nDCG@{k}"] = _interval(found @ falling / reached, ones)
        out[f"R@{k}"] = _interval(found.sum(1) / np.maximum(sizes, 1), ones)
        out[f"PSP@{k}"] = _interval(gained[:, :k].sum(1), best[:, :k].sum(1))
        by_order = best[:, :k] @ discounts[:k] / reached
        out[f"PSnDCG@{k}"] = _interval(gained[:, :k] @ falling / reached, by_order)
    return out


def _interval(gained: NDArray[Any], most: NDArray[np.float64]) -> Interval:
    """Return the interval of a ratio of two sums over points, between 0 and 100."""
    total = max(float(most.sum()), 1e-12)
    ratio = float(gained.sum()) / total
    wide = NORMAL * float(np.sqrt(np.square(gained - ratio * most).sum())) / total
    return 100 * max(0.0, ratio - wide), 100 * min(1.0, ratio + wide)


def paired(
    first: TopK, second: TopK, targets: LabelMatrix, inverse: NDArray[Any], *, draws: int = DRAWS, seed: int = 0
) -> list[Difference]:
    """Compare P@1 and PSP@5 of the second with the first, by a bootstrap over points.

    >>> from longtail.types import label_matrix
    >>> truth = label_matrix(np.arange(5), np.array([0, 1, 0, 1]), (4, 2))
    >>> one, two = (TopK(np.array(rows), np.zeros((4, 1))) for rows in ([[0]] * 4, [[0], [1], [0], [1]]))
    >>> [(d.metric, d.difference) for d in paired(one, two, truth, np.ones(2))]
    [('P@1', 50.0), ('PSP@5', 50.0)]
    """
    return differences(per_point(first, targets, inverse), per_point(second, targets, inverse), draws=draws, seed=seed)


def per_point(top: TopK, targets: LabelMatrix, inverse: NDArray[Any]) -> Gains:
    """Return what each point adds to P@1 (its hits) and to PSP@5 (its gains, and the most that it could gain)."""
    return replace(gains(top, targets, inverse, 5), hits=gains(top, targets, inverse, 1).hits)


def differences(first: Gains, second: Gains, *, draws: int = DRAWS, seed: int = 0) -> list[Difference]:
    """Compare P@1 and PSP@5 of the second with the first; hits and gains may be means over several models."""
    points = len(first.hits)
    if points == 0:
        return []
    hits, gained = np.stack([first.hits, second.hits], 1), np.stack([first.gains, second.gains], 1)  # (N, 2)
    best = first.best
    random = np.random.default_rng(seed)
    samples: list[NDArray[np.float64]] = []
    for _ in range(draws):
        weights = np.bincount(random.integers(0, points, points), minlength=points)
        samples.append(np.concatenate([weights @ hits / points, weights @ gained / max(float(weights @ best), 1e-12)]))
    table = 100 * np.array(samples)  # (draws, 4)
    estimates = (np.concatenate([hits.mean(0), gained.sum(0) / max(float(best.sum()), 1e-12)]) * 100).tolist()
    out = []
    for name, a, b in (("P@1", 0, 1), ("PSP@5", 2, 3)):
        low, high = np.quantile(table[:, b] - table[:, a], (0.025, 0.975))
        out.append(Difference(name, estimates[a], estimates[b], estimates[b] - estimates[a], float(low), float(high)))
    return out


@dataclass(frozen=True)
class Change:
    """How often a label, or for how many labels of a point, each of two models was right among the first k."""

    place: int  # label or point
    first: int
    second: int
    of: int  # relevant pairs


def changed_labels(
    first: TopK, second: TopK, targets: LabelMatrix, k: int = 5, most: int = 5
) -> tuple[list[Change], list[Change]]:
    """Return the labels that gained and that lost the most hits, at most `most` of each."""
    count = int(targets.shape[1])
    hits = [_hit_labels(top, targets, k, count) for top in (first, second)]
    return _extremes(hits[0], hits[1], np.bincount(targets.indices, minlength=count), most)


def changed_points(
    first: TopK, second: TopK, targets: LabelMatrix, k: int = 5, most: int = 5
) -> tuple[list[Change], list[Change]]:
    """Return the points that gained and that lost the most hits, at most `most` of each."""
    hits = [contains(targets, top.labels[:, :k]).sum(1) for top in (first, second)]
    return _extremes(hits[0], hits[1], np.diff(targets.indptr), most)


def _hit_labels(top: TopK, targets: LabelMatrix, k: int, count: int) -> NDArray[np.int64]:
    """Count the hits of each label, (L,)."""
    labels = top.labels[:, :k]
    return np.bincount(labels[contains(targets, labels)], minlength=count)


def _extremes(
    first: NDArray[Any], second: NDArray[Any], of: NDArray[Any], most: int
) -> tuple[list[Change], list[Change]]:
    """Take the largest rises and falls; equal ones go by place."""
    change = second.astype(np.int64) - first
    sides = []
    for sign in (1, -1):
        order = np.argsort(-sign * change, kind="stable")[:most]
        rows = order[sign * change[order] > 0]
        sides.append([Change(int(row), int(first[row]), int(second[row]), int(of[row])) for row in rows])
    return sides[0], sides[1]


@dataclass(frozen=True)
class Named:
    """A label or a point that changed, with its text."""

    text: str
    change: Change

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object."""
        change = self.change
        return {"id": change.place, "text": self.text, "first": change.first, "second": change.second, "of": change.of}


@dataclass(frozen=True)
class Pair:
    """What changed from one model to another on the same points."""

    first: str
    second: str
    metrics: tuple[Difference, ...]
    better_labels: tuple[Named, ...]
    worse_labels: tuple[Named, ...]
    better_points: tuple[Named, ...]
    worse_points: tuple[Named, ...]

    @classmethod
    def of(cls, first: str, second: str, one: TopK, other: TopK, split: Split, inverse: NDArray[Any]) -> Pair:
        """Compare the predictions of two models for a split."""
        sides: list[tuple[Named, ...]] = []
        for changed, names in (
            (changed_labels(one, other, split.targets), split.labels.texts or split.labels.ids),
            (changed_points(one, other, split.targets), split.texts),
        ):
            for entries in changed:
                sides.append(tuple(Named(names[entry.place] if names else "", entry) for entry in entries))
        return cls(first, second, tuple(paired(one, other, split.targets, inverse)), *sides)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object."""
        return {
            "run": self.second,
            "against": self.first,
            "metrics": [entry.to_dict() for entry in self.metrics],
            "better_labels": [entry.to_dict() for entry in self.better_labels],
            "worse_labels": [entry.to_dict() for entry in self.worse_labels],
            "better_points": [entry.to_dict() for entry in self.better_points],
            "worse_points": [entry.to_dict() for entry in self.worse_points],
        }

    def rows(self) -> list[tuple[str, float, float, str, str, str]]:
        """Return a row for each metric: before, after, the difference with its interval, and whether it is certain."""
        return [
            (one.metric, one.first, one.second, f"{one.difference:+.2f}", f"{one.low:+.2f} to {one.high:+.2f}",
             "yes" if one.certain else "no")
            for one in self.metrics
        ]  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Models evaluated on the same points, and what changed from the first to each of the others."""

    evaluations: Mapping[str, Evaluation]
    pairs: tuple[Pair, ...] = ()

    def rows(self, metrics: Sequence[str] = METRICS) -> list[tuple[Any, ...]]:
        """Return a row for each model: its name and its metrics."""
        return [(name, *(one.values[metric] for metric in metrics)) for name, one in self.evaluations.items()]

    def _tables(self) -> list[tuple[str, Sequence[str], Sequence[tuple[Any, ...]]]]:
        """Return the tables that show it, each with its title, heads and rows."""
        pairs = [(f"{pair.second} instead of {pair.first}", DIFFERENCES, pair.rows()) for pair in self.pairs]
        return [("", ("%", *METRICS), self.rows()), *pairs]

    def __str__(self) -> str:
        shown = []
        for title, heads, rows in self._tables():
            cells = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
            shown.append(f"{title}\n{aligned([heads, *cells])}".lstrip())
        return "\n\n".join(shown)

    def _repr_html_(self) -> str:
        return "".join(html_table(heads, rows, title) for title, heads, rows in self._tables())
