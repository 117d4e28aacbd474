"""TARGETS → POINTS TO HOLD OUT: those that belong together, and those whose labels keep other points."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.types import LabelMatrix

SHARED_LABELS = 3  # of a point, at least, where points with the same labels count as a group


def label_groups(targets: LabelMatrix, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Give points with the same labels a number, where most points have at least three and share all of them."""
    starts, indices = targets.indptr, targets.indices
    many = np.diff(starts)[rows] >= SHARED_LABELS
    if len(rows) == 0 or many.mean() <= 0.5:
        return None
    sets = [indices[starts[row] : starts[row + 1]].tobytes() for row in rows.tolist()]
    numbers = {labels: number for number, labels in enumerate(dict.fromkeys(sets))}
    groups = np.array([numbers[labels] for labels in sets])
    shared = many & (np.bincount(groups)[groups] > 1)
    return groups if shared.mean() > 0.5 and len(numbers) > 1 else None


def keeping_labels(targets: LabelMatrix, order: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Take points in this order, each only if all its labels keep another point; what is skipped comes last."""
    remaining = np.bincount(targets.indices, minlength=targets.shape[1])
    taken: list[int] = []
    skipped: list[int] = []
    for point in order.tolist():
        own = targets.indices[targets.indptr[point] : targets.indptr[point + 1]]
        if len(taken) < size and (remaining[own] > 1).all():
            remaining[own] -= 1
            taken.append(point)
        else:
            skipped.append(point)
    return np.array(taken + skipped, np.int64)


def of_labels(targets: LabelMatrix, labels: NDArray[Any]) -> LabelMatrix:
    """Leave out the pairs of all other labels.

    >>> of_labels(sp.csr_array([[1.0, 0.5], [0.0, 1.0]]), np.array([0])).toarray()
    array([[1., 0.],
           [0., 0.]])
    """
    chosen = np.zeros(targets.shape[1], np.bool_)
    chosen[labels] = True
    kept = chosen[targets.indices]
    starts = np.append(0, np.cumsum(kept))[targets.indptr].astype(targets.indptr.dtype)
    return sp.csr_array((targets.data[kept], targets.indices[kept], starts), shape=targets.shape)
