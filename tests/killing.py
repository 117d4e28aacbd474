"""A task whose worker is killed in the middle of its work; imported by the workers of every engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

MOMENTS = {  # what a worker is about to do when it dies
    "begin": "longtail.engines.batches.opened",
    "rename": "longtail.engines.batches.checksum",  # the answers are in a temporary file
    "note": "longtail.engines.places.Place.write",  # the answers are there, and nobody knows
    "spill": "longtail.labels.spilled.write_arrays",
}


def die(*_args: Any, **_more: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


@dataclass(frozen=True)
class Killed:
    """A task that kills its process the first time that it gets one of some items."""

    task: Callable[[str], dict[str, Any]]
    moments: dict[str, str]  # of items
    notes: Path  # a folder

    def __call__(self, item: str) -> dict[str, Any]:
        note = self.notes / item.replace("/", "-")
        if item not in self.moments or note.exists():
            return self.task(item)
        note.touch()
        with patch(MOMENTS[self.moments[item]], die):
            return self.task(item)


def always_die(item: str) -> dict[str, Any]:
    """Kill whatever process runs this."""
    die(item)


def fail(item: str) -> dict[str, Any]:
    """Fail as a program with a mistake does."""
    return {"item": item, "length": 1 // 0}


def double(item: str) -> dict[str, Any]:
    """Do something simple."""
    return {"item": item, "twice": 2 * item, "threads": os.environ.get("OMP_NUM_THREADS"), "process": os.getpid()}
