"""DATA → WHAT A PEER MAKES OF IT: run another tool through the peers' harness and measure its predictions ourselves.

The harness (`run_all.sh DATA OUT.jsonl NAME`) trains the tool and leaves its top labels in a file. All metrics are
computed here from those, with the frequencies of the original training points, so that augmented data cannot flatter.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail.augment.soft import binarised
from longtail.bench.changes import find_data
from longtail.bench.suite import Job, recipe_for
from longtail.data.dataset import Dataset
from longtail.data.formats import write
from longtail.errors import DataError, ResourceError
from longtail.labels.propensity import Propensity, frequencies
from longtail.metrics import evaluate
from longtail.pipeline import MakesPoints
from longtail.types import TopK

LAYOUT = ("trn.jsonl.gz", "tst.jsonl.gz", "lbl.jsonl.gz")  # what the harness reads


def harness() -> Path:
    """Find the harness: $LONGTAIL_PEERS or ../shared/peers."""
    return Path(os.environ.get("LONGTAIL_PEERS", "../shared/peers")) / "run_all.sh"


def absent(job: Job) -> str:
    """Say why a job cannot be run here; nothing if it can."""
    if job.kind == "peer" and not harness().is_file():
        return "the peers are not here; set LONGTAIL_PEERS to the folder that has run_all.sh"
    return ""


def run_peer(job: Job, data: Dataset, work: Path) -> dict[str, Any]:
    """Train and measure a peer; returns what a line says about it."""
    folder = _exported(job, data, work)
    out = work / "peer.jsonl"
    command = ["bash", str(harness().resolve()), str(folder.resolve()), str(out), job.tool or job.name]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    told = _told(job, out)
    with np.load(told["pred_file"]) as found:
        top = TopK(found["indices"].astype(np.int32), found["scores"].astype(np.float32))
    if len(top) != len(data.test):
        raise DataError(f"{job.name} left predictions for {len(top):,} points, not {len(data.test):,}")
    original = data.train
    measured = evaluate(
        top, data.test.targets, train_frequencies=frequencies(original.targets), train_points=len(original),
        propensity=Propensity.of(data.name), excluded=data.test.excluded,
    )  # fmt: skip
    costs = {
        "seconds": told["train_s"],
        "featurise_seconds": told.get("featurize_s"),
        "peak_mb": round(1.048576 * max(told["train_peak_rss_mb"], told.get("train_peak_rss_child_mb", 0)), 1),  # MiB
        "model_mb": round((told["model_bytes"] + told.get("vectorizer_bytes", 0)) / 1e6, 2),
        "latency_ms": told["single_p50_ms"],
        "batch_seconds": round(told["batch_ms_all"] * told["n_tst"] / 1000, 3),
        "threads": told.get("threads"),  # the harness has its own number
        "versions": told.get("versions"),
    }
    return measured.to_dict() | costs


def _exported(job: Job, data: Dataset, work: Path) -> Path:
    """Return a folder that the harness reads: that of the data set itself where nothing was changed."""
    folder = find_data(job.data)
    if not job.recipe and not job.change and all((folder / name).is_file() for name in LAYOUT):
        return folder
    train = data.train
    if job.recipe:
        part = recipe_for(job).augment[0]
        if not isinstance(part, MakesPoints):
            raise DataError(f"{job.recipe} mixes batches; a peer can only be given points", remedy="use gandalf")
        train = binarised(part.augment(train, seed=job.seed), job.binarise or 1.0)
    write(data.with_splits(replace(train, augmented=None, source=None), data.test), work / "data", "jsonl")
    return work / "data"


def _told(job: Job, out: Path) -> dict[str, Any]:
    """Read the line that the harness wrote, or what it complained of."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    told: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": "it wrote nothing"}
    if "error" in told:
        complaint = out.with_name(f"{out.name}.{(job.tool or job.name).replace(':', '-')}.err")
        last = complaint.read_text(encoding="utf-8", errors="replace").split("\n") if complaint.exists() else []
        last = [line.strip() for line in last if line.strip()][-1:]
        raise ResourceError(": ".join([f"{job.name} failed ({told['error']})", *last]))
    return told
