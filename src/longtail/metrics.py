"""TOP-K → NUMBERS: precision, recall, nDCG, their propensity-scored versions, coverage and bins.

`labels` (N, k) are predictions, best first, padded with -1. `targets` (N, L) are the truth; any stored value above 0 is
relevant, so a soft target counts like a hard one. A label that is predicted twice for one point counts once, at its
first place. Points without a relevant label stay in every mean and add 0 to it. Functions return fractions.

Everything rests on one record of hits: a metric is a small table of hits by place and number of relevant labels, so the
search through the targets is done once however many metrics are asked for.

References: [Jain et al. 2016] for PSP and PSnDCG; pyxclib and AttentionXML for the two forms of PSnDCG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from longtail.errors import nearest
from longtail.evaluation import AtK, Bin, Evaluation
from longtail.labels.propensity import Propensity
from longtail.labels.propensity import bins as bins_of
from longtail.types import LabelMatrix, TopK

Ks: TypeAlias = Sequence[int]
Table: TypeAlias = NDArray[np.float64]  # (k, k + 1): by place, and by number of relevant labels, at most k
Variant = Literal["pyxclib", "attentionxml"]
Denominator = Literal["test", "all"]

PLACES = (1, 3, 5)


def precision(labels: NDArray[Any], targets: LabelMatrix, ks: Ks = PLACES) -> AtK:
    """Return the share of the k places that hold a relevant label, mean over points.

    >>> from longtail.types import label_matrix
    >>> truth = label_matrix(np.array([0, 2, 3]), np.array([0, 2, 1]), (2, 3))
    >>> precision(np.array([[2, 1], [0, -1]]), truth, ks=(1, 2))
    {1: 0.5, 2: 0.25}
    """
    return _precision(_hits(labels, targets, ks), ks)


def recall(labels: NDArray[Any], targets: LabelMatrix, ks: Ks = PLACES) -> AtK:
    """Return the share of a point's relevant labels that are among its first k, mean over points."""
    return _recall(_hits(labels, targets, ks), ks)


def ndcg(labels: NDArray[Any], targets: LabelMatrix, ks: Ks = PLACES) -> AtK:
    """Return the discounted gain of the first k over that of the best order, mean over points.

    >>> from longtail.types import label_matrix
    >>> truth = label_matrix(np.array([0, 1]), np.array([1]), (1, 3))
    >>> {k: round(value, 3) for k, value in ndcg(np.array([[2, 1]]), truth, ks=(1, 2)).items()}
    {1: 0.0, 2: 0.631}
    """
    return _ndcg(_hits(labels, targets, ks), ks)


def psp(labels: NDArray[Any], targets: LabelMatrix, inverse: NDArray[Any], ks: Ks = PLACES) -> AtK:
    """Return propensity-scored precision: the mean gain of the first k over the mean gain of the best k.

    It is a ratio of two means over the data set, as leader boards report it, not a mean of ratios.

    >>> from longtail.types import label_matrix
    >>> truth = label_matrix(np.array([0, 2, 3]), np.array([0, 2, 1]), (2, 3))
    >>> psp(np.array([[2, 1], [0, -1]]), truth, np.array([1.0, 2.0, 4.0]), ks=(1, 2))  # 4 / (4 + 2), 4 / (5 + 2)
    {1: 0.6666666666666666, 2: 0.5714285714285714}
    """
    hits = _hits(labels, targets, ks)
    return _ratios(_sums(hits.table(inverse), ks), _sums(_ideal(hits, inverse), ks))


def psndcg(
    labels: NDArray[Any], targets: LabelMatrix, inverse: NDArray[Any], ks: Ks = PLACES, variant: Variant = "pyxclib"
) -> AtK:
    """Return propensity-scored nDCG in one of its two published forms.

    "pyxclib" divides each point's gain, and its best gain, by the discounts of its relevant places before the two means
    are taken; "attentionxml" divides the plain sums. Both equal PSP at k = 1.
    """
    if variant not in get_args(Variant):
        raise ValueError(f"variant {variant!r} is not known; {nearest(variant, get_args(Variant))}")
    hits = _hits(labels, targets, ks)
    tables = hits.table(inverse), _ideal(hits, inverse)
    return _ratios(*(_discounted(table, ks, per_point=variant == "pyxclib") for table in tables))


