"""How well Gandalf's assumption holds: plain against calibrated soft targets, also where label texts are permuted.

    python bench/calibration.py ../shared/data/LF-MDNSeeAlsoTitles-6K --out results/calibration

Writes OUT.md, OUT.json and a picture for each case. A permuted case gives the texts of 30 % or of all labels to other
labels: then the assumption is false for them by construction, and calibration must notice.
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
    args = parser.parse_args()
    cases = []
    for path in args.data:
        train = load(path).train
        for share in SHARES:
            began = time.perf_counter()
            calibration = calibrate(permuted(train, share, args.seed), seed=args.seed)
            seconds = time.perf_counter() - began
            name = train.dataset + (f", {share:.0%} of the label texts permuted" if share else "")
            case = {"name": name, "share": share, "seconds": round(seconds, 2), "strong": strong(calibration, train)}
            cases.append((case, calibration))
            if calibration.method == "shrunk":
                break  # permuting changes nothing here
            suffix = f"-permuted-{share:.0%}".rstrip("%") if share else ""
            picture = args.out.with_name(f"{args.out.name}-{train.dataset}{suffix}.svg")
            draw_reliability(calibration.reliability, picture, name)
            case["picture"] = picture.name
    write_json(args.out.with_suffix(".json"), [case | calibration.to_dict() for case, calibration in cases])
    args.out.with_suffix(".md").write_text(page(cases, args.data))


def strong(calibration: Calibration, train: Split) -> float:
    """Return the mean fitted value of the pairs whose conditional is above one half."""
    graph = conditionals(train.targets, threshold=0.5)
    graph.setdiag(0)
    graph.eliminate_zeros()
    fitted = calibration.apply(train.targets, threshold=0.0)
    graph.data[:] = 1
    return float(fitted.multiply(graph).sum() / max(graph.nnz, 1))


def page(cases: list[tuple[dict[str, Any], Calibration]], paths: list[Path]) -> str:
    """Write the results as Markdown."""
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
    for case, calibration in cases:
        losses = " | ".join(
            f"{calibration.losses[key]:.4f}" if key in calibration.losses else "–"
            for key in ("plain", "base", "shrunk", "isotonic", "logistic")
        )
        measured = f"{calibration.base_rate:.4f} | {calibration.real:.0%}" if calibration.pairs else "– | –"
        brier = (
            f"{calibration.briers['plain']:.4f} → {calibration.briers['calibrated']:.4f}" if calibration.briers else "–"
        )
        lines.append(
            f"| {case['name']} | {calibration.twins:,} of {calibration.labels:,} | {calibration.pairs:,} "
            f"| {measured} | {losses} | {calibration.method} | {brier} | {case['strong']:.3f} | {calibration.verdict} "
            f"| {case['seconds']} |"
        )
    for case, calibration in cases:
        lines += ["", f"## {case['name']}", "", calibration.advice, ""]
        if "picture" in case:
            lines += [f"![reliability]({case['picture']})", ""]
        for which, rows in calibration.reliability.items():
            lines += [f"| {which} soft target | pairs | promised | real |", "|---|---:|---:|---:|"]
            for row in rows:
                span = f"{row.low:g}–{row.high:g}" if row.low < row.high else "exactly 1"
                lines.append(f"| {span} | {row.count:,} | {row.predicted:.3f} | {row.observed:.3f} |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
