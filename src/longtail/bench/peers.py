"""DATA → RESULTS OF A PEER: train another tool through the peers' harness, and evaluate its predictions ourselves.

The harness (`run_all.sh DATA OUT.jsonl NAME`) trains the tool and leaves its top labels in a file. All metrics are
computed here from those, with the frequencies of the original training points, so that augmented data cannot bias them.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail.augment.soft import binarised
from longtail.bench.changes import find_data
from longtail.bench.suite import Job, recipe_for
from longtail.bench.variants import stacked, values, variant
from longtail.data.dataset import Dataset, Split
from longtail.data.formats import write
from longtail.errors import DataError, ResourceError
from longtail.evaluation import Evaluation
from longtail.labels.propensity import Propensity, frequencies
from longtail.metrics import evaluate
from longtail.types import Texts, TopK

WORD = re.compile(r"\b\w+\b")  # as the harness cuts texts
LAYOUT = ("trn.jsonl.gz", "tst.jsonl.gz", "lbl.jsonl.gz")  # what the harness reads


def harness() -> Path:
    """Find the harness: $LONGTAIL_PEERS or ../shared/peers."""
    return Path(os.environ.get("LONGTAIL_PEERS", "../shared/peers")) / "run_all.sh"


def absent(job: Job) -> str:
    """Return why a job cannot be run here; empty if it can."""
    if job.kind == "peer" and not harness().is_file():
        return "the peers are not here; set LONGTAIL_PEERS to the folder that has run_all.sh"
    return ""


def run_peer(job: Job, data: Dataset, work: Path) -> tuple[TopK, dict[str, Any]]:
    """Train and evaluate a peer; returns its predictions of the test points and the fields of its line."""
    variants = {way: split for way in job.also if len(split := variant(data.test, way, job.seed))}
    folder = _exported(job, data, stacked([data.test, *variants.values()]) if variants else data.test, work)
    out = work / "peer.jsonl"
    command = ["bash", str(harness().resolve()), str(folder.resolve()), str(out), job.tool or job.name]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    report = _read_report(job, out)
    with np.load(report["pred_file"]) as arrays:
        top = TopK(arrays["indices"].astype(np.int32), arrays["scores"].astype(np.float32))
    expected = sum(map(len, (data.test, *variants.values())))
    if len(top) != expected:
        raise DataError(f"{job.name} left predictions for {len(top):,} points, not {expected:,}")
    measured, also, first = _evaluated(top, data.test, data), dict[str, float](), len(data.test)
    for way, split in variants.items():
        own = TopK(top.labels[first:], top.scores[first:])
        also |= values(way, _evaluated(own, split, data).values)
        first += len(split)
    peak_mib = max(report["train_peak_rss_mb"], report.get("train_peak_rss_child_mb", 0))
    costs = {
        "seconds": round(report["train_s"] + report.get("featurize_s", 0), 3),  # from texts to a model, as ours
        "peak_mb": round(1.048576 * peak_mib, 1),
        "model_mb": round((report["model_bytes"] + report.get("vectorizer_bytes", 0)) / 1e6, 2),
        "latency_ms": report["single_p50_ms"],
        "batch_seconds": round(report["batch_ms_all"] * report["n_tst"] / 1000, 3),
        "threads": report.get("threads"),  # the harness has its own number
        "versions": report.get("versions"),
    }
    own = TopK(top.labels[: len(data.test)], top.scores[: len(data.test)]).without(data.test.excluded)
    return own, measured.to_dict() | also | costs


def _evaluated(top: TopK, test: Split, data: Dataset) -> Evaluation:
    """Evaluate the first predictions, as many as there are test points."""
    first = TopK(top.labels[: len(test)], top.scores[: len(test)])
    return evaluate(
        first, test.targets, train_frequencies=frequencies(data.train.targets),
        train_points=len(data.train), propensity=Propensity.of(data.name), excluded=test.excluded,
    )  # fmt: skip


def _exported(job: Job, data: Dataset, test: Split, work: Path) -> Path:
    """Return a folder that the harness reads: the data set's own, if nothing was changed."""
    folder = find_data(job.data)
    if not (job.recipe or job.change or job.also or job.pairs) and all((folder / name).is_file() for name in LAYOUT):
        return folder
    train = data.train
    if job.recipe:
        part = recipe_for(job).augment[0]
        if part.acts_on != ("dataset",):
            raise DataError(f"{job.recipe} mixes batches; a peer can only be given points", remedy="use gandalf")
        train = binarised(part.augment(train, seed=job.seed), job.binarise or 1.0)
    train = replace(train, augmented=None, source=None)
    if job.pairs:
        texts = data.labels.texts
        data = replace(data, labels=replace(data.labels, texts=None if texts is None else with_pairs(texts)))
        train, test = (
            replace(split, labels=data.labels, texts=with_pairs(split.need_texts("pairs"))) for split in (train, test)
        )
    write(data.with_splits(train, test), work / "data", "jsonl")
    return work / "data"


def with_pairs(texts: Texts) -> Texts:
    """Add every two neighbouring words of a text as one: features of pairs for a tool that counts words.

    >>> with_pairs(Texts(["Red cat, old"])).tolist()
    ['Red cat, old red_cat cat_old']
    """
    found = (WORD.findall(text.lower()) for text in texts)
    return Texts(
        " ".join([text, *map("_".join, itertools.pairwise(words))]) for text, words in zip(texts, found, strict=True)
    )


def _read_report(job: Job, out: Path) -> dict[str, Any]:
    """Read the line that the harness wrote; raise its error."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    report: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": "it wrote nothing"}
    if "error" in report:
        stderr = out.with_name(f"{out.name}.{(job.tool or job.name).replace(':', '-')}.err")
        last = stderr.read_text(encoding="utf-8", errors="replace").split("\n") if stderr.exists() else []
        last = [line.strip() for line in last if line.strip()][-1:]
        raise ResourceError(": ".join([f"{job.name} failed ({report['error']})", *last]))
    return report