def coverage(labels: NDArray[Any], targets: LabelMatrix, ks: Ks = PLACES, denominator: Denominator = "test") -> AtK:
    """Return the share of labels that are found at least once: of those in the truth ("test") or of all L ("all").

    >>> from longtail.types import label_matrix
    >>> truth = label_matrix(np.array([0, 1, 2]), np.array([0, 1]), (2, 4))
    >>> coverage(np.array([[0], [0]]), truth, ks=(1,)), coverage(np.array([[0], [0]]), truth, (1,), "all")
    ({1: 0.5}, {1: 0.25})
    """
    if denominator not in get_args(Denominator):
        raise ValueError(f"denominator {denominator!r} is not known; {nearest(denominator, get_args(Denominator))}")
    return _coverage(_hits(labels, targets, ks), ks, denominator)


def bin_contributions(
    labels: NDArray[Any], targets: LabelMatrix, bins: NDArray[Any], ks: Ks = PLACES
) -> dict[int, NDArray[np.float64]]:
    """Return what each bin of labels adds to precision at k; the sum over bins is the precision.

    >>> from longtail.types import label_matrix
    >>> truth = label_matrix(np.array([0, 2, 3]), np.array([0, 2, 1]), (2, 3))
    >>> bin_contributions(np.array([[2, 0], [0, 1]]), truth, bins=np.array([0, 1, 1]), ks=(1, 2))[2].tolist()
    [0.25, 0.5]
    """
    hits = _hits(labels, targets, ks)
    counts = _bin_hits(hits, bins, int(bins.max(initial=-1)) + 1)
    return {k: counts[:, k - 1] / (k * max(1, hits.truth.points)) for k in ks}


def evaluate(
    top: TopK,
    targets: LabelMatrix,
    *,
    train_frequencies: NDArray[Any],
    train_points: int,
    propensity: Propensity = Propensity(),  # noqa: B008 (frozen)
    ks: Ks = PLACES,
    bin_count: int = 3,
    excluded: LabelMatrix | None = None,
) -> Evaluation:
    """Compute every metric at once.

    Excluded pairs leave the predictions before anything is counted; the truth stays as it is. A top shorter than the
    largest k is padded. Frequencies and points are those of the original training targets.
    """
    if excluded is not None and excluded.nnz:
        top = top.without(excluded)
    if len(train_frequencies) != targets.shape[1]:
        raise ValueError(f"{len(train_frequencies)} training frequencies for {targets.shape[1]} labels; pass one each")
    missing = max(ks, default=0) - top.labels.shape[1]
    labels = np.pad(top.labels, ((0, 0), (0, missing)), constant_values=-1) if missing > 0 else top.labels
    hits = _hits(labels, targets, ks)
    inverse = propensity.inverse(train_frequencies, train_points)
    gained, ideal = hits.table(inverse), _ideal(hits, inverse)
    groups = {
        "P": _precision(hits, ks),
        "nDCG": _ndcg(hits, ks),
        "R": _recall(hits, ks),
        "PSP": _ratios(_sums(gained, ks), _sums(ideal, ks)),
        "PSnDCG": _ratios(_discounted(gained, ks), _discounted(ideal, ks)),
        "Cov": _coverage(hits, ks, "test"),
    }
    values = {f"{metric}@{k}": 100 * value for metric, group in groups.items() for k, value in group.items()}
    return Evaluation(values, _bins(hits, train_frequencies, bin_count, ks), hits.truth.points, propensity)


@dataclass(frozen=True, eq=False)
class _Truth:
    """The relevant pairs, ordered by point then label."""

    rows: NDArray[np.int64]
    labels: NDArray[Any]
    keys: NDArray[np.int64]  # row * L + label, ascending
    sizes: NDArray[np.int64]  # (N,) relevant labels per point
    points: int
    label_count: int


