"""What Gandalf does for the knn recipe: with and without, calibrated, and the papers' variants.

    python bench/gandalf_knn.py ../shared/data/LF-MDNSeeAlsoTitles-6K --variants --out results/gandalf-knn

knn trains nothing and chooses its three settings on validation points, so that a row takes seconds. With --permute the
texts of that share of the labels go to other labels, which breaks Gandalf's postulate.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibration import permuted

from longtail.augment.gandalf import Gandalf
from longtail.data.formats import load
from longtail.files import write_json
from longtail.pipeline import evaluate, fit
from longtail.recipe import find_recipe

SHOWN = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5", "Cov@1", "Cov@5")
FIRST: dict[str, dict[str, Any] | None] = {
    "D (no Gandalf)": None,
    "D ∪ Z": {},
    "D ∪ Z, calibrated": {"calibrate": True},
}
VARIANTS: dict[str, dict[str, Any] | None] = {
    "Z alone": {"points": "labels"},
    "U(D ∪ Z, N)": {"sample": "points"},
    "D ∪ Z¹ (self-annotation)": {"targets": "self"},
    "D ∪ Z, σ(S)": {"graph": "glas"},
    "D ∪ Z, random walk": {"graph": "walk"},
    "D ∪ Z, δ = 0": {"threshold": 0.0},
    "D ∪ Z, δ = 0.2": {"threshold": 0.2},
    "25 % of Z, random": {"share": 0.25},
    "25 % of Z, tail first": {"share": 0.25, "order": "tail"},
    "50 % of Z, random": {"share": 0.5},
    "50 % of Z, tail first": {"share": 0.5, "order": "tail"},
}


def main() -> None:
    """Run all rows of all data sets and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the results without ending")
    parser.add_argument("--variants", action="store_true", help="the papers' variants too")
    parser.add_argument("--permute", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    file = chosen.out.with_suffix(".json")
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for path in chosen.data:
        data = load(path)
        train = permuted(data.train, chosen.permute, chosen.seed)
        test = replace(data.test, labels=train.labels)
        name = data.name + (f", {chosen.permute:.0%} of the label texts permuted" if chosen.permute else "")
        rows: dict[str, Any] = {}
        for title, settings in (FIRST | (VARIANTS if chosen.variants else {})).items():
            recipe = find_recipe("knn").override("seed", chosen.seed)
            if settings is not None:
                recipe = recipe.override("augment", (Gandalf(**settings),))
            began = time.perf_counter()
            measured = evaluate(fit(recipe, train), test).to_dict()
            rows[title] = {key: measured[key] for key in SHOWN} | {"seconds": round(time.perf_counter() - began, 1)}
            print(name, title, json.dumps(rows[title]), flush=True)
        results[name] = rows
        write_json(file, results)
        chosen.out.with_suffix(".md").write_text(page(results))


def page(results: dict[str, Any]) -> str:
    """Write the results for people."""
    lines = ["# Gandalf and knn", ""]
    for name, rows in results.items():
        folder, _, broken = name.partition(", ")
        flag = " --variants" if len(rows) > len(FIRST) else ""
        flag += f" --permute {int(broken.split('%')[0]) / 100:g}" if broken else ""
        lines += [f"    python bench/gandalf_knn.py ../shared/data/{folder}{flag} --out results/gandalf-knn"]
    lines += ["", "Test points, in percent; PSP from the original frequencies. D are the training points, Z the label"]
    lines += ["points. These are not the standard XMC benchmarks: compare rows only with each other. Seconds are"]
    lines += ["indications: other jobs were running.", ""]
    for name, rows in results.items():
        lines += [f"## {name}", "", "| training points | " + " | ".join(SHOWN) + " | seconds |"]
        lines += ["|---|" + "---:|" * (len(SHOWN) + 1)]
        for title, row in rows.items():
            lines += [f"| {title} | " + " | ".join(f"{row[key]:.2f}" for key in SHOWN) + f" | {row['seconds']} |"]
        lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
