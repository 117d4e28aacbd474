"""Build the conditional graph of a million labels: estimated against measured memory and time, as JSON.

    python bench/million.py [--points 2250000] [--labels 1300000] [--kind conditionals] [--keep FOLDER]
    python bench/million.py --engine local [--workers 1] [--compare]

With an engine the graph is built by way of the disk (`longtail graph build --engine`); the peaks are those of the
driver and of the largest worker. `--compare` says whether the bits are those of the graph that is built in memory.

The label matrix is generated with the statistics of LF-AmazonTitles-1.3M (2.25 M points, 1.3 M labels, 22 labels a
point). Generation, estimate and build run in child processes of their own, so that each peak is clean.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.engines.graphs import build_graph
from longtail.engines.pools import Cluster
from longtail.files import read_arrays, write_arrays
from longtail.labels.graph import KINDS, estimate
from longtail.labels.spilled import GraphSettings
from longtail.machine import memory_usage
from longtail.types import LabelMatrix

TOPIC = 50  # labels of a topic
BURST = 4  # labels that a point draws from one topic before it turns to the next
STEEPNESS = 0.45  # of Zipf's law, over topics and over the labels inside a topic
MEAN, SPREAD, MOST = 23.1, 0.9, 1000  # draws of a point: log-normal; repeated labels merge, about 22.2 are left


def generated(points: int, labels: int, seed: int = 0) -> LabelMatrix:
    """Draw a label matrix: each point visits some topics and takes a few labels of each."""
    rng = np.random.default_rng(seed)
    topics = max(labels // TOPIC, 1)
    topic_share, label_share = _zipf(topics), _zipf(min(TOPIC, labels))
    names = rng.permutation(labels)  # neighbours in a topic are not neighbours in number
    sizes, columns = [np.zeros(1, np.int64)], []
    for start in range(0, points, 2**16):
        count = min(2**16, points - start)
        draws = rng.lognormal(np.log(MEAN) - SPREAD**2 / 2, SPREAD, count)
        draws = np.clip(np.rint(draws), 1, MOST).astype(np.int64)
        bursts = -(-draws // BURST)
        topic = np.searchsorted(topic_share, rng.random(bursts.sum()))
        rows = np.repeat(np.arange(count), draws)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(draws) - draws, draws)
        topic = topic[np.repeat(np.cumsum(bursts) - bursts, draws) + place // BURST]
        label = names[topic * TOPIC + np.searchsorted(label_share, rng.random(len(rows)))]
        keys = np.sort(rows * labels + label)
        keys = keys[np.diff(keys, prepend=-1) > 0]
        sizes.append(np.bincount(keys // labels, minlength=count))
        columns.append((keys % labels).astype(np.int32))
    starts = np.cumsum(np.concatenate(sizes)).astype(np.int32)
    indices = np.concatenate(columns)
    return sp.csr_array((np.ones(len(indices), np.float32), indices, starts), shape=(points, labels))


def _zipf(count: int) -> NDArray[np.float64]:
    """Return the cumulative shares of ranks 1 to count."""
    share = np.cumsum(np.arange(1, count + 1) ** -STEEPNESS)
    return share / share[-1]


def _generate(path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    began = time.perf_counter()
    targets = generated(arguments.points, arguments.labels)
    write_arrays(path, {"indptr": targets.indptr, "indices": targets.indices, "values": targets.data})
    sizes, frequency = (
        np.diff(targets.indptr).astype(np.int64),
        np.bincount(targets.indices, minlength=arguments.labels),
    )
    return {
        "labels_per_point": round(float(sizes.mean()), 2),
        "multiply_adds": int((sizes**2).sum()),
        "median_frequency": float(np.median(frequency)),
        "largest_frequency": int(frequency.max()),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _load_targets(path: Path, arguments: argparse.Namespace) -> LabelMatrix:
    arrays = read_arrays(path)
    targets = sp.csr_array((arguments.points, arguments.labels), dtype=np.float32)
    targets.data, targets.indices, targets.indptr = arrays["values"], arrays["indices"], arrays["indptr"]
    return targets


def _estimate(path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    began = time.perf_counter()
    needs = estimate(_load_targets(path, arguments), arguments.kind)
    return {
        "peak_mb": needs.peak_bytes >> 20,
        "build_seconds": round(needs.seconds, 1),
        "entries": needs.entries,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _build(path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    began, cpu = time.perf_counter(), time.process_time()
    graph = KINDS[arguments.kind](_load_targets(path, arguments))
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "peak_mb": peak >> 10,
        "entries": graph.nnz,
        "entries_per_row": round(graph.nnz / graph.shape[0], 2),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def _spill(path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    began = time.perf_counter()
    targets, out = _load_targets(path, arguments), path.with_name("graph.safetensors")
    settings, cluster = GraphSettings(arguments.kind), Cluster(arguments.workers)
    edges, worker = build_graph(targets, path.name, settings, out, arguments.engine, cluster, force=True)
    peak = (memory_usage() or (0, 0))[1]
    facts = {
        "driver_peak_mb": peak >> 20,
        "worker_peak_mb": worker >> 20,
        "entries": edges,
        "seconds": round(time.perf_counter() - began, 1),
    }
    if arguments.compare:
        graph, arrays = KINDS[arguments.kind](targets), read_arrays(out)
        pairs = ((graph.indptr, "indptr"), (graph.indices, "indices"), (graph.data, "values"))
        facts["same_bits"] = all(
            np.array_equal(array.view(np.uint8), arrays[name].view(np.uint8)) for array, name in pairs
        )
    out.unlink()
    return facts


STEPS = {"generate": _generate, "estimate": _estimate, "build": _build, "spill": _spill}


def main() -> None:
    """Run the steps in children and print one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=2_250_000)
    parser.add_argument("--labels", type=int, default=1_300_000)
    parser.add_argument("--kind", default="conditionals", choices=sorted(KINDS))
    parser.add_argument("--keep", type=Path, help="keep the generated matrix here and use it again")
    parser.add_argument("--engine", help="build by way of the disk: local or dask")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--compare", action="store_true", help="with an engine: compare with the graph in memory")
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(STEPS[arguments.step](arguments.keep, arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = (arguments.keep or Path(folder)) / f"{arguments.points}x{arguments.labels}.safetensors"
        wanted = ["generate", *(["spill"] if arguments.engine else ["estimate", "build"])]
        steps = [step for step in wanted if step != "generate" or not path.exists()]
        out = {step: _child(step, path, arguments) for step in steps}
    if not arguments.engine:
        out["peak_ratio"] = round(out["estimate"]["peak_mb"] / out["build"]["peak_mb"], 3)
    print(json.dumps({"kind": arguments.kind, "points": arguments.points, "labels": arguments.labels} | out, indent=1))


def _child(step: str, path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    sizes = ["--points", str(arguments.points), "--labels", str(arguments.labels), "--workers", str(arguments.workers)]
    if arguments.engine:
        sizes += ["--engine", arguments.engine, *(["--compare"] if arguments.compare else [])]
    command = [sys.executable, __file__, "--step", step, "--keep", str(path), "--kind", arguments.kind, *sizes]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
