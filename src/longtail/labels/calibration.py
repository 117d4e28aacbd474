"""TRAINING POINTS + LABEL TEXTS → HOW FAR GANDALF'S POSTULATE HOLDS: measured before anything is trained.

Gandalf postulates P(label l | text of label j) ≈ P(label l | label j). Many label texts are also the text of a training
point, its twin. There the left side can be seen: the twin has label l or not. The right side is counted with the twin
left out of all counts (it must not vouch for itself). The pairs (counts, outcome) are fitted by the curve with the
smaller held-out log loss; folds are cut by text, so that no label is on both sides. The fitted values replace the
conditionals.

This goes beyond the papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.errors import DataError
from longtail.labels.blocks import edge_rows
from longtail.labels.curves import Counts, Curve, Isotonic, Logistic, Numbers, Shrunk, curve_of
from longtail.labels.graph import conditionals
from longtail.labels.propensity import frequencies
from longtail.types import LabelMatrix, Texts

FEWEST_PAIRS, FEWEST_TEXTS = 200, 50  # below, nothing can be fitted
POINTS_PER_LABEL = 5  # twins of one label; a text like "Overview" may be the text of thousands of points
WORK = 2**24  # multiply-adds, and so candidate pairs, at most; further twins are left out at random
FOLDS = 5
EPS = 0.01  # log losses are taken of probabilities within 0.01 and 0.99, else one sure mistake is infinite
CHUNK = 2**20  # edges whose features are in memory at a time
EDGES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)  # of the reliability table, each with its right end; 1 has its own row
# Shares of the promised relevance that must be real. Rules of thumb, set by hand so that two data sets (0.70, 0.61) and
# their versions with 30 % of the label texts permuted (0.51, 0.43) fall on different sides; not tested on other data.
HELPS, CAREFUL = 0.55, 0.2
LEAST_TRUST = 0.1  # five data sets have 0.27 to 0.89, and within 0.02 of 0 when all label texts are permuted


class Twins(NamedTuple):
    """Labels and training points that have the same text."""

    labels: NDArray[np.int64]  # (T,)
    points: NDArray[np.int64]  # (T,)
    texts: NDArray[np.int64]  # (T,) a number for each distinct text


class Pairs(NamedTuple):
    """Candidate pairs (j, l) of labels with a twin: what the other points say, and whether the twin has label l."""

    counts: Counts  # (P,)
    outcomes: Numbers  # (P,) 0 or 1
    labels: NDArray[np.int64]  # (P,) j
    texts: NDArray[np.int64]  # (P,)


@dataclass(frozen=True)
class Reliability:
    """One row of a reliability table: pairs whose prediction lies in (low, high]."""

    low: float
    high: float
    count: int
    predicted: float  # mean
    observed: float  # share that is relevant


@dataclass(frozen=True)
class Calibration:
    """A fitted curve and the evidence for it; losses and tables are of held-out pairs."""

    curve: Curve
    labels: int  # all labels
    twins: int  # labels with a twin
    pairs: int
    base_rate: float  # share of candidate pairs that are relevant
    real: float  # relevance found over relevance promised by conditionals above 0.1
    losses: Mapping[str, float]  # log loss of plain, base, shrunk, isotonic, logistic
    briers: Mapping[str, float]  # mean squared error of plain and calibrated
    reliability: Mapping[str, tuple[Reliability, ...]]  # of plain and calibrated
    trust: float = 1.0  # how much nearer points are to the texts of their labels than to those of others; 0: no nearer

    @property
    def method(self) -> str:
        """Name the curve: isotonic, logistic, or shrunk where there are too few twins."""
        return self.curve.name

    @property
    def log_loss_plain(self) -> float:
        """The log loss of the plain conditionals."""
        return self.losses.get("plain", float("nan"))

    @property
    def log_loss_calibrated(self) -> float:
        """The held-out log loss of the chosen curve."""
        return self.losses.get(self.method, float("nan"))

    @property
    def verdict(self) -> str:
        """Say in a word whether Gandalf is a good idea here: helps, careful, do not, or unknown."""
        if self.method == "shrunk":
            return "unknown"
        return "helps" if self.real >= HELPS else "careful" if self.real >= CAREFUL else "do not"

    @property
    def advice(self) -> str:
        """Recommend in one sentence what to do."""
        if self.verdict == "unknown":
            return (
                f"Unknown: only {self.twins:,} of {self.labels:,} label texts are also the text of a training point, "
                "too few to measure the postulate; with calibrate=True conditionals are shrunk by counts instead; "
                "compare with and without Gandalf on validation data."
            )
        measured = (
            f"{self.real:.0%} of the relevance that plain Gandalf promises is real, as seen on the {self.twins:,} "
            "labels whose text is also the text of a training point"
        )
        if self.verdict == "helps":
            return f"Helps: {measured}; use Gandalf, and calibrate=True mends the rest."
        if self.verdict == "careful":
            return f"Careful: {measured}; compare plain and calibrated Gandalf on validation data before you use one."
        return f"Do not: {measured}; label texts say something else than the texts of points here."

    @property
    def trusted(self) -> bool:
        """Whether label texts have anything to do with the points of their labels: twins tell, or else shared words."""
        return self.trust >= LEAST_TRUST if self.verdict == "unknown" else self.real >= CAREFUL

    def apply(self, targets: LabelMatrix, *, threshold: float = 0.1) -> sp.csr_array:
        """Return calibrated soft targets (L, L), strictly above the threshold, self edges 1.

        Candidates are pairs whose plain conditional is above a quarter of the threshold: below, no curve that was
        measured comes near it.
        """
        graph = conditionals(targets, threshold=threshold / 4)
        count = frequencies(targets).astype(np.float64)
        rows = edge_rows(graph)
        for start in range(0, graph.nnz, CHUNK):
            part = slice(start, start + CHUNK)
            j, other = rows[part], graph.indices[part]
            own = np.maximum(count[j], 1)
            together = np.maximum(np.rint(graph.data[part] * own), 1)
            values = self.curve(Counts(together, own, np.maximum(count[other], 1)))
            graph.data[part] = np.where(j == other, 1, np.clip(values, 0, 1))
        return above(graph, threshold)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able object that `calibration_of` reads."""
        plain = {
            "method": self.method, "verdict": self.verdict, "advice": self.advice,
            "labels": self.labels, "twins": self.twins, "pairs": self.pairs,
            "base_rate": self.base_rate, "real": self.real, "trust": self.trust,
            "losses": dict(self.losses), "briers": dict(self.briers),
        }  # fmt: skip
        tables = {name: [asdict(row) for row in rows] for name, rows in self.reliability.items()}
        return plain | {"reliability": tables, "curve": self.curve.to_dict()}