@dataclass(frozen=True, eq=False)
class _Hits:
    """The relevant pairs that were predicted, each once."""

    places: NDArray[np.int64]  # 0 is best
    labels: NDArray[Any]
    sizes: NDArray[np.int64]  # relevant labels of the pair's point
    truth: _Truth
    k: int

    def table(self, weights: NDArray[Any] | None = None) -> Table:
        """Count hits, or add up the weights (L,) of their labels."""
        if weights is not None and len(weights) != self.truth.label_count:
            raise ValueError(f"{len(weights)} inverse propensities for {self.truth.label_count} labels; pass one each")
        return _table(self.places, self.sizes, self.k, None if weights is None else weights[self.labels])


def _truth(targets: LabelMatrix) -> _Truth:
    """List the pairs above 0; a matrix that is not sorted, or has duplicates, is corrected."""
    points, width = (int(n) for n in targets.shape)
    rows = np.repeat(np.arange(points, dtype=np.int64), np.diff(targets.indptr))
    labels = targets.indices
    relevant = targets.data > 0
    if not relevant.all():
        rows, labels = rows[relevant], labels[relevant]
    keys = rows * width + labels
    if not (keys[1:] > keys[:-1]).all():
        keys = np.unique(keys)
        rows, labels = np.divmod(keys, width)
    return _Truth(rows, labels, keys, np.bincount(rows, minlength=points), points, width)


def _hits(labels: NDArray[Any], targets: LabelMatrix, ks: Ks) -> _Hits:
    """Search the truth for every prediction among the first max(ks)."""
    k = _max_k(labels, targets, ks)
    labels, truth = labels[:, :k], _truth(targets)
    if labels.size and labels.max() >= truth.label_count:
        raise ValueError(f"label {labels.max()} was predicted, but the targets have {truth.label_count} labels")
    queries = (np.arange(truth.points, dtype=np.int64)[:, None] * truth.label_count + labels).ravel()
    pairs = np.searchsorted(truth.keys, queries)
    pairs[pairs == len(truth.keys)] = 0  # past the end: any pair will do, for it cannot be equal
    same = truth.keys[pairs] == queries if len(truth.keys) else np.zeros(len(queries), np.bool_)
    cells = np.flatnonzero(same & (labels.ravel() >= 0))
    pairs = pairs[cells]
    # The last of repeated assignments stays, so writing backwards leaves the first cell that names each pair.
    first = np.empty(len(truth.keys), np.int64)
    first[pairs[::-1]] = cells[::-1]
    unique = first[pairs] == cells
    cells, pairs = cells[unique], pairs[unique]
    return _Hits(cells % k, truth.labels[pairs], truth.sizes[truth.rows[pairs]], truth, k)


def _max_k(labels: NDArray[Any], targets: LabelMatrix, ks: Ks) -> int:
    """Check the shapes and return the largest k."""
    if labels.ndim != 2 or len(labels) != targets.shape[0]:
        raise ValueError(f"labels of shape {labels.shape} for {targets.shape[0]} points; they must be (points, k)")
    if not ks or min(ks) < 1:
        raise ValueError(f"ks is {tuple(ks)}; give at least one k, each 1 or more")
    if max(ks) > labels.shape[1]:
        raise ValueError(
            f"k={max(ks)} was asked for, but there are {labels.shape[1]} predictions per point; predict more"
        )
    return max(ks)


