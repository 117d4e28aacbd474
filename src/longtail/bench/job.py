"""JOBS OF ONE TRAINING → LINES, in a process of its own, so that time and memory are those of this training alone.

`python -m longtail.bench.job` reads a request from standard input and answers in JSON lines: progress, then a result
or an error. It ends, with its child processes, when standard input closes: a job never outlives the suite.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from longtail.auto.portfolio import Auto
from longtail.bench.changes import job_data
from longtail.bench.peers import run_peer
from longtail.bench.points import keep
from longtail.bench.suite import Job, auto_for, recipe_for, recipe_for_all
from longtail.bench.variants import values, variant
from longtail.data.dataset import Dataset
from longtail.errors import LongtailError
from longtail.files import read_json, write_json
from longtail.index import Index
from longtail.labels.propensity import Propensity, frequencies
from longtail.machine import commit, memory_usage, threads, versions
from longtail.metrics import evaluate, precision, psndcg
from longtail.model import Model
from longtail.pipeline import fit
from longtail.recipe import Recipe
from longtail.system import memory
from longtail.types import Progress, TopK
from longtail.whole import temporary

LATENCY_TEXTS, WARM_UP = 200, 20  # texts that are timed, and texts before them
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")


def run(
    jobs: Sequence[Job], scratch: Path, progress: Progress | None = None, points: Path | None = None
) -> list[dict[str, Any]]:
    """Fit once and evaluate for each job; returns the fields of their lines except those of the jobs themselves.

    What each test point adds to the metrics is left in the folder `points`, if there is one.
    """
    data = job_data(jobs[0])
    facts: dict[str, Any] = {
        "fingerprint": data.fingerprint,
        "train_points": len(data.train),
        "labels": len(data.labels),
    }
    if jobs[0].kind == "peer":
        with temporary("bench") as work:
            measured = [run_peer(job, data, work) for job in jobs]
    else:
        measured = _run_recipe(jobs, data, scratch, progress)
    for job, (top, _) in zip(jobs, measured, strict=True):
        if points is not None:
            keep(points, job, top, data)
    shutil.rmtree(scratch, ignore_errors=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    facts |= {"threads": threads(), "commit": commit(), "machine": machine(), "time": now}
    return [facts | own for _, own in measured]


def _run_recipe(
    jobs: Sequence[Job], data: Dataset, scratch: Path, progress: Progress | None
) -> list[tuple[TopK, dict[str, Any]]]:
    """Fit the recipe that has all that the jobs serve, and evaluate each way of serving it."""
    clock = _Clock(scratch / "spent.json")
    # A folder for each data set, so that a checkpoint of other data is never loaded.
    folder = scratch / data.train.fingerprint[:12]
    recipe = auto_for(jobs[0]) if jobs[0].recipe == Auto.name else recipe_for_all(jobs)
    model = fit(recipe, data.train, scratch=folder, progress=clock.watching(progress))
    costs = clock.spent() | {"peak_mb": round((memory_usage() or (0, 0))[1] / 1e6, 1)}
    models = [model] if len(jobs) == 1 else [served_as(model, recipe_for(job)) for job in jobs]
    measured = [_measured(job, own, data) for job, own in zip(jobs, models, strict=True)]
    return [(top, values | costs) for top, values in measured]


def served_as(model: Model, recipe: Recipe) -> Model:
    """Serve what was trained as a recipe does whose objectives differ in `served` alone."""
    pairs = list(zip(model.recipe.objectives, recipe.objectives, strict=True))
    weights = [wanted.share for own, wanted in pairs if own.over == "labels" and own.share]
    objectives = tuple(replace(own, served=wanted.served) for own, wanted in pairs)
    scorer: Any = model.vectors
    vectors = scorer.served(weights) if len(weights) > 1 else scorer
    return replace(model, recipe=replace(model.recipe, objectives=objectives), vectors=vectors)


def _measured(job: Job, model: Model, data: Dataset) -> tuple[TopK, dict[str, Any]]:
    """Evaluate a model, and measure what it takes to serve it."""
    began = time.perf_counter()
    top = model.predict_split(data.test, 10)
    batch = time.perf_counter() - began
    facts: dict[str, Any] = {"train_frequencies": model.frequencies, "train_points": model.points}
    facts["propensity"] = Propensity.of(data.name)
    measured = evaluate(top, data.test.targets, **facts)
    also: dict[str, float] = {}
    for way in job.also:
        other = variant(data.test, way, job.seed)
        if len(other):
            also |= values(way, evaluate(model.predict_split(other), other.targets, **facts).values)
    texts = data.test.need_texts("latency")[:LATENCY_TEXTS].tolist()
    with temporary("bench") as folder:
        model.save(saved := folder / "model")
        size = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())
        milliseconds = _latency_in_process(saved, texts)
    return top, measured.to_dict() | {
        **_more_metrics(top, data),
        **also,
        "done": model.facts()["done"],
        **({"trials": model.trials} if model.trials else {}),
        "mflops": round(model.vectors.operations() / 1e6, 3) if model.vectors else 0.0,
        "model_mb": round(size / 1e6, 2),
        "latency_ms": milliseconds,
        "batch_seconds": round(batch, 6),
    }


def _more_metrics(top: TopK, data: Dataset) -> dict[str, float]:
    """Compute P@10, and PSnDCG in the form of AttentionXML."""
    train, targets = data.train.original, data.test.targets
    labels = np.pad(top.labels, ((0, 0), (0, max(0, 10 - top.labels.shape[1]))), constant_values=-1)
    inverse = Propensity.of(data.name).inverse(frequencies(train.targets), len(train))
    values = {f"PSN@{k}": value for k, value in psndcg(labels, targets, inverse, variant="attentionxml").items()}
    values["P@10"] = precision(labels, targets, (10,))[10]
    return {name: round(100 * value, 4) for name, value in values.items()}


def latency(model: Index, texts: list[str]) -> float:
    """Return the median milliseconds of one query, after a warm-up."""
    for text in texts[:WARM_UP]:
        model.predict([text])
    seconds = []
    for text in texts:
        began = time.perf_counter()
        model.predict([text])
        seconds.append(time.perf_counter() - began)
    return round(1000 * float(np.median(seconds)), 4) if seconds else 0.0


def _latency_in_process(folder: Path, texts: list[str]) -> float:
    """Measure the latency of the saved model in a new process with one thread, as in a service."""
    request = json.dumps({"model": str(folder), "texts": texts})
    command = [sys.executable, "-m", "longtail.bench.job", "latency"]
    done = subprocess.run(
        command, input=request, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | ONE_THREAD
    )
    return float(done.stdout)


class _Clock:
    """Wall and CPU seconds of a fit, also of one that was stopped and continued."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.before = read_json(path) if path.exists() else {"seconds": 0.0, "cpu_seconds": 0.0, "continued": -1}
        self.began = time.perf_counter(), time.process_time()
        self._saved = 0.0

    def spent(self) -> dict[str, float]:
        """Return the seconds so far; what was done after the last checkpoint of a stopped run counts twice."""
        wall, cpu = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
        return {
            "seconds": round(self.before["seconds"] + wall, 2),
            "cpu_seconds": round(self.before["cpu_seconds"] + cpu, 2),
            "continued": self.before["continued"] + 1,
        }

    def watching(self, progress: Progress | None) -> Progress:
        """Wrap a progress callback so that it saves the time every few seconds."""

        def report(what: str, done: int, total: int) -> None:
            if time.perf_counter() - self._saved > 5:
                self._saved = time.perf_counter()
                write_json(self.path, self.spent())
            if progress:
                progress(what, done, total)

        return report


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that decide speed."""
    facts: dict[str, Any] = {"cores": os.cpu_count(), "cpu": platform.machine()}
    if memory() < math.inf:
        facts["memory_gb"] = round(memory() / 2**30)
    return facts | versions()


def _main() -> None:
    """Serve one request."""
    if sys.argv[1:] == ["latency"]:
        request = json.load(sys.stdin)
        sys.stdout.write(json.dumps(latency(Index.load(request["model"]), request["texts"])))
        return
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    last = [0.0]

    def send(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value, ensure_ascii=False) + "\n")
        answers.flush()

    def progress(what: str, done: int, total: int) -> None:
        if time.monotonic() - last[0] > 0.5:
            last[0] = time.monotonic()
            send({"progress": [what, done, total]})

    jobs = [Job(**(job | {"change": tuple(job["change"]), "also": tuple(job["also"])})) for job in request["jobs"]]
    try:
        points = Path(request["points"]) if request.get("points") else None
        send({"results": run(jobs, Path(request["scratch"]), progress, points)})
    except LongtailError as error:
        send({"error": str(error)})


def _exit_with_parent() -> None:
    """Wait for the end of standard input, then kill the whole process group."""
    while os.read(0, 1024):  # not through sys.stdin, whose lock would block the interpreter's exit
        pass
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    _main()