def above(graph: sp.csr_array, threshold: float) -> sp.csr_array:
    """Keep the edges strictly above a threshold; self edges are 1 and stay.

    >>> above(sp.csr_array(np.array([[1, 0.1], [0.5, 1]])), 0.1).toarray()
    array([[1. , 0. ],
           [0.5, 1. ]])
    """
    keep = graph.data > threshold
    ends = np.concatenate([[0], np.cumsum(keep)])[graph.indptr].astype(graph.indptr.dtype)
    return sp.csr_array((graph.data[keep], graph.indices[keep], ends), shape=graph.shape)


def calibration_of(value: Mapping[str, Any]) -> Calibration:
    """Read back what `Calibration.to_dict` gave."""
    try:
        tables = {name: tuple(Reliability(**row) for row in rows) for name, rows in value["reliability"].items()}
        return Calibration(
            curve_of(value["curve"]), int(value["labels"]), int(value["twins"]), int(value["pairs"]),
            float(value["base_rate"]), float(value["real"]), dict(value["losses"]), dict(value["briers"]), tables,
            float(value["trust"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as reason:
        raise DataError(f"this is not a calibration ({reason})", remedy="fit it again: longtail graph fit") from None


def calibrate(train: Split, *, seed: int = 0) -> Calibration:
    """Fit P(relevant | counts) to the twins of a training set; shrink by counts where there are too few.

    Texts are equal when their letters and digits are; where such twins are too few, the same set of words is enough.

    >>> from longtail.data.dataset import from_rows
    >>> data = from_rows({"train": (["red cat", "Cat!"], [[0, 1], [1]])}, label_texts=["cat", "red"])
    >>> calibrate(data.train).method, calibrate(data.train).twins
    ('shrunk', 1)
    """
    matches = twins(train)
    pairs = candidates(train, matches, seed=seed)
    if _few(pairs):
        matches = twins(train, near=True)
        pairs = candidates(train, matches, seed=seed)
    shrunk = Shrunk(len(train))
    folds = np.random.default_rng(seed).integers(0, FOLDS, int(pairs.texts.max(initial=0)) + 1)[pairs.texts]
    if _few(pairs) or len(np.unique(folds)) < 2:
        return _record(train, matches, pairs, shrunk, {"shrunk": shrunk(pairs.counts)})
    held_out = {"shrunk": shrunk(pairs.counts)}
    held_out |= {"isotonic": _held_out(Isotonic, pairs, folds), "logistic": _held_out(Logistic, pairs, folds)}
    losses = {name: _log_loss(values, pairs.outcomes) for name, values in held_out.items()}
    best = Isotonic if losses["isotonic"] <= losses["logistic"] else Logistic
    return _record(train, matches, pairs, best.fit(pairs.counts, pairs.outcomes), held_out)


def twins(train: Split, *, near: bool = False) -> Twins:
    """Find the points whose text is that of a label: same letters and digits in any case, or with `near` same words.

    >>> from longtail.data.dataset import from_rows
    >>> data = from_rows({"train": (["Old cats", "cat, old"], [[], []])}, label_texts=["old cat", "cat (old)"])
    >>> twins(data.train).labels.tolist(), twins(data.train, near=True).labels.tolist()
    ([1], [0, 1])
    """
    if train.texts is None or train.labels.texts is None:
        empty = np.zeros(0, np.int64)
        return Twins(empty, empty, empty)
    keys = pa.concat_arrays([_key(train.labels.texts, near=near), _key(train.texts, near=near)])
    encoded = keys.dictionary_encode()
    codes = np.asarray(encoded.indices, np.int64)
    names, points = codes[: len(train.labels)], codes[len(train.labels) :]
    order = np.argsort(points, kind="stable")
    starts, ends = (np.searchsorted(points[order], names, side) for side in ("left", "right"))
    blank = np.asarray(pc.equal(encoded.dictionary, ""), np.bool_)[names]
    sizes = np.where(blank, 0, np.minimum(ends - starts, POINTS_PER_LABEL))
    labels = np.repeat(np.arange(len(names)), sizes)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return Twins(labels, order[starts[labels] + place], names[labels])


def _key(texts: Texts, *, near: bool) -> pa.Array:
    """Reduce texts to lower-case words with single blanks; with `near`, to their sorted set."""
    plain = pc.utf8_lower(pc.utf8_normalize(texts.array, "NFKC"))
    plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(plain, r"[^\pL\pM\pN]+", " "))
    if not near:
        return plain
    return pa.array([" ".join(sorted(set(text.split()))) for text in plain.to_pylist()], pa.large_string())


def candidates(train: Split, matches: Twins, *, seed: int = 0) -> Pairs:
    """List the pairs (j, l), l ≠ j, of labels that still meet when the twin is left out, with the twin's verdict.

    Leaving the twin i out is exact: G_jl − y_ij y_il, n_j − y_ij and n_l − y_il. Pairs that are excluded for the twin
    (its own label) say nothing and are left out.
    """
    count = train.targets.shape[1]
    ones = np.ones(train.targets.nnz, np.float32)
    points = sp.csr_array((ones, train.targets.indices, train.targets.indptr), shape=train.targets.shape)
    labels = points.T.tocsr()
    sizes = np.diff(points.indptr)
    chosen = _within(np.random.default_rng(seed), (labels @ sizes)[matches.labels])
    own, twin, texts = (column[chosen] for column in matches)
    cooccurrence = labels[own] @ points  # (T, L), G of each twin's label
    rows, other = np.repeat(np.arange(len(own)), np.diff(cooccurrence.indptr)), cooccurrence.indices
    keys = rows.astype(np.int64) * count + other
    relevant = _stored(points[twin], keys)
    has_label = _stored(points[twin], np.arange(len(own), dtype=np.int64) * count + own)
    frequency = np.diff(labels.indptr)
    together = cooccurrence.data - (relevant & has_label[rows])
    keep = (together > 0) & (other != own[rows]) & ~_stored(train.excluded[twin], keys)
    rows, other, relevant = rows[keep], other[keep], relevant[keep]
    counts = Counts(
        together[keep].astype(np.float64),
        (frequency[own] - has_label)[rows].astype(np.float64),
        (frequency[other] - relevant).astype(np.float64),
    )
    return Pairs(counts, relevant.astype(np.float64), own[rows], texts[rows])


def _within(random: np.random.Generator, work: NDArray[Any]) -> NDArray[np.int64]:
    """Choose twins at random, ascending, as many as WORK multiply-adds allow."""
    order = random.permutation(len(work))
    return np.sort(order[np.cumsum(work[order]) <= WORK])


def _stored(matrix: sp.csr_array, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each key row · L + label whether that pair is stored."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    stored = np.sort(rows * matrix.shape[1] + matrix.indices)
    if len(stored) == 0:
        return np.zeros(len(keys), np.bool_)
    return np.equal(stored[np.minimum(np.searchsorted(stored, keys), len(stored) - 1)], keys)


def _few(pairs: Pairs) -> bool:
    """Return whether there are too few pairs to fit; labels of one text fall into one fold, so texts are counted."""
    return len(pairs.outcomes) < FEWEST_PAIRS or len(np.unique(pairs.texts)) < FEWEST_TEXTS


def _held_out(curve: type[Isotonic] | type[Logistic], pairs: Pairs, folds: NDArray[Any]) -> Numbers:
    """Predict each fold by the curve that is fitted to the others."""
    out = np.zeros(len(folds))
    for fold in range(FOLDS):
        inside = folds == fold
        fitted = curve.fit(pairs.counts.take(~inside), pairs.outcomes[~inside])
        out[inside] = fitted(pairs.counts.take(inside))
    return out


def _record(train: Split, matches: Twins, pairs: Pairs, curve: Curve, held_out: Mapping[str, Numbers]) -> Calibration:
    """Measure what was fitted."""
    plain, outcomes = pairs.counts.plain(), pairs.outcomes
    promised = plain > 0.1
    losses, briers, tables = {}, {}, {}
    base = float(outcomes.mean()) if len(outcomes) else 0.0
    if len(outcomes):
        predictions = {"plain": plain, "base": np.full(len(plain), base), **held_out}
        losses = {name: _log_loss(values, outcomes) for name, values in predictions.items()}
        calibrated = held_out[curve.name]
        both = {"plain": plain, "calibrated": calibrated}
        briers = {name: float(np.mean((values - outcomes) ** 2)) for name, values in both.items()}
        tables = {name: _reliability(values, outcomes) for name, values in both.items()}
    real = float(outcomes[promised].sum() / plain[promised].sum()) if promised.any() else 0.0
    with_twin = len(np.unique(matches.labels))
    trust = text_trust(train)
    return Calibration(curve, len(train.labels), with_twin, len(outcomes), base, real, losses, briers, tables, trust)


def text_trust(train: Split, *, seed: int = 0, most: int = 5000) -> float:
    """Return how much more often a point shares words with a text of its own labels than with that of another label.

    Each of up to `most` pairs of a point and its label is compared with the same point and a label of another point:
    the share in which the own label is nearer, less the share in which the other is. It is 0 where texts went to the
    wrong labels.

    >>> from longtail.data.dataset import from_rows
    >>> data = from_rows({"train": (["red cat", "old dog"] * 50, [[0], [1]] * 50)}, label_texts=["cat", "dog"])
    >>> text_trust(data.train) > 0.3
    True
    """
    names = train.labels.texts
    if train.texts is None or names is None or train.targets.nnz == 0:
        return 1.0  # nothing can be said
    random = np.random.default_rng((seed, 7))
    entries = random.integers(0, train.targets.nnz, min(most, train.targets.nnz))
    points = np.searchsorted(train.targets.indptr, entries, "right") - 1
    own, others = train.targets.indices[entries], train.targets.indices[random.permutation(entries)]
    texts = train.texts.take(points)
    words = Words.fit(texts, names.take(own))
    bags = words.bag(texts)
    overlaps = [np.asarray(bags.multiply(words.bag(names.take(some))).sum(axis=1)).ravel() for some in (own, others)]
    return float((overlaps[0] > overlaps[1]).mean() - (overlaps[0] < overlaps[1]).mean())


def _log_loss(predicted: Numbers, outcomes: Numbers) -> float:
    """Return the mean negative log-likelihood, with probabilities clipped to [EPS, 1 - EPS]."""
    clipped = np.clip(predicted, EPS, 1 - EPS)
    return float(-np.mean(np.log(np.where(outcomes > 0, clipped, 1 - clipped))))


def _reliability(predicted: Numbers, outcomes: Numbers) -> tuple[Reliability, ...]:
    """Compare predictions with outcomes in bins (low, high], and exactly 1 for itself; empty bins are left out."""
    group = np.searchsorted(EDGES, predicted, "left")
    group[predicted >= 1] = len(EDGES)
    rows = []
    for number in range(1, len(EDGES) + 1):
        inside = group == number
        if inside.any():
            low, high = (EDGES[number - 1], EDGES[number]) if number < len(EDGES) else (1.0, 1.0)
            means = float(predicted[inside].mean()), float(outcomes[inside].mean())
            rows.append(Reliability(low, high, int(inside.sum()), *means))
    return tuple(rows)
