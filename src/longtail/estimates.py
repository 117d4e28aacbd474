"""RECIPE + SIZES → MEMORY, DISK, SECONDS: what a fit will need, before anything is built."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np

from longtail.data.dataset import Split
from longtail.data.tokens import WORD
from longtail.errors import ResourceError
from longtail.limits import cgroup
from longtail.machine import memory_usage, numbers
from longtail.recipe import Recipe
from longtail.records import Sizes
from longtail.system import address_space

PROCESS = 150_000_000  # bytes of Python and the libraries, where the system does not tell
TORCH, RUNNING = 220_000_000, 150_000_000  # bytes that importing torch takes, and its threads


@dataclass(frozen=True)
class Estimate:
    """What a run will probably need."""

    memory_bytes: int  # of each process
    disk_bytes: int
    seconds: float
    processes: int = 1
    sent_bytes: int = 0  # by each process in a step


def estimate(recipe: Recipe, train: Split | Sizes, *, processes: int = 1) -> Estimate:
    """Estimate the peak memory, the disk and the time of a fit from a sample of the texts, before anything is built.

    Of several processes that share the labels it is the memory of each, and what each sends in a step.
    """
    found = train if isinstance(train, Sizes) else gauge(train, recipe.name)
    needs = recipe.total_cost(replace(recipe.sizes(found), processes=processes))
    libraries = RUNNING + (0 if "torch" in sys.modules else TORCH) if recipe.trains else 0
    seconds = needs.seconds + (4 if recipe.trains else 1)
    memory = int(_peak_memory() + libraries + needs.memory)
    return Estimate(memory, int(needs.disk), seconds, processes, int(needs.sent))


def gauge(train: Split, what: str) -> Sizes:
    """Gauge what the costs of recipes grow with; `what` needs the texts."""
    texts = train.need_texts(what)
    some = texts.take(np.random.default_rng(0).permutation(len(texts))[:2000])
    found = [set(WORD.findall(text.lower())) for text in some]
    words = float(np.mean([len(entry) for entry in found])) if found else 0.0
    distinct = len(set().union(*found)) if found else 0
    share = min(1.0, len(some) / max(1, len(train)))
    vocabulary = int(distinct / max(share, 1e-9) ** 0.6)  # Heaps' law
    return Sizes(len(train), len(train.labels), train.targets.nnz, words, vocabulary)


def need_memory(needs: Estimate, *, processes: int = 1) -> None:
    """Refuse a fit that the free memory cannot hold; so many of its processes are on this machine."""
    free = available()
    if free is not None and processes * (needs.memory_bytes - _peak_memory()) > free:
        raise ResourceError(
            f"this needs about {processes * needs.memory_bytes / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; use a "
            "smaller encoder.dim, training.optimizer=adagrad (a third of the memory of label rows), fewer points, a "
            "larger machine, or several: --processes, of which `--dry-run` says how many"
            + ("" if address_space() is None else "; or raise the limit: ulimit -v")
        )


def enough_processes(recipe: Recipe, train: Split | Sizes, free: int, most: int = 1024) -> int | None:
    """Find how many processes, each on a machine with so many free bytes, hold a training; None: none of these do."""
    found = train if isinstance(train, Sizes) else gauge(train, recipe.name)
    for processes in (1 << power for power in range(most.bit_length())):
        if estimate(recipe, found, processes=processes).memory_bytes - _peak_memory() <= free:
            return processes
    return None


def _peak_memory() -> int:
    """Return how much memory this process has had at most so far."""
    return (memory_usage() or (PROCESS, PROCESS))[1]


def available() -> int | None:
    """Return how much memory this process can still get from the machine and within its limits, where they say so."""
    found = [kilobytes * 1024 for kilobytes in [numbers("/proc/meminfo").get("MemAvailable")] if kilobytes is not None]
    group, space = cgroup(), address_space()
    if group is not None:
        found.append(group[0] - group[1])
    if space is not None:
        found.append(space - numbers("/proc/self/status").get("VmSize", 0) * 1024)
    return max(0, min(found)) if found else None
