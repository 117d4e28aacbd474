"""TRAINING POINTS + LABEL TEXTS → MORE TRAINING POINTS: every label's text becomes a point with soft targets.

The postulate: a text that *is* label j has the labels that the points *with* label j have,
P(label l | text of j) ≈ P(label l | label j). So label j's point has target 1 for j, and for every other label its
conditional probability where that is above a threshold. No model has to change.

References: [Gandalf] eq. (6), tables 2, 6 and 7, figure 3; methods §6.1.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow.compute as pc
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.augment.soft import SoftTargets, need_label_texts
from longtail.data.dataset import Split
from longtail.errors import DataError, RecipeError
from longtail.labels.calibration import Calibration, calibrate, calibration_of
from longtail.labels.propensity import bins, frequencies
from longtail.records import record
from longtail.types import Texts, joined, no_pairs

log = logging.getLogger("longtail")
BINS = 5  # as many as the paper cuts the labels into, head to tail


@record
class Gandalf(SoftTargets):
    """Settings of Gandalf, with all the variants of the papers.

    `targets="self"` annotates a label point with its own label only (Z¹). `points="labels"` leaves the original points
    out (Z alone). `sample` draws that many points from the result without replacement, "points" as many as there were.
    `share` uses a part of the labels: at random, or from the tail bin on towards the head. `self_one=False` leaves the
    self edge of σ(S) at σ(1) = 0.73. `calibrate` replaces the conditionals by what the twins of labels among the points
    say they are worth, and makes no points where label texts have nothing to do with the points of their labels.
    Where there are too few twins to measure anything, conditionals are shrunk by counts, or with `untested="self"` not
    used at all. `fitted` holds what was found, so that it travels with the recipe.

    >>> from longtail.data.dataset import from_rows
    >>> data = from_rows({"train": (["red cat", "old cat"], [[0, 1], [0]])}, label_texts=["cat", "red", "dog"])
    >>> more = Gandalf().augment(data.train, seed=0)
    >>> more.texts.tolist()
    ['red cat', 'old cat', 'cat', 'red', 'dog']
    >>> more.targets[2:].toarray()
    array([[1. , 0.5, 0. ],
           [1. , 1. , 0. ],
           [0. , 0. , 1. ]], dtype=float32)
    """

    part: ClassVar[str] = "gandalf"
    targets: Literal["soft", "self"] = "soft"  # targets from the label graph, or the label itself alone
    points: Literal["union", "labels"] = "union"  # whether label points join the original ones, or replace them
    # points that are drawn from the result; None: all, points: as many as there were
    sample: int | Literal["points"] | None = None
    share: float = Field(default=1.0, gt=0, le=1)  # of the labels that become points
    order: Literal["random", "tail"] = "random"  # which labels come first where `share` takes a part of them
    self_one: bool = True  # whether the target of a label's own point is 1, also in σ(S)
    calibrate: bool = False  # whether targets follow what twins of labels among the points say they are worth
    untested: Literal["shrunk", "self"] = "shrunk"  # what conditionals become where too few twins can be measured
    fitted: dict[str, Any] | None = None  # what calibration found; it is filled in by a fit

    def __post_init__(self) -> None:
        if self.calibrate and (self.graph != "conditionals" or self.targets != "soft"):
            raise RecipeError(
                f"gandalf: calibrate works with graph=conditionals and targets=soft, not {self.graph}, {self.targets}"
            )

    def fit(self, train: Split, *, seed: int = 0) -> Self:
        """Return these settings with the calibration that was fitted, where one is asked for and can be."""
        if self.calibrate and nameless(train):
            log.warning("the labels have no texts: Gandalf makes no points of them")
        if not self.calibrate or nameless(train):
            return self
        return replace(self, fitted=self.calibration(train, seed=seed).to_dict())

    def alternatives(self) -> tuple[Self, ...]:
        """Return what held-out points choose from where neither twins nor shared words tell: none, self, soft."""
        calibration = calibration_of(self.fitted) if self.calibrate and self.fitted is not None else None
        if calibration is None or calibration.trusted or calibration.verdict != "unknown":
            return (self,)
        plain = replace(self, calibrate=False, fitted=None)
        return self, replace(plain, targets="self"), plain

    def calibration(self, train: Split, *, seed: int = 0) -> Calibration:
        """Return the fitted calibration, or fit it to the original points."""
        return calibrate(train.original, seed=seed) if self.fitted is None else calibration_of(self.fitted)

    def augment(self, train: Split, *, seed: int = 0) -> Split:
        """Append the label points after the others; the same seed gives the same points."""
        if self.calibrate and (nameless(train) or not self.calibration(train, seed=seed).trusted):
            return train  # label texts that have nothing to do with their points, or that are not there, make none
        chosen = self._chosen(train, np.random.default_rng((seed, 1)))
        labelled = _label_points(train, chosen, self.rows(train, seed=seed))
        whole = labelled if self.points == "labels" else _union(train, labelled)
        whole = replace(whole, source=train.original)
        if self.sample is None:
            return whole
        size = len(train.original) if self.sample == "points" else self.sample
        if not 0 < size <= len(whole):
            raise DataError(f"a sample of {size:,} from {len(whole):,} points", remedy="set sample lower or to null")
        return whole.take(np.sort(np.random.default_rng((seed, 2)).permutation(len(whole))[:size]))

    def rows(self, train: Split, *, seed: int = 0) -> sp.csr_array:
        """Return the soft targets of all labels, (L, L)."""
        count = len(train.labels)
        calibration = self.calibration(train, seed=seed) if self.calibrate else None
        untested = calibration is not None and calibration.verdict == "unknown"
        if self.targets == "self" or (untested and self.untested == "self"):
            return sp.csr_array(sp.eye_array(count, dtype=np.float32, format="csr"))
        if calibration is not None:
            return calibration.apply(train.original.targets, threshold=self.threshold)
        return self.weights(train.original.targets, threshold=self.threshold, seed=seed, own=self.self_one)

    def _chosen(self, train: Split, random: np.random.Generator) -> NDArray[np.int64]:
        """Choose the labels that become points, ascending; a label without words cannot be one."""
        labels = np.flatnonzero(_has_words(train))
        size = round(self.share * len(labels))
        shuffled = random.permutation(labels)
        if self.order == "tail":
            bin_of = bins(frequencies(train.original.targets), BINS)
            shuffled = shuffled[np.argsort(-bin_of[shuffled], kind="stable")]
        return np.sort(shuffled[:size])


def nameless(train: Split) -> bool:
    """Return whether the labels of texts have none, so that nothing can be measured of them."""
    return train.texts is not None and train.labels.texts is None


def _has_words(train: Split) -> NDArray[np.bool_]:
    """Return which labels have a text that is not blank, or features where the points have no texts."""
    if train.texts is None:
        if train.labels.features is None:
            raise DataError(
                "the points have features but no texts, and the labels have no features: no label can become a point",
                remedy="load a layout with raw texts (jsonl, xmc with trn_X.txt …), or add label features (Yf.txt)",
            )
        return np.diff(train.labels.features.indptr) > 0
    texts = need_label_texts(train, "Gandalf, which makes a training point of every label,")
    return np.asarray(pc.not_equal(pc.utf8_trim_whitespace(texts.array), ""), np.bool_)


def _label_points(train: Split, chosen: NDArray[Any], rows: sp.csr_array) -> Split:
    """Make the chosen labels points, one of each text that a label has."""
    labels = train.labels
    texts = None if train.texts is None or labels.texts is None else labels.texts.take(chosen)
    if texts is not None and labels.alternatives is not None and labels.alternatives_of is not None:
        others = np.flatnonzero(np.isin(labels.alternatives_of.indices, chosen))
        texts = joined(texts, labels.alternatives.take(others))
        chosen = np.append(chosen, labels.alternatives_of.indices[others])
    names = labels.ids.take(chosen) if labels.ids is not None else Texts(map(str, chosen.tolist()))
    return replace(
        train,
        targets=rows[chosen],
        excluded=no_pairs((len(chosen), len(labels))),
        texts=texts,
        ids=None if train.ids is None else Texts(f"label:{name}" for name in names),
        features=None if train.features is None or labels.features is None else labels.features[chosen],
        augmented=np.ones(len(chosen), np.bool_),
    )


def _union(first: Split, second: Split) -> Split:
    """Put the points of one split after those of another."""
    before = np.zeros(len(first), np.bool_) if first.augmented is None else first.augmented
    return replace(
        first,
        targets=_stacked(first.targets, second.targets),
        excluded=_stacked(first.excluded, second.excluded),
        texts=None if first.texts is None or second.texts is None else joined(first.texts, second.texts),
        ids=None if first.ids is None or second.ids is None else joined(first.ids, second.ids),
        features=None
        if first.features is None or second.features is None
        else _stacked(first.features, second.features),
        augmented=np.concatenate([before, np.ones(len(second), np.bool_)]),
    )


def _stacked(first: sp.csr_array, second: sp.csr_array) -> sp.csr_array:
    """Put the rows of one matrix below those of another."""
    whole: sp.csr_array = sp.vstack([first, second], format="csr", dtype=np.float32)
    return whole
