"""One process of a training over label shards, for tests: `python ranks.py OUT JOB …`, a JSON list [recipe, settings].

Trains one job after the other. The first process writes the loss of every step and what the models are, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

TEXTS = [f"{a} {b} {c}" for a in ("red", "old", "wild") for b in ("cat", "dog", "fox", "hen") for c in ("barn", "sea")]
NAMES = ["red", "old", "wild", "cat", "dog", "fox", "hen", "barn", "sea", "red cat", "old dog"]
Job = tuple[str, dict[str, Any]]


def points() -> Any:
    """Make points with two to four labels each."""
    from longtail.data.dataset import from_rows

    texts = [f"{text} {number % 5}" for number, text in enumerate(TEXTS * 5)]
    labels = [[place for place, name in enumerate(NAMES) if set(name.split()) <= set(text.split())] for text in texts]
    return from_rows({"train": (texts, labels)}, label_texts=NAMES).train


def start(size: int, out: Path, *jobs: Job) -> list[tuple[int, str]]:
    """Train with so many processes; returns how each has ended, and what it has said."""
    from longtail.cli.launch import free_port

    there = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    there |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, str(out), *(json.dumps(job) for job in jobs)]
    processes = [
        subprocess.Popen(command, env={**os.environ, **there, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    return [(process.returncode, said) for process in processes for _, said in [process.communicate(timeout=600)]]


def run(size: int, out: Path, *jobs: Job) -> list[dict[str, Any]]:
    """Train with so many processes and return what the first one wrote of each job."""
    for code, said in start(size, out, *jobs):
        assert code == 0, said
    found: list[dict[str, Any]] = json.loads((out / "found.json").read_text())
    return found


def main(out: Path, *jobs: Job) -> None:
    """Train, and write what came out."""
    from longtail.pipeline import fit
    from longtail.recipe import find_recipe
    from longtail.shards import joined
    from longtail.training.loop import Loop

    steps, step, stop = list[tuple[int, float]](), Loop._step, list[int]()

    def noted(self: Loop, rows: Any, number: int, factor: float) -> float:
        if number in stop and self.group.rank == self.group.size - 1:  # the last one is killed
            os.kill(os.getpid(), signal.SIGKILL)
        value = step(self, rows, number, factor)
        steps.append((number, value))
        return value

    Loop._step = noted  # type: ignore[method-assign]
    found = []
    with joined() as group:
        for place, (name, settings) in enumerate(jobs):
            recipe, scratch = find_recipe(name), out / str(place)
            stop[:] = [settings.pop("stop")] if "stop" in settings else []
            if settings.pop("alone", False):  # without voices and augmentations: one run of the loop
                recipe = replace(recipe, voices=(), augment=())
            for path, value in settings.items():
                recipe = recipe.override(path, value)
            steps.clear()
            sent, calls = group.sent, group.calls
            if group.first:
                scratch.mkdir(parents=True, exist_ok=True)
            group.wait()
            model = fit(recipe, points(), scratch=scratch)
            top = model.predict(["a red cat", "the old sea dog", "hen"], k=5)
            answers = [[(int(label), float(score)) for label, _, score in row] for row in top]
            rows = None if model.vectors is None else np.asarray(model.vectors.store.take(slice(None))).tolist()
            one = {"losses": list(steps), "answers": answers, "rows": rows}
            found.append(one | {"sent": group.sent - sent, "calls": group.calls - calls})
        if group.first:
            (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(json.loads(job) for job in sys.argv[2:]))
