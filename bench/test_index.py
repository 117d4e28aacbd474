"""Served predictions over 87 K labels, text to label texts: one at a time, in batches, and beside the peers.

    pytest bench/test_index.py --benchmark-only --benchmark-disable-gc -s

`frugal` is trained once, which takes minutes, and kept in $LONGTAIL_CACHE. The other recipes and the peers (where they
are installed: $PEERS_HOME) are measured if they were trained: LONGTAIL_BENCH_TRAIN=1 trains them once. Single queries
run on one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, shared_data
from fitted import CACHE, NAME, brief, frugal, million, without_words

from longtail.data.formats import load
from longtail.index import Index
from longtail.types import contains

HARNESS = Path(os.environ.get("LONGTAIL_PEERS", ROOT.parent / "shared" / "peers"))
HOME = Path(os.environ.get("PEERS_HOME", Path.home() / ".cache" / "longtail-peers"))
PEERS = {"pecos": ("pecos", "pifa_lf_concat"), "omikuji": ("main", "bonsai"), "napkinxc": ("main", "plt")}
SINGLE = {True: 0.25, False: 0.25}  # ms that the median is to stay within, with and without words
BATCH = 20_000  # texts a second that a batch is to be answered at, on two cores
KEPT = {True: 0.995, False: 0.98}  # of the P@5 of exact search, with and without words


@pytest.fixture(scope="module")
def data():
    return load(shared_data(NAME))


def load_index(data, fused: bool) -> Index:
    """Open frugal's index, with words or by vectors alone."""
    return Index.load(frugal(data.train) if fused else without_words(data.train))


def timed(index: Index, texts: list[str], labels: np.ndarray) -> list[float]:
    """Predict one text after the other; return the seconds of each."""
    times = []
    for row, text in enumerate(texts):
        start = time.perf_counter()
        predictions = index.predict([text], 5)[0]
        times.append(time.perf_counter() - start)
        labels[row, : len(predictions)] = [label for label, _, _ in predictions]
    return times


@pytest.mark.parametrize("fused", [False, True], ids=["vectors", "fused"])
def test_single_query(benchmark, data, fused):
    index, test = load_index(data, fused), data.test.take(np.arange(1000))
    texts = test.texts.tolist()
    labels = np.full((len(texts), 5), -1)
    timed(index, texts[:100], labels)
    times: list[float] = []
    benchmark.pedantic(lambda: times.extend(timed(index, texts, labels)), rounds=3)
    exact = index.model.predict(texts, 5).labels
    kept = contains(test.targets, labels).mean() / contains(test.targets, exact).mean()
    median, slow = 1000 * np.median(times), 1000 * np.percentile(times, 99)
    benchmark.extra_info.update(p50_ms=median, p99_ms=slow, kept=kept)
    print(
        f"single query, {'fused' if fused else 'vectors'}: p50 {median:.3f} ms (aim {SINGLE[fused]}), "
        f"p99 {slow:.3f} ms, "
        f"{kept:.2%} of exact P@5 ({index.served})"
    )
    assert kept >= KEPT[fused]


@pytest.mark.parametrize("fused", [False, True], ids=["vectors", "fused"])
def test_batch(benchmark, data, fused):
    index, texts = load_index(data, fused), data.test.texts[:4000].tolist()
    index.predict(texts[:200], 5)
    benchmark.pedantic(index.predict, (texts, 5), rounds=5)
    speed, middle = (len(texts) / getattr(benchmark.stats.stats, name) for name in ("min", "median"))
    way = "fused" if fused else "vectors"
    print(f"batch, {way}: {speed:,.0f} queries/s at best (aim {BATCH:,}), {middle:,.0f} in the middle")


@pytest.mark.parametrize("recipe", ["knn", "astec", "xmlcnn", "inceptionxml", "inceptionxml_plus"])
def test_other_recipes(benchmark, data, recipe):
    texts = data.test.texts[:200].tolist()
    if not (CACHE / f"{recipe}-{NAME}").exists() and recipe != "knn" and not os.environ.get("LONGTAIL_BENCH_TRAIN"):
        pytest.skip(f"{recipe} is not trained; LONGTAIL_BENCH_TRAIN=1 trains it once, which takes minutes")
    index = Index.load(brief(recipe, data.train))
    labels = np.full((len(texts), 5), -1)
    timed(index, texts[:20], labels)
    times = benchmark.pedantic(timed, (index, texts, labels), rounds=1)
    way = "all labels are compared" if index.served else "its own candidates"
    print(f"{recipe}, one epoch, {way}: single query p50 {1000 * np.median(times):.3f} ms")


@pytest.mark.parametrize("make", [frugal, million])
def test_open(benchmark, data, make):
    folder = make(data.train)
    code = "import sys, time; from longtail.index import Index; s = time.perf_counter(); i = Index.load(sys.argv[1]); "
    code += "a = time.perf_counter(); i.predict(['default printer']); b = time.perf_counter(); "
    code += "print(a - s, b - a, next(int(l.split()[1]) / 1000 for l in open('/proc/self/status') if 'VmRSS' in l))"
    command = [sys.executable, "-c", code, str(folder)]
    done = benchmark.pedantic(subprocess.run, (command,), {"capture_output": True, "check": True}, rounds=1)
    load_s, first_s, memory = map(float, done.stdout.split())
    print(f"{make.__name__}: open {load_s:.3f} s, first answer {first_s:.3f} s, resident memory {memory:.0f} MB")
    assert load_s < 1


@pytest.mark.parametrize("peer", PEERS)
def test_peers(benchmark, peer):
    environment, variant = PEERS[peer]
    python, out = HOME / environment / "bin" / "python", CACHE / f"{peer}-{variant}"
    if not python.exists() or not (HARNESS / f"run_{peer}.py").exists():
        pytest.skip(f"{peer} is not here; see the README of the peers")
    source = shared_data(NAME)
    command = [str(python), str(HARNESS / f"run_{peer}.py"), "--variant", variant, "--out", str(out), "--threads", "1"]
    command += [item for part in ("trn", "tst", "lbl") for item in (f"--{part}", str(source / f"{part}.jsonl.gz"))]
    if (out / "train.json").exists():
        command += ["--keep"]
    elif not os.environ.get("LONGTAIL_BENCH_TRAIN"):
        pytest.skip(f"{peer} is not trained; LONGTAIL_BENCH_TRAIN=1 trains it once, which takes minutes")
    command += ["--max-tst", "2000"]
    options = {"capture_output": True, "check": True, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    done = benchmark.pedantic(subprocess.run, (command,), options, rounds=1)
    report = json.loads(done.stdout.splitlines()[-1])
    print(f"{peer}: single query p50 {report['single_p50_ms']} ms, p99 {report['single_p99_ms']} ms")
