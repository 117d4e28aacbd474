"""TARGETS → WHAT FREQUENCIES SAY: counts, inverse propensities, and bins from head to tail.

All three come from the original training targets, never from augmented ones.

References: [Jain et al. 2016] "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.types import LabelMatrix

# Stems of data-set names (letters and digits only) with the constants that their leader boards use. A name that has no
# stem here takes the defaults; AmazonCat-13K, Wiki10-31K and WikiSeeAlso* are meant to be among those.
FAMILIES: dict[str, tuple[float, float]] = {
    "wikilshtc": (0.5, 0.4),
    "wiki500k": (0.5, 0.4),
    "wikipedia500k": (0.5, 0.4),
    "wikipedialarge500k": (0.5, 0.4),
    "wikititles500k": (0.5, 0.4),
    "amazon131k": (0.6, 2.6),
    "amazon670k": (0.6, 2.6),
    "amazon13m": (0.6, 2.6),
    "amazon3m": (0.6, 2.6),
    "amazontitles": (0.6, 2.6),
}


def frequencies(targets: LabelMatrix) -> NDArray[np.int64]:
    """Count the points of each label, (L,); a soft target counts as one whole point.

    >>> from longtail.types import label_matrix
    >>> frequencies(label_matrix(np.array([0, 2, 3]), np.array([0, 2, 2]), (2, 3), np.array([1, 0.5, 1]))).tolist()
    [1, 0, 2]
    """
    return np.bincount(targets.indices, minlength=targets.shape[1]).astype(np.int64, copy=False)


@dataclass(frozen=True)
class Propensity:
    """The constants A and B of the propensity model p = 1 / (1 + C (n + B)^-A), C = (ln N - 1)(B + 1)^A.

    >>> Propensity().inverse(np.array([0, 1, 100]), points=1000).round(2).tolist()
    [8.82, 6.91, 1.77]
    """

    a: float = 0.55
    b: float = 1.5

    def __post_init__(self) -> None:
        if not (self.a >= 0 and self.b > 0):
            raise ValueError(f"propensity a={self.a}, b={self.b}: a must be at least 0 and b above 0")

    @classmethod
    def of(cls, name: str) -> Propensity:
        """Return the usual constants of a data set's family, whatever the case and punctuation of its name.

        >>> Propensity.of("LF-AmazonTitles-131K")
        Propensity(a=0.6, b=2.6)
        >>> Propensity.of("LF-WikiSeeAlsoTitles-320K")
        Propensity(a=0.55, b=1.5)
        """
        letters = re.sub(r"[^a-z0-9]", "", name.casefold())
        return next((cls(*constants) for stem, constants in FAMILIES.items() if stem in letters), cls())

    def inverse(self, frequencies: NDArray[Any], points: int) -> NDArray[np.float64]:
        """Return 1/p of each label, (L,), from its training frequency and the number of training points."""
        # ln N - 1 is negative below three points; a C under 0 would make rare labels weigh less than frequent ones
        # (or less than nothing), so it stops at 0, where all labels weigh 1.
        c = max(0.0, math.log(max(1, points)) - 1) * (self.b + 1) ** self.a
        out: NDArray[np.float64] = 1 + c * (np.asarray(frequencies, np.float64) + self.b) ** -self.a
        return out


def bins(frequencies: NDArray[Any], count: int = 3) -> NDArray[np.int32]:
    """Cut the labels, most frequent first, into bins of about equal volume: 0 is the head, count - 1 the tail, (L,).

    A bin closes before the label that would take it above total // count positives, but holds at least one label.
    The last bin takes the rest and always the labels of frequency 0. Equal frequencies go by label id.

    >>> bins(np.array([1, 6, 0, 3, 2]), count=2).tolist()
    [1, 0, 1, 1, 1]
    """
    if count < 1:
        raise ValueError(f"{count} bins were asked for; ask for at least 1")
    volumes = np.asarray(frequencies)
    order = np.argsort(-volumes, kind="stable")
    sums = np.cumsum(volumes[order])
    share = int(sums[-1]) // count if len(sums) else 0
    out = np.full(len(volumes), count - 1, np.int32)
    start = 0
    for number in range(count - 1):
        filled = int(sums[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(sums, filled + share, side="right")))
        out[order[start:end]] = number
        start = min(end, len(volumes))
    out[volumes == 0] = count - 1
    return out
