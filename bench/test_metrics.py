"""`evaluate` on a million points: pytest bench/test_metrics.py --benchmark-only."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.labels.propensity import frequencies
from longtail.metrics import evaluate
from longtail.types import LabelMatrix, TopK

POINTS, LABELS, K = 1_000_000, 500_000, 5


def long_tailed(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draw labels so that few are frequent and most are rare."""
    return (LABELS * generator.random(shape) ** 3).astype(np.int64)


def truth_and_predictions(seed: int = 0) -> tuple[LabelMatrix, TopK]:
    """Make 5 M positives, and predictions of which about every second is one of them."""
    generator = np.random.default_rng(seed)
    rows = np.repeat(np.arange(POINTS), generator.poisson(K, POINTS))
    keys = np.unique(rows * LABELS + long_tailed(generator, rows.shape))
    rows, labels = np.divmod(keys, LABELS)
    indptr = np.searchsorted(rows, np.arange(POINTS + 1)).astype(np.int32)
    targets = sp.csr_array((np.ones(len(keys), np.float32), labels.astype(np.int32), indptr), shape=(POINTS, LABELS))
    predicted = long_tailed(generator, (POINTS, K))
    place = np.arange(len(keys)) - indptr[rows]
    right = (place < K) & (generator.random(len(keys)) < 0.6)
    predicted[rows[right], place[right]] = labels[right]
    scores = np.broadcast_to(np.linspace(1, 0, K, dtype=np.float32), predicted.shape)
    return targets, TopK(predicted.astype(np.int32), scores)


def test_evaluate_a_million_points(benchmark: Any) -> None:
    targets, top = truth_and_predictions()
    counts = frequencies(targets)
    evaluation = benchmark.pedantic(
        evaluate, (top, targets), {"train_frequencies": counts, "train_points": POINTS}, rounds=5, warmup_rounds=1
    )
    assert 0 < evaluation.values["P@5"] < 100
    assert benchmark.stats is None or benchmark.stats.stats.min < 2  # seconds, on two cores
