"""PREDICTIONS → WHAT EACH POINT ADDS → DIFFERENCES: how sure it is that a recipe is ahead of the peers, or behind.

A job leaves what each test point adds to P@1 and PSP@5 in a file beside the lines of its suite (`OUT.points`). When all
are done, each recipe is compared with the best peer as it is, and with the best one on augmented points where there is
one, by a bootstrap over test points; of several seeds the mean of each point counts. A difference is a line too, so
that the table needs no more than the lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from longtail.bench.suite import Job, Suite, grouped, key_of
from longtail.comparison import Gains, differences, per_point
from longtail.data.dataset import Dataset
from longtail.files import read_arrays, write_arrays
from longtail.labels.propensity import Propensity, frequencies
from longtail.types import TopK

KIND = "difference"  # of a line
NAMES = ("hits", "gains", "best")


def keep(folder: Path, job: Job, top: TopK, data: Dataset) -> None:
    """Write what each test point adds to the metrics of a job."""
    train = data.train.original
    inverse = Propensity.of(data.name).inverse(frequencies(train.targets), len(train))
    gains = per_point(top, data.test.targets, inverse)
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(_file(folder, job), {name: getattr(gains, name).astype(np.float32) for name in NAMES})


def compared(suite: Suite, known: Mapping[str, dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """Compare recipes with the best peers of their data, where both left their points; yields new lines alone."""
    for jobs in grouped(suite.jobs(), lambda job: (job.data, job.change)):
        runs = grouped(jobs, lambda job: (job.kind, job.name))
        for augmented in (False, True):
            peers = [own for own in runs if own[0].kind == "peer" and bool(own[0].recipe) == augmented]
            best = max(peers, key=lambda own: _first(own, known), default=[])
            for own in runs:
                if own[0].kind == "recipe":
                    yield from _difference(suite, own, best, known, folder)


def current(line: Mapping[str, Any], known: Mapping[str, dict[str, Any]]) -> bool:
    """Return whether the lines that a difference was computed from are still the ones of their jobs."""
    return all(known.get(key, {}).get("time") == time for key, time in line["of"].items())


def _difference(
    suite: Suite, own: list[Job], best: list[Job], known: Mapping[str, dict[str, Any]], folder: Path
) -> Iterator[dict[str, Any]]:
    """Compare all seeds of a recipe with a peer."""
    jobs = [*own, *best]
    if not best or not all(job.key in known and _file(folder, job).is_file() for job in jobs):
        return
    line = {
        "suite": suite.name, "kind": KIND, "run": own[0].name, "data": Path(own[0].data).name,
        "change": list(own[0].change), "recipe": "augmented" if best[0].recipe else "", "beside": best[0].name,
        "of": {job.key: known[job.key].get("time") for job in jobs},
    }  # fmt: skip
    if known.get(key_of(line), {}).get("of") == line["of"]:
        return
    both = differences(*(_mean([_read(folder, job) for job in jobs]) for jobs in (best, own)))
    yield line | {one.metric: [round(value, 4) for value in (one.difference, one.low, one.high)] for one in both}


def _first(own: list[Job], known: Mapping[str, dict[str, Any]]) -> float:
    """Return the P@1 of a peer; less than nothing where it has none."""
    return float(median(known.get(job.key, {}).get("P@1", -1.0) for job in own))


def _file(folder: Path, job: Job) -> Path:
    return folder / f"{hashlib.sha256(job.key.encode()).hexdigest()[:16]}.safetensors"


def _read(folder: Path, job: Job) -> Gains:
    arrays = read_arrays(_file(folder, job))
    return Gains(*(arrays[name].astype(np.float64) for name in NAMES))


def _mean(several: list[Gains]) -> Gains:
    return Gains(*(np.mean([getattr(gains, name) for gains in several], axis=0) for name in NAMES))
