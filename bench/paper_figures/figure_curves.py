"""Metrics against steps, with and without Gandalf (paper 0, figure 4, and paper 1, figure 3).

--fit trains the recipe with and without Gandalf once for each number of epochs, about a minute each on
LF-MDNSeeAlsoTitles-6K, and appends a line to OUT.jsonl after each: what has a line is not fitted again, and a stopped
fit continues. Without --fit the page is written from the lines that there are. --logs adds the validation curves of
two runs. A quick look, with an --out elsewhere: --fit --points 300 --epochs 1 2 --set surrogate.training.epochs=1
--set surrogate.training.min_steps=1

It has a loop of its own because suites measure test points only, and this picture is about training points too.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from figure_common import CAUTION, paragraph, verdict, write_page

from longtail.bench.changes import find_data
from longtail.bench.lines import Line, read_lines, unfinished
from longtail.cli.console import with_settings
from longtail.data.dataset import Dataset, Labels, Split
from longtail.data.formats import load
from longtail.errors import DataError
from longtail.metrics import precision
from longtail.pipeline import _held_out, evaluate, fit  # the points that a fit does not train on
from longtail.recipe import Recipe, find_recipe
from longtail.report import INK, QUIET, literal, picture

TRAIN_POINTS = 1_000  # training points that are predicted
METRICS = ("train P@1", "P@1", "P@5", "PSP@5", "Cov@5")
GAP = 5.0  # percent between training and test P@1 that count as a gap


@dataclass(frozen=True)
class Curve:
    """Metrics of one recipe against steps, which rise."""

    name: str
    steps: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]

    def at(self, metric: str, steps: Sequence[float]) -> list[float]:
        """Read a metric at other steps, straight between the measured ones."""
        return [float(value) for value in np.interp(steps, self.steps, self.values[metric])]


def write_curves(args: argparse.Namespace, command: str) -> None:
    """Fit what is missing, if that is asked for, and write the page from the lines and logs that there are."""
    data = load(find_data(args.data))
    data = data if args.points is None else smaller(data, args.points)
    names = (args.recipe, f"{args.recipe}+gandalf")
    recipes = [
        with_settings(find_recipe(name).override("training.min_steps", 1).override("seed", seed), args.set)
        .override("training.epochs", epochs)
        for name in names for seed in args.seeds for epochs in sorted(set(args.epochs))
    ]  # fmt: skip
    file = args.out.with_suffix(".jsonl")
    if args.fit:
        fit_missing(recipes, data, file)
    wanted = [identity(recipe, data.train) for recipe in recipes]
    known = read_lines(file)
    lines = [line for own in wanted for line in known if own.items() <= line.items()]
    out = ["# Learning curves with and without Gandalf", "", *paragraph(
        "Figure 4 of paper 0 (training and test P@1) and figure 3 of paper 1 (metrics against steps). " + CAUTION
    )]  # fmt: skip
    if len({line["recipe"] for line in lines}) == len(names):
        out += fitted_section(lines, [curve_of(lines, name) for name in names], args.out)
    if args.logs:
        out += logged_section([logged(folder) for folder in args.logs], args.out)
    if missing := len(recipes) - len(lines):
        out += ["", f"Not fitted yet: {missing} of {len(recipes)}; the same command with --fit does it."]
    write_page(args.out, command, out)


def smaller(data: Dataset, points: int, seed: int = 0) -> Dataset:
    """Keep some training points, only their labels, and the test points that have one of these."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(data.train))[:points])
    kept = np.unique(data.train.targets[rows].indices)
    texts, ids = (None if old is None else old.take(kept) for old in (data.labels.texts, data.labels.ids))
    labels = Labels(len(kept), texts, ids)

    def cut(split: Split) -> Split:
        return replace(split, labels=labels, targets=split.targets[:, kept], excluded=split.excluded[:, kept])

    test = cut(data.test)
    known = np.flatnonzero(np.diff(test.targets.indptr))
    return replace(data, labels=labels).with_splits(cut(data.train.take(rows)), test.take(known))


def identity(recipe: Recipe, train: Split) -> Line:
    """Return what makes a line one of this recipe on these points, and tells it from all others."""
    settings = recipe.dump()
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "data": train.dataset, "points": len(train), "fingerprint": train.fingerprint, "recipe": recipe.name,
        "epochs": int(settings["stages"][-1]["epochs"]), "seed": recipe.seed, "settings": digest,
    }  # fmt: skip


