"""ROWS → ROWS, compiled: what a step of a training does to rows of numbers, each read and written once.

For numbers in the memory of this machine; on other devices, and where numba is not installed, torch does the same in a
dozen passes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longtail.machine import compiled
from longtail.types import Floats

Places = NDArray[np.int64]


@compiled
def adam(
    values: Floats, first: Floats, second: Floats, rows: Places, gradient: Floats,
    rate: np.float32, keep: np.float32, keep_square: np.float32, eps: np.float32,
) -> None:  # fmt: skip
    """Change rows (R, D) by gradients of (U, D), with moments that fade by `keep` and `keep_square`."""
    one = np.float32(1)
    for place in range(len(rows)):
        row = rows[place]
        for at in range(values.shape[1]):
            slope = gradient[place, at]
            mean = first[row, at] + (one - keep) * (slope - first[row, at])
            square = keep_square * second[row, at] + (one - keep_square) * slope * slope
            first[row, at], second[row, at] = mean, square
            values[row, at] -= rate * mean / (np.sqrt(square) + eps)


@compiled
def adagrad(values: Floats, total: Floats, rows: Places, gradient: Floats, rate: np.float32, eps: np.float32) -> None:
    """Change rows (R, D) by gradients of (U, D), with one sum of squares a row."""
    for place in range(len(rows)):
        row, square = rows[place], np.float32(0)
        for at in range(values.shape[1]):
            square += gradient[place, at] * gradient[place, at]
        total[row] += square / np.float32(values.shape[1])
        step = rate / (np.sqrt(total[row]) + eps)
        for at in range(values.shape[1]):
            values[row, at] -= step * gradient[place, at]


@compiled
def sums(places: Places, starts: Places, weights: Floats, vectors: Floats, out: Floats) -> None:
    """Sum weighted vectors (U, D) for each of B texts: (B, D)."""
    for text in range(len(out)):
        out[text] = 0
        for at in range(starts[text], starts[text + 1]):
            weight, place = weights[at], places[at]
            for column in range(out.shape[1]):
                out[text, column] += weight * vectors[place, column]


@compiled
def sums_back(places: Places, starts: Places, weights: Floats, gradient: Floats, out: Floats) -> None:
    """Add the gradient of sums (B, D) to those of their vectors, zeros (U, D)."""
    for text in range(len(gradient)):
        for at in range(starts[text], starts[text + 1]):
            weight, place = weights[at], places[at]
            for column in range(out.shape[1]):
                out[place, column] += weight * gradient[text, column]


@compiled
def drop(values: Floats, chance: NDArray[np.uint8], cut: np.uint8, scale: np.float32, out: Floats) -> None:
    """Scale the values up whose chance is at least `cut`, and zero the others."""
    for place in range(len(values)):
        out[place] = values[place] * scale if chance[place] >= cut else np.float32(0)


@compiled
def unit_sums(
    rows: Floats, texts: Floats, out: Floats, lengths: Floats, weight: np.float32, shortest: np.float32
) -> None:
    """Add weighted texts to rows (N, D) and divide by the lengths, which are kept."""
    for place in range(len(rows)):
        square = np.float32(0)
        for at in range(rows.shape[1]):
            value = rows[place, at] + weight * texts[place, at]
            out[place, at] = value
            square += value * value
        lengths[place] = max(np.sqrt(square), shortest)
        scale = np.float32(1) / lengths[place]
        for at in range(rows.shape[1]):
            out[place, at] *= scale


@compiled
def unit_sums_back(
    gradient: Floats, units: Floats, lengths: Floats, of_rows: Floats, of_texts: Floats, weight: np.float32
) -> None:
    """Give rows and texts their gradients: that of the units without the part along each, by its length."""
    for place in range(len(units)):
        along = np.float32(0)
        for at in range(units.shape[1]):
            along += gradient[place, at] * units[place, at]
        scale = np.float32(1) / lengths[place]
        for at in range(units.shape[1]):
            slope = (gradient[place, at] - along * units[place, at]) * scale
            of_rows[place, at], of_texts[place, at] = slope, weight * slope
