"""Two trees beside each other, in turns: training, and served predictions, as a ratio of medians.

python bench/before_after.py OTHER/src [--rounds 5] [--what train]   # this tree against the sources of another commit

Each measurement is a process of its own. `frugal` is trained on LF-MDNSeeAlsoTitles-6K; predictions are those of a
`frugal` with one epoch on LF-MSDocsSeeAlsoTitles-87K, indexed: one text after the other, and 4,000 in a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(os.environ.get("LONGTAIL_DATA", "../shared/data"))
WORK = """
import json, sys, time
import numpy as np
import longtail as lt
from pathlib import Path
from longtail.recipe import find_recipe
what, data, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
if what == "train":
    train = lt.load(data / "LF-MDNSeeAlsoTitles-6K").train
    began = time.perf_counter()
    lt.fit("frugal", train)
    print(json.dumps({"training": time.perf_counter() - began}))
elif what == "make":
    from longtail.artefact import build_artefact
    train = lt.load(data / "LF-MSDocsSeeAlsoTitles-87K").train
    lt.fit(find_recipe("frugal").override("training.epochs", 1), train).save(folder)
    print(json.dumps({"index": str(build_artefact(folder))}))
else:
    texts = lt.load(data / "LF-MSDocsSeeAlsoTitles-87K").test.texts.tolist()[:4000]
    index = lt.Index.load(folder)
    for text in texts[:300]:
        index.predict([text])
    index.predict(texts)
    times = []
    for text in texts[:2000]:
        began = time.perf_counter()
        index.predict([text])
        times.append(time.perf_counter() - began)
    batches = []
    for _ in range(5):
        began = time.perf_counter()
        index.predict(texts)
        batches.append(time.perf_counter() - began)
    print(json.dumps({"one text": float(np.median(times)), "a batch": float(np.median(batches))}))
"""


def measure(source: Path, what: str, folder: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", WORK, what, str(DATA.resolve()), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--what", nargs="+", choices=("train", "predict"), default=("train", "predict"))
    arguments = parser.parse_args()
    trees = {"before": arguments.other.resolve(), "after": Path(__file__).resolve().parent.parent / "src"}
    times: dict[str, dict[str, list[float]]] = {name: {} for name in trees}
    with tempfile.TemporaryDirectory() as work:
        if "predict" in arguments.what:
            for name, source in trees.items():
                print(name, measure(source, "make", Path(work) / name), flush=True)
        for what in arguments.what:
            for _ in range(arguments.rounds):
                for name, source in trees.items():
                    for key, value in measure(source, what, Path(work) / name).items():
                        times[name].setdefault(key, []).append(value)
                        print(f"{name}: {key} {value:.5f} s", flush=True)
    for key, values in times["before"].items():
        before, after = statistics.median(values), statistics.median(times["after"][key])
        print(f"{key}: {before:.5f} s before, {after:.5f} s after, ratio {after / before:.3f}")


if __name__ == "__main__":
    main()