def fit_missing(recipes: Iterable[Recipe], data: Dataset, out: Path) -> None:
    """Fit what has no line yet and append its line; a fit that was stopped continues from its checkpoint."""
    out.parent.mkdir(parents=True, exist_ok=True)
    done, folder = read_lines(out, repair=True), unfinished(out)
    for recipe in recipes:
        own = identity(recipe, data.train)
        if any(own.items() <= line.items() for line in done):
            continue
        print(f"fitting {own['recipe']}, epochs={own['epochs']}, seed={own['seed']}", file=sys.stderr, flush=True)
        scratch = folder / f"{own['fingerprint']}-{own['settings']}"
        line = own | fitted(recipe, data, scratch)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        shutil.rmtree(scratch, ignore_errors=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def fitted(recipe: Recipe, data: Dataset, scratch: Path) -> Line:
    """Fit a recipe and measure it on test points and on points that it was trained on."""
    began = time.perf_counter()
    model = fit(recipe, data.train, scratch=scratch)
    seconds = time.perf_counter() - began
    kept, _ = _held_out(recipe, data.train, doubts=False)
    seen = data.train if kept is None else kept
    some = seen.take(np.sort(np.random.default_rng(0).permutation(len(seen))[:TRAIN_POINTS]))
    values = {"train P@1": 100 * precision(model.predict_split(some).labels, some.targets, (1,))[1]}
    values |= evaluate(model, data.test).values
    steps = {line["stage"]: int(line["step"]) for line in read_log(scratch)}  # the last line of each stage stays
    return {
        **{name: round(values[name], 4) for name in METRICS},
        "steps": steps["training"], "all_steps": sum(steps.values()),
        "train_points": len(some), "test_points": len(data.test),
        "seconds": round(seconds, 1), "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def read_log(folder: Path) -> list[dict[str, str]]:
    """Read log.csv of a run."""
    file = folder / "log.csv"
    if not file.exists():
        raise DataError("there is no log.csv", file=folder, remedy="give the folder of a recipe that trains")
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def logged(folder: Path) -> Curve:
    """Read the validation P@1 of a run by steps."""
    lines = [line for line in read_log(folder) if line["stage"] == "training" and line.get("P@1")]
    if not lines:
        raise DataError("its log.csv has no P@1", file=folder, remedy="train again with --set training.curves=true")
    values = {name: tuple(float(line[name]) for line in lines) for name in ("loss", "P@1")}
    return Curve(folder.name, tuple(int(line["step"]) for line in lines), values)


def curve_of(lines: Sequence[Line], name: str) -> Curve:
    """Average the lines of a recipe over seeds, for each number of epochs."""
    by_steps: dict[int, list[Line]] = {}
    for line in lines:
        if line["recipe"] == name:
            by_steps.setdefault(int(line["steps"]), []).append(line)
    steps = sorted(by_steps)
    values = {
        metric: tuple(float(np.mean([line[metric] for line in by_steps[step]])) for step in steps) for metric in METRICS
    }
    return Curve(name, tuple(steps), values)


def equal_steps(first: Curve, second: Curve) -> list[int]:
    """List the steps at which one curve is measured and the other is measured, or lies between two measurements."""
    low, high = max(first.steps[0], second.steps[0]), min(first.steps[-1], second.steps[-1])
    return [step for step in sorted({*first.steps, *second.steps}) if low <= step <= high]


def fitted_section(lines: Sequence[Line], curves: Sequence[Curve], out: Path) -> list[str]:
    """Write what the page says about the models that were fitted for it."""
    data, points, tested, trained = (lines[0][key] for key in ("data", "points", "test_points", "train_points"))
    files = {
        f"{out.name}-gap-{data}.svg": {"train P@1": "--", "P@1": "-"},
        f"{out.name}-metrics-{data}.svg": {"P@1": "-", "PSP@5": "--", "Cov@5": ":"},
    }
    for file, metrics in files.items():
        draw(curves, metrics, out.with_name(file), f"{data}: {' and '.join(metrics)}")
    text = [
        "", f"## {data}", "", *(f"![{file}]({file})" for file in files), "",
        *paragraph(
            f"{points:,} training points. Every row is a complete training of its own with so many epochs of the last "
            "stage, at the end of which its learning rate falls. An epoch with Gandalf has more points, so compare "
            "rows by steps: epochs × ⌈points / batch size⌉, of the points that are trained on. *All steps* adds those "
            "of the stages before, which are the same for all rows of a recipe. Training P@1 is that of "
            f"{trained:,} points that were trained on (Astec also finds such a point, with its labels, among its "
            f"neighbours), the rest is of {tested:,} test points, from which nothing was chosen. Lines: "
            f"`{out.name}.jsonl`."
        ), "",
        "| recipe | epochs | seed | steps | all steps | train P@1 | P@1 | gap | P@5 | PSP@5 | Cov@5 | s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for line in lines:
        trained, tested, *others = (line[name] for name in METRICS)
        cells = " | ".join(f"{value:.2f}" for value in (trained, tested, trained - tested, *others))
        text.append(
            f"| {line['recipe']} | {line['epochs']} | {line['seed']} | {line['steps']:,} | {line['all_steps']:,} "
            f"| {cells} | {line['seconds']:.0f} |"
        )
    return [*text, *equal_table(curves, METRICS), "", *claims(*curves)]


def logged_section(curves: Sequence[Curve], out: Path) -> list[str]:
    """Write what the page says about the logs of two runs."""
    file = f"{out.name}-log.svg"
    draw(curves, {"P@1": "-"}, out.with_name(file), "P@1 of validation points")
    names = " and ".join(curve.name for curve in curves)
    text = ["", f"## From the logs of {names}", "", f"![{file}]({file})", "",
            "One training each; P@1 is that of held-out training points after every epoch."]  # fmt: skip
    return [*text, *equal_table(curves, ("loss", "P@1")), "", *claims(*curves)]


def draw(curves: Sequence[Curve], metrics: Mapping[str, str], path: Path, title: str) -> None:
    """Draw metrics of two curves against steps: a colour for each, a line style for each metric (name: style)."""
    with picture(path, title) as axes:
        for colour, curve in zip((QUIET, INK), curves, strict=True):
            for metric, style in metrics.items():
                axes.plot(
                    curve.steps, curve.values[metric], style, color=colour, linewidth=1.8, marker=".",
                    label=literal(f"{curve.name}, {metric}"),
                )  # fmt: skip
        axes.set_xlabel("steps")
        axes.set_ylabel("percent")
        axes.legend(frameon=False, fontsize=8)


def equal_table(curves: Sequence[Curve], metrics: Sequence[str]) -> list[str]:
    """Compare two curves at equal steps."""
    first, second = curves
    steps = equal_steps(first, second)
    if not steps:
        return []
    heads = " | ".join(f"{metric}: {first.name} | {second.name}" for metric in metrics)
    columns = [curve.at(metric, steps) for metric in metrics for curve in curves]
    rows = [" | ".join(f"{value:.2f}" for value in row) for row in zip(*columns, strict=True)]
    return ["", "At equal steps; a value that was not measured lies straight between two that were.", "",
            f"| steps | {heads} |", "|---:|" + "---:|" * len(columns),
            *(f"| {step:,} | {row} |" for step, row in zip(steps, rows, strict=True))]  # fmt: skip


def claims(first: Curve, second: Curve) -> list[str]:
    """Hold two curves, without and with Gandalf, against what the papers say about theirs."""
    out = []
    shared = equal_steps(first, second)
    plain, changed = ({name: values[-1] for name, values in curve.values.items()} for curve in (first, second))
    if "train P@1" in plain:
        gaps = [last["train P@1"] - last["P@1"] for last in (plain, changed)]
        out.append(
            "- There is a large gap between training and test P@1, with the augmentation too (paper 0, figure 4): "
            f"{verdict(min(gaps) > GAP)}, {gaps[0]:.1f} points without and {gaps[1]:.1f} with it at the end (large: "
            f"more than {GAP:g})."
        )
    out.append(
        f"- P@1 is better with Gandalf at the end (paper 0, figure 4): {verdict(changed['P@1'] > plain['P@1'])}, "
        f"{plain['P@1']:.1f} → {changed['P@1']:.1f}."
    )
    if not shared:
        return [*out, "- Nothing can be said about equal steps: the two curves have none in common."]
    for metric in [name for name in ("P@1", "PSP@5") if name in plain]:
        one, two = first.at(metric, shared), second.at(metric, shared)
        better = [b > a for a, b in zip(one, two, strict=True)]
        halves = [curve.at(metric, [curve.steps[-1] / 2, curve.steps[-1]]) for curve in (first, second)]
        gains = [end - half for half, end in halves]
        out += [
            f"- {metric} is better with Gandalf right from the beginning (paper 1, figure 3): {verdict(all(better))}, "
            f"at {sum(better)} of {len(shared)} equal numbers of steps, of which the first is {shared[0]:,}.",
            f"- The same budget gives more {metric} with Gandalf (paper 1, §4.2): {verdict(two[-1] > one[-1])}, "
            f"{one[-1]:.1f} → {two[-1]:.1f} after {shared[-1]:,} steps.",
            f"- Where {metric} saturates without it, it goes on rising with Gandalf (paper 1, §4.2): "
            f"{verdict(gains[1] > max(gains[0], 0))}, the second half of the steps adds {gains[0]:+.1f} without and "
            f"{gains[1]:+.1f} with it.",
        ]
    return out
