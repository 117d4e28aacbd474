"""How a training step slows from ten thousand to a million labels, and the memory that a million takes.

    python bench/step_scale.py

The same points, batch and pool each time; only the number of labels differs. The labels of a point are drawn at random,
so that every step touches other rows: the worst case for caches. A row of `frugal` as it is, 256 dimensions.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.encoders.inputs import Bags
from longtail.machine import memory_usage
from longtail.parts import Fit, Points
from longtail.recipe import find_recipe
from longtail.training.loop import Loop, fabric_of
from longtail.training.network import TrainedNetwork
from longtail.types import label_matrix, no_pairs

WORDS, POINTS, PER_POINT, PER_TEXT, STEPS = 50_000, 50_000, 3, 6, 40
RANDOM = 1000  # shared random negatives, so that the pools are about as large


def bags(count: int, draw: np.random.Generator) -> Bags:
    starts = np.arange(count + 1) * PER_TEXT
    weights = np.full(count * PER_TEXT, PER_TEXT**-0.5, np.float32)
    return Bags(sp.csr_array((weights, draw.integers(0, WORDS, count * PER_TEXT), starts), shape=(count, WORDS)))


def milliseconds(labels: int) -> tuple[float, int]:
    draw = np.random.default_rng(0)
    recipe = find_recipe("frugal").override("sampler.random", RANDOM)
    targets = label_matrix(
        np.arange(POINTS + 1) * PER_POINT, draw.integers(0, labels, POINTS * PER_POINT), (POINTS, labels)
    )
    points = Points(
        bags(POINTS, draw), targets, no_pairs(targets.shape), np.ones(POINTS, np.float32), bags(labels, draw)
    )
    settings: Any = recipe.stages[0]
    texts: Any = None  # there are none: only their numbers
    fit = Fit(recipe, texts, None, texts, texts, points)
    fit.__dict__["start"] = {"words": draw.standard_normal((WORDS, recipe.encoder.width), np.float32)}
    network = TrainedNetwork(fit, recipe.objectives, settings)
    loop, fabric = Loop(network, settings), fabric_of(settings)
    order, taken = draw.permutation(POINTS), []
    for step in range(STEPS + 5):
        some = order[step * settings.batch_size % POINTS :][: settings.batch_size]
        began = time.perf_counter()
        loop._step(fabric, some, step, 0.1)
        taken.append(time.perf_counter() - began)
    sampler: Any = network.terms[0].sampler
    return 1000 * float(np.median(taken[5:])), len(sampler.labels(targets[some], draw))


def main() -> None:
    times = {}
    for labels in (10_000, 100_000, 1_000_000):
        times[labels], pool = milliseconds(labels)
        peak = (memory_usage() or (0, 0))[1]
        print(f"{labels:>9,} labels: {times[labels]:6.1f} ms a step, pool {pool:,}, peak so far {peak / 1e9:.1f} GB")
    slower = times[1_000_000] / times[10_000]
    print(f"a step with a million labels takes {slower:.2f} times one with ten thousand (limit 1.5)")
    assert slower <= 1.5, "steps must not grow with the number of labels"
    assert peak < 12e9, "a million labels must train in 12 GB"


if __name__ == "__main__":
    main()
