"""How far Gandalf's postulate holds: plain against calibrated soft targets, also where label texts are permuted.

    python bench/calibration.py ../shared/data/LF-MDNSeeAlsoTitles-6K --out results/calibration

Writes OUT.md, OUT.json and a picture for each case. A permuted case gives the texts of 30 % or of all labels to other
labels: then the postulate is false for them by construction, and calibration must notice.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from longtail.bench.changes import permuted
from longtail.data.dataset import Split
from longtail.data.formats import load
from longtail.files import write_json
from longtail.labels.calibration import Calibration, calibrate
from longtail.labels.graph import conditionals
from longtail.report import draw_reliability

SHARES = (0.0, 0.3, 1.0)


def main() -> None:
    """Fit all cases and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the results without ending")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    cases = []
    for path in chosen.data:
        train = load(path).train
        for share in SHARES:
            began = time.perf_counter()
            found = calibrate(permuted(train, share, chosen.seed), seed=chosen.seed)
            seconds = time.perf_counter() - began
            name = train.dataset + (f", {share:.0%} of the label texts permuted" if share else "")
            case = {"name": name, "share": share, "seconds": round(seconds, 2), "strong": strong(found, train)}
            cases.append((case, found))
            if found.method == "shrunk":
                break  # there is nothing to break
            suffix = f"-permuted-{share:.0%}".rstrip("%") if share else ""
            picture = chosen.out.with_name(f"{chosen.out.name}-{train.dataset}{suffix}.svg")
            draw_reliability(found.reliability, picture, name)
            case["picture"] = picture.name
    write_json(chosen.out.with_suffix(".json"), [case | found.to_dict() for case, found in cases])
    chosen.out.with_suffix(".md").write_text(page(cases, chosen.data))


def strong(found: Calibration, train: Split) -> float:
    """Return the mean fitted value of the pairs whose conditional is above one half."""
    graph = conditionals(train.targets, threshold=0.5)
    graph.setdiag(0)
    graph.eliminate_zeros()
    fitted = found.apply(train.targets, threshold=0.0)
    graph.data[:] = 1
    return float(fitted.multiply(graph).sum() / max(graph.nnz, 1))


def page(cases: list[tuple[dict[str, Any], Calibration]], paths: list[Path]) -> str:
    """Write the results for people."""
    names = " ".join(f"../shared/data/{path.name}" for path in paths)
    lines = [
        "# Calibrated Gandalf: promised and real relevance", "",
        f"    python bench/calibration.py {names} --out results/calibration", "",
        "One case by hand: `longtail graph fit DIR --plot reliability.svg`. A pair is a label with a twin (a training",
        "point of the same text) and another label that some other point has together with it; it is relevant if the",
        "twin has that other label. The twin is left out of all counts. Log losses are of held-out pairs (five folds,",
        "cut by text; probabilities within 0.01 and 0.99). *Real* is relevance found over relevance promised, for",
        "conditionals above 0.1. *Strong pairs*: the mean fitted value of pairs with a conditional above one half.", "",
        "| data | labels with a twin | pairs | base rate | real | log loss plain | base rate alone | shrunk |"
        " isotonic | logistic | chosen | Brier plain → calibrated | strong pairs | verdict | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---|---:|---|---:|",
    ]  # fmt: skip
    for case, found in cases:
        losses = " | ".join(
            f"{found.losses[key]:.4f}" if key in found.losses else "–"
            for key in ("plain", "base", "shrunk", "isotonic", "logistic")
        )
        measured = f"{found.base_rate:.4f} | {found.real:.0%}" if found.pairs else "– | –"
        brier = f"{found.briers['plain']:.4f} → {found.briers['calibrated']:.4f}" if found.briers else "–"
        lines.append(
            f"| {case['name']} | {found.twins:,} of {found.labels:,} | {found.pairs:,} "
            f"| {measured} | {losses} | {found.method} | {brier} | {case['strong']:.3f} | {found.verdict} "
            f"| {case['seconds']} |"
        )
    for case, found in cases:
        lines += ["", f"## {case['name']}", "", found.advice, ""]
        if "picture" in case:
            lines += [f"![reliability]({case['picture']})", ""]
        for which, rows in found.reliability.items():
            lines += [f"| {which} soft target | pairs | promised | real |", "|---|---:|---:|---:|"]
            for row in rows:
                span = f"{row.low:g}–{row.high:g}" if row.low < row.high else "exactly 1"
                lines.append(f"| {span} | {row.count:,} | {row.predicted:.3f} | {row.observed:.3f} |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
