"""TARGETS → POINTS TO HOLD OUT: those that belong together, and those whose labels keep other points."""

from __future__ import annotations

import numpy as np
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


def keeping_labels(
    targets: LabelMatrix, order: NDArray[np.int64], size: int, sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Take points, or groups of such sizes, in this order, each only if all its labels keep another one.

    That ends when the sizes add up to `size`; what is skipped comes last. Where there are groups, a label is kept by a
    group and not by a single point.
    """
    starts, indices = targets.indptr, targets.indices
    keeps = sizes > 1 if (sizes > 1).any() else sizes > 0
    remaining = np.bincount(indices[np.repeat(keeps, np.diff(starts))], minlength=targets.shape[1])
    taken: list[int] = []
    skipped: list[int] = []
    held = 0
    for row in order.tolist():
        own = indices[starts[row] : starts[row + 1]]
        if held < size and (remaining[own] > keeps[row]).all():
            remaining[own] -= keeps[row]
            held += int(sizes[row])
            taken.append(row)
        else:
            skipped.append(row)
    return np.array(taken + skipped, np.int64)
