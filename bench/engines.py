"""Time per text of `longtail predict` on every engine, with one worker each, as a table in Markdown.

    python bench/engines.py ../shared/data/LF-MDNSeeAlsoTitles-6K [--texts 1000000] [--recipe knn] [--engines local]

Texts are drawn from the words of the training texts; one command after the other predicts all of them, each in a
process of its own. CPU seconds are those inside the tasks, which other jobs on the machine do not change much.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longtail.answering import PredictSettings
from longtail.data.formats import load
from longtail.engines import batches
from longtail.engines.batches import PredictShard, model_hash, predict_shards
from longtail.engines.places import Place, shards
from longtail.engines.pools import Cluster, run
from longtail.machine import memory_usage
from longtail.pipeline import fit

ENGINES = "local,dask,ray,spark"


@dataclass(frozen=True)
class Timed:
    """A task that notes its times and memory."""

    task: Callable[[str], dict[str, Any]]
    notes: str

    def __call__(self, item: str) -> dict[str, Any]:
        began, cpu = time.perf_counter(), time.process_time()
        result = self.task(item)
        taken = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        note = taken | {"peak": (memory_usage() or (0, 0))[1]}
        (Path(self.notes) / f"{item}.json").write_text(json.dumps(note))
        return result


def generated(words: list[str], texts: int, count: int, folder: Path) -> None:
    """Write texts of three to eight words in so many files."""
    draw = np.random.default_rng(0)
    every = np.array(words)
    for shard in range(count):
        sizes = draw.integers(3, 9, texts // count)
        drawn = np.split(every[draw.integers(0, len(every), sizes.sum())], np.cumsum(sizes)[:-1])
        pq.write_table(pa.table({"title": [" ".join(some) for some in drawn]}), folder / f"part-{shard:03d}.parquet")


def one(engine: str, folder: Path) -> None:
    """Predict everything on one engine; print times."""
    notes, out = folder / f"notes-{engine}", folder / f"out-{engine}"
    notes.mkdir()
    source, files = shards(str(folder / "texts"))
    model = folder / "run"
    task = PredictShard(str(model), model_hash(model), source, Place(str(out)), PredictSettings(), "parquet")
    began = time.perf_counter()
    with patch.object(batches, "run", lambda engine, task, *more: run(engine, Timed(task, str(notes)), *more)):
        done = predict_shards(task, files, engine, Cluster(1))
    wall = time.perf_counter() - began
    listed = json.loads((out / "_manifest.json").read_text())["files"]
    digest = hashlib.sha256("".join(file["sha256"] for file in listed).encode()).hexdigest()
    each = [json.loads(note.read_text()) for note in sorted(notes.iterdir())]
    inside = {name: sum(note[name] for note in each) for name in ("wall", "cpu")}
    peak = max(note["peak"] for note in each)
    print(json.dumps({"rows": done.rows, "total": wall, "peak": peak, "digest": digest} | inside))


def main() -> None:
    """Make a model and texts, and run every engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--recipe", default="knn")
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one, arguments.data)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        train = load(arguments.data).train
        fit(arguments.recipe, train).save(folder / "run")
        (folder / "texts").mkdir()
        words = [word for text in train.need_texts("draw") for word in text.split()]
        generated(words, arguments.texts, arguments.shards, folder / "texts")
        print(
            "| engine | texts | seconds in all | seconds of the tasks | CPU seconds of the tasks | CPU µs a text |",
            end="",
        )
        print(" peak of the worker, MB | the same answers |\n|---|---:|---:|---:|---:|---:|---:|---|")
        digest = ""
        for engine in arguments.engines.split(","):
            command = [sys.executable, __file__, str(folder), "--one", engine]
            shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
            took = json.loads(shown)
            digest = digest or took["digest"]
            micro = took["cpu"] / took["rows"] * 1e6
            cells = f"{took['rows']:,} | {took['total']:.1f} | {took['wall']:.1f} | {took['cpu']:.1f} | {micro:.0f}"
            same = "yes" if took["digest"] == digest else "no"
            print(f"| {engine} | {cells} | {took['peak'] / 1e6:.0f} | {same} |", flush=True)


if __name__ == "__main__":
    main()
