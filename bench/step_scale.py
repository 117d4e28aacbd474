"""How a training step slows from ten thousand to a million labels, and the memory that a million takes.

    python bench/step_scale.py                     # frugal and the dual encoders, each in a process of its own
    python bench/step_scale.py unidec ngame

The same points, batch and pool each time; only the number of labels differs. The labels of a point are drawn at random,
so that every step touches other rows: the worst case for caches. Recipes as they are, with as many mined negatives as
they draw; of several stages the last is timed, as all its objectives train.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.encoders.inputs import Bags
from longtail.machine import memory_usage
from longtail.parts import Fit, Points
from longtail.recipe import Recipe, find_recipe
from longtail.training.loop import Loop, fabric_of
from longtail.training.network import TrainedNetwork
from longtail.types import label_matrix, no_pairs, rows_of

WORDS, POINTS, PER_POINT, PER_TEXT, STEPS = 50_000, 50_000, 3, 6, 40
RECIPES = ("frugal", "depsl", "unidec", "dpr", "ance", "dexml", "ngame")
RANDOM = 1000  # shared random negatives of frugal, so that its pools are about as large


def bags(count: int, draw: np.random.Generator) -> Bags:
    starts = np.arange(count + 1) * PER_TEXT
    weights = np.full(count * PER_TEXT, PER_TEXT**-0.5, np.float32)
    words = draw.integers(0, WORDS, count * PER_TEXT, np.int32)
    return Bags(sp.csr_array((weights, words, starts.astype(np.int32)), shape=(count, WORDS)))


def pooled(name: str) -> Recipe:
    recipe = find_recipe(name)
    return recipe.override("sampler.random", RANDOM) if name == "frugal" else recipe


def made_up(recipe: Recipe, labels: int) -> Loop:
    draw = np.random.default_rng(0)
    targets = label_matrix(
        np.arange(POINTS + 1) * PER_POINT, draw.integers(0, labels, POINTS * PER_POINT), (POINTS, labels)
    )
    points = Points(
        bags(POINTS, draw), targets, no_pairs(targets.shape), np.ones(POINTS, np.float32), bags(labels, draw)
    )
    settings: Any = recipe.stages[-1]
    assert recipe.encoder is not None
    nothing: Any = None  # there are no texts: only their numbers
    named: Any = SimpleNamespace(labels=SimpleNamespace(texts=("a text",)))  # none of the labels lacks one
    fit = Fit(recipe, named, None, nothing, nothing, points)
    fit.__dict__["start"] = {"words": draw.standard_normal((WORDS, recipe.encoder.width), np.float32)}
    network = TrainedNetwork(fit, recipe.objectives, settings)
    for sampler in {id(term.sampler): term.sampler for term in network.terms}.values():
        pool: Any = sampler
        if pool.settings.hard:  # at random too: what a search would find is not the question here
            found = draw.integers(0, labels, (POINTS, pool.settings.mined))
            pool.mined = rows_of(found, np.ones(found.shape), labels)
    return Loop(network, settings)


def milliseconds(loop: Loop, steps: int = STEPS) -> tuple[float, int]:
    settings, network, fabric = loop.settings, loop.network, fabric_of(loop.settings)
    order, taken, sizes = np.random.default_rng(1).permutation(POINTS), list[float](), list[int]()
    term: Any = network.terms[0]
    propose = term.sampler.propose

    def counted(*given: Any) -> Any:
        candidates = propose(*given)
        sizes.append(len(candidates.labels))
        return candidates

    term.sampler.propose = counted
    for step in range(steps + 5):
        some = order[step * settings.batch_size % POINTS :][: settings.batch_size]
        began = time.perf_counter()
        loop._step(fabric, some, step, 0.1)
        taken.append(time.perf_counter() - began)
    return 1000 * float(np.median(taken[5:])), int(np.mean(sizes))


def measure(name: str) -> None:
    times = {}
    for labels in (10_000, 100_000, 1_000_000):
        times[labels], pool = milliseconds(made_up(pooled(name), labels))
        peak = (memory_usage() or (0, 0))[1]
        print(
            f"{name}, {labels:>9,} labels: {times[labels]:6.1f} ms a step, pool {pool:,}, peak {peak / 1e9:.1f} GB",
            flush=True,
        )
    slower = times[1_000_000] / times[10_000]
    print(f"{name}: a step with a million labels takes {slower:.2f} times one with ten thousand (limit 1.5)")
    assert slower <= 1.5, "steps must not grow with the number of labels"
    assert peak < 12e9, "a million labels must train in 12 GB"


def main() -> None:
    names = sys.argv[1:] or RECIPES
    if len(names) == 1:
        measure(names[0])
        return
    failed = [name for name in names if subprocess.run([sys.executable, __file__, name], check=False).returncode]
    if failed:
        sys.exit(f"over the limit: {', '.join(failed)}")


if __name__ == "__main__":
    main()