def _ideal(hits: _Hits, inverse: NDArray[Any]) -> Table:
    """Add up the gains of the best possible order: each point's relevant labels by descending inverse propensity."""
    truth = hits.truth
    order = np.argsort(-inverse, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    # With labels renamed by their rank, a plain sort of row * L + rank orders the labels of many points at once and
    # moves none to another row; blocks of rows that fit the cache of the processor make it several times faster.
    starts = truth.rows * truth.label_count
    ranks = starts + rank[truth.labels]
    ends = np.cumsum(truth.sizes)
    for block in np.split(ranks, ends[1023:-1:1024]):
        block.sort()
    ranks -= starts
    places = np.arange(len(ranks)) - np.repeat(ends - truth.sizes, truth.sizes)
    within = places < hits.k
    sizes = np.repeat(truth.sizes, truth.sizes)[within]
    return _table(places[within], sizes, hits.k, inverse[order][ranks[within]])


def _table(places: NDArray[Any], sizes: NDArray[Any], k: int, weights: NDArray[Any] | None) -> Table:
    """Add up weights by place and number of relevant labels; beyond k that number changes no metric."""
    sums = np.bincount(places * (k + 1) + np.minimum(sizes, k), weights, minlength=k * (k + 1))
    return sums.reshape(k, k + 1).astype(np.float64, copy=False)


def _sums(table: Table, ks: Ks) -> AtK:
    """Add up the first k places."""
    return {k: float(table[:k].sum()) for k in ks}


def _discounted(table: Table, ks: Ks, *, per_point: bool = True) -> AtK:
    """Add up discounted places, each divided (per point) by the most that its point could reach with gains of 1."""
    discounts = 1 / np.log2(np.arange(2, len(table) + 2))
    ideal = np.concatenate([[1.0], np.cumsum(discounts)])  # no hit belongs to a point with 0 relevant labels
    sums = (table * discounts[:, None]).cumsum(0)
    sizes = np.arange(table.shape[1])
    return {k: float((sums[k - 1] / (ideal[np.minimum(sizes, k)] if per_point else 1)).sum()) for k in ks}


def _ratios(numerators: AtK, denominators: Mapping[int, float]) -> AtK:
    return {k: numerators[k] / denominators[k] if denominators[k] else 0.0 for k in numerators}


def _precision(hits: _Hits, ks: Ks) -> AtK:
    return _ratios(_sums(hits.table(), ks), {k: k * hits.truth.points for k in ks})


def _ndcg(hits: _Hits, ks: Ks) -> AtK:
    return _ratios(_discounted(hits.table(), ks), dict.fromkeys(ks, hits.truth.points))


def _recall(hits: _Hits, ks: Ks) -> AtK:
    sums = np.bincount(hits.places, 1 / hits.sizes, minlength=hits.k).cumsum()
    return {k: float(sums[k - 1]) / max(1, hits.truth.points) for k in ks}


def _coverage(hits: _Hits, ks: Ks, denominator: Denominator) -> AtK:
    truth = hits.truth
    total = truth.label_count if denominator == "all" else _distinct(truth.labels, truth.label_count)
    return {k: _distinct(hits.labels[hits.places < k], truth.label_count) / max(1, total) for k in ks}


def _distinct(labels: NDArray[Any], label_count: int) -> int:
    mask = np.zeros(label_count, np.bool_)
    mask[labels] = True
    return int(mask.sum())


def _bin_hits(hits: _Hits, bins: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Count the hits of each bin in the first 1 … k places, (count, k)."""
    if len(bins) != hits.truth.label_count:
        raise ValueError(f"{len(bins)} bins for {hits.truth.label_count} labels; pass one each")
    cells = bins[hits.labels].astype(np.int64) * hits.k + hits.places
    return np.bincount(cells, minlength=count * hits.k).reshape(count, hits.k).cumsum(1)


def _bins(hits: _Hits, train_frequencies: NDArray[Any], count: int, ks: Ks) -> list[Bin]:
    """Describe every bin, head first."""
    bins = bins_of(train_frequencies, count)
    counts = _bin_hits(hits, bins, count)
    labels = np.bincount(bins, minlength=count)
    volumes = np.bincount(bins, train_frequencies, minlength=count)
    positives = np.bincount(bins[hits.truth.labels], minlength=count)
    return [
        Bin(
            name=name,
            labels=int(labels[number]),
            frequency=float(volumes[number] / max(1, labels[number])),
            positives=int(positives[number]),
            contribution={k: 100 * float(counts[number, k - 1]) / (k * max(1, hits.truth.points)) for k in ks},
            recall={k: 100 * float(counts[number, k - 1] / max(1, positives[number])) for k in ks},
        )
        for number, name in enumerate(_bin_names(count))
    ]


def _bin_names(count: int) -> list[str]:
    if count == 3:
        return ["head", "torso", "tail"]
    ends = {1: " (head)", count: " (tail)"} if count > 1 else {1: " (all)"}
    return [f"{number}{ends.get(number, '')}" for number in range(1, count + 1)]
