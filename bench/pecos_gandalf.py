"""PECOS on plain data and on what `longtail augment` exports: does Gandalf lift somebody else's trainer?

    python bench/pecos_gandalf.py ../shared/data/LF-MDNSeeAlsoTitles-6K --out results/gandalf-pecos

The runner of PECOS and its environment come from the peers' folder: --peers, or LONGTAIL_PEERS, or ../shared/peers.
PECOS takes hard labels only, so the soft targets are cut (`--binarise`). The cut, and whether to calibrate, are chosen
by P@5 on a tenth of the training points that PECOS does not see; nothing is chosen on test points. All metrics,
PSP too, are computed here, from PECOS' predictions and the frequencies of the original training data.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail.augment.gandalf import Gandalf
from longtail.augment.soft import binarised
from longtail.data.dataset import Dataset, Split
from longtail.data.formats import load, write
from longtail.files import write_json
from longtail.labels.propensity import Propensity, frequencies
from longtail.metrics import evaluate
from longtail.types import TopK

VARIANT = "pifa_lf_concat"  # the one with label texts as features: the strongest of PECOS here
CUTS = (0.15, 0.25, 0.35, 0.5)
SHOWN = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "nDCG@5", "Cov@1", "Cov@5")


def main() -> None:
    """Run all data sets, one after the other, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the results without ending: .json and .md are added")
    parser.add_argument("--peers", type=Path, default=Path(os.environ.get("LONGTAIL_PEERS", "../shared/peers")))
    parser.add_argument("--cuts", type=float, nargs="+", default=CUTS)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    setup = subprocess.run([chosen.peers / "setup.sh"], capture_output=True, text=True, check=True)
    python = Path(setup.stdout.split()[-1]) / "pecos" / "bin" / "python"
    runner = [str(python), str((chosen.peers / "run_pecos.py").resolve())]
    file = chosen.out.with_suffix(".json")
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for path in chosen.data:
        data = load(path)
        results[data.name] = compare(data, runner, chosen.cuts, chosen.seed)
        write_json(file, results)
        chosen.out.with_suffix(".md").write_text(page(results))


def compare(data: Dataset, runner: list[str], cuts: list[float], seed: int) -> dict[str, Any]:
    """Choose cut and calibration on validation points, then measure plain and augmented training on test points."""
    kept, held = data.train.divide(0.1, seed=seed)
    trials = []
    for calibrate in (False, True):
        more = Gandalf(calibrate=calibrate).augment(kept, seed=seed)
        for cut in cuts:
            values = run(data, binarised(more, cut), held, runner)["metrics"]
            trials.append({"calibrate": calibrate, "binarise": cut} | {key: values[key] for key in SHOWN})
            print(json.dumps(trials[-1]), flush=True)
    best = max(trials, key=lambda trial: float(trial["P@5"]))
    augmented = binarised(Gandalf(calibrate=best["calibrate"]).augment(data.train, seed=seed), best["binarise"])
    out: dict[str, Any] = {"validation": trials, "chosen": {key: best[key] for key in ("calibrate", "binarise")}}
    out["plain"] = run(data, data.train, data.test, runner)
    out["gandalf"] = run(data, augmented, data.test, runner)
    for name in ("plain", "gandalf"):
        print(name, json.dumps({key: out[name]["metrics"][key] for key in SHOWN}), flush=True)
    return out


def run(data: Dataset, train: Split, test: Split, runner: list[str]) -> dict[str, Any]:
    """Export, train and predict with PECOS, and measure with the frequencies of the original training points."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(data.with_splits(replace(train, augmented=None), test.named("test")), folder / "data", "jsonl")
        files = [f"--{part}={folder / 'data' / part}.jsonl.gz" for part in ("trn", "tst", "lbl")]
        barred = folder / "data" / "tst_filter.txt"
        files += [f"--filter-tst={barred}"] if barred.exists() else []
        began = time.perf_counter()
        command = [*runner, *files, f"--variant={VARIANT}", f"--out={folder / 'out'}", "--n-single=50"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"PECOS failed:\n{done.stderr[-2000:]}")
        told = json.loads(done.stdout.splitlines()[-1])
        with np.load(folder / "out" / "pred_topk.npz") as found:
            top = TopK(found["indices"].astype(np.int32), found["scores"].astype(np.float32))
    original = data.train
    measured = evaluate(
        top, test.targets, train_frequencies=frequencies(original.targets), train_points=len(original),
        propensity=Propensity.of(data.name),
    )  # fmt: skip
    points = {"points": len(train), "targets": int(train.targets.nnz), "train_s": told["train_s"]}
    seconds = round(time.perf_counter() - began, 1)
    return points | {"seconds": seconds, "versions": told["versions"], "metrics": measured.to_dict()}


def page(results: dict[str, Any]) -> str:
    """Write the results for people."""
    names = " ".join(f"../shared/data/{name}" for name in results)
    lines = [
        "# Gandalf lifts PECOS",
        "",
        f"    python bench/pecos_gandalf.py {names} --out results/gandalf-pecos",
        "",
        f"PECOS XR-Linear ({VARIANT}) trained on the plain file and on the export of `longtail augment`. Test points,",
        "in percent; PSP from the original frequencies. Cut and calibration were chosen by P@5 on a tenth of the",
        "training points (tables below); nothing was chosen on test points. These are not the standard XMC benchmarks:",
        "compare rows only with each other.",
        f"Machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}.",
        "",
    ]
    for name, found in results.items():
        kind = "--calibrate " if found["chosen"]["calibrate"] else ""
        lines += [f"## {name}", "", "| trained on | points | train s | " + " | ".join(SHOWN) + " |"]
        lines += ["|---|" + "---:|" * (len(SHOWN) + 2)]
        plain, gandalf = found["plain"], found["gandalf"]
        command = f"`longtail augment … {kind}--binarise {found['chosen']['binarise']}`"
        for title, row in (("plain data", plain), (command, gandalf)):
            values = " | ".join(f"{row['metrics'][key]:.2f}" for key in SHOWN)
            lines += [f"| {title} | {row['points']:,} | {row['train_s']:.0f} | {values} |"]
        gains = " | ".join(f"{gandalf['metrics'][key] - plain['metrics'][key]:+.2f}" for key in SHOWN)
        lines += [f"| gain | | | {gains} |", "", "Validation, by which the cut was chosen:", ""]
        lines += ["| calibrated | cut | " + " | ".join(SHOWN) + " |", "|---|" + "---:|" * (len(SHOWN) + 1)]
        for trial in found["validation"]:
            values = " | ".join(f"{trial[key]:.2f}" for key in SHOWN)
            lines += [f"| {'yes' if trial['calibrate'] else 'no'} | {trial['binarise']} | {values} |"]
        lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
