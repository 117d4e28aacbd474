"""The evidence pictures of the papers on LabelMix and Gandalf, remade on our data.

    python bench/paper_figures.py cosines                                   # seconds; what is near a point
    python bench/paper_figures.py cosines --model runs/astec --model runs/astec-labelmix
    python bench/paper_figures.py curves --fit                              # trains; a stopped run goes on
    python bench/paper_figures.py curves --logs runs/astec runs/astec-gandalf
    python bench/paper_figures.py side-by-side runs/astec runs/astec-gandalf

Each command writes a page and its pictures into results/, and has a --help of its own. Where a page says "confirmed
here" or "not confirmed here", the numbers on the page decided, by a rule that stands beside them. The data are not
those of the papers: what can be compared is which way a difference points, never a number.

`curves` has a loop of its own because suites measure test points only, and this picture is about training points too.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.augment.labelmix import LabelMix, tail_weights
from longtail.augment.mixed import drawn_labels
from longtail.augment.soft import need_label_texts
from longtail.bench.lines import Line, read_lines, unfinished
from longtail.cli.console import with_settings
from longtail.comparison import Difference, paired
from longtail.data.dataset import Dataset, Labels, Split
from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.errors import DataError, LongtailError
from longtail.files import whole_file
from longtail.labels.propensity import Propensity, bins, frequencies
from longtail.metrics import precision
from longtail.model import Model
from longtail.parts import Query
from longtail.pipeline import _held_out, evaluate, fit  # the points that a fit does not train on
from longtail.recipe import Recipe, find_recipe
from longtail.report import INK, QUIET, SECOND, literal, picture
from longtail.types import Texts, TopK, contains, without

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("LONGTAIL_DATA", ROOT.parent / "shared" / "data"))
NAME = "LF-MDNSeeAlsoTitles-6K"
COLOURS = (QUIET, INK, SECOND)
CAUTION = "These are not the data of the papers: compare which way a difference points, not the numbers."

Vectors: TypeAlias = NDArray[Any] | sp.csr_array  # (N, D)
Encode: TypeAlias = Callable[[list[str]], Vectors]
Cosines: TypeAlias = NDArray[np.float64]


# ---------------------------------------------------------------------------------------------------------------------
# Cosines: paper 0, figure 2

POINTS = 50_000  # points that the paper takes
NEAREST = 2_000  # label texts whose nearest point is looked for
BLOCK = 500  # of them at once
VICINITY = math.sqrt(0.5)  # the cosine of 45°
SAME = 0.999  # cosines from here on mean the same text
KINDS = {
    "random": "another point, at random",
    "codocument": "a point that shares a label",
    "head": "text of one of its head labels",
    "tail": "text of one of its tail labels",
    "labelmix": "itself, followed by a label of its own",
    "other": "itself, followed by a label of another point",
    "nearest": "a label's text and the point nearest to it",
}
ADDED = ("other", "nearest")  # kinds that the paper does not have


class Pairs(NamedTuple):
    """Pairs of texts of one kind."""

    first: list[str]
    second: list[str]


class Summary(NamedTuple):
    """What a table says about the cosines of one kind of pairs."""

    pairs: int
    mean: float
    low: float  # first quartile
    median: float
    high: float  # third quartile
    nearer: float  # probability that the cosine is above that of a random pair; equal ones count half


def draw_pairs(train: Split, *, points: int = POINTS, seed: int = 0) -> dict[str, Pairs]:
    """Draw a pair of each kind for every point that has one; "nearest" has label texts first and all points second."""
    random = np.random.default_rng(seed)
    texts, names = train.need_texts("cosines"), need_label_texts(train, "the comparison of texts with labels")
    whole = without(train.targets, train.excluded)
    rows = np.sort(random.permutation(len(train))[:points])
    targets, counts = whole[rows], frequencies(whole)
    bin_of = bins(counts)
    mixed = drawn_labels(targets, tail_weights(whole, LabelMix().exponent), random)
    swapped = random.permutation(mixed)  # the same labels as LabelMix draws, each at another point
    swapped = np.where(contains(targets, swapped[:, None]).ravel(), -1, swapped)
    others = (rows + random.integers(1, max(len(train), 2), len(rows))) % len(train)
    return {
        "random": _pairs(texts, rows, texts, np.where(others == rows, -1, others)),
        "codocument": _pairs(texts, rows, texts, codocuments(whole, rows, random)),
        "head": _pairs(texts, rows, names, _drawn(targets, bin_of == 0, random)),
        "tail": _pairs(texts, rows, names, _drawn(targets, bin_of == bin_of.max(initial=0), random)),
        "labelmix": _followed(_pairs(texts, rows, names, mixed)),
        "other": _followed(_pairs(texts, rows, names, swapped)),
        "nearest": Pairs(names.take(np.sort(random.permutation(len(names))[:NEAREST])).tolist(), texts.tolist()),
    }


def codocuments(targets: sp.csr_array, rows: NDArray[Any], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw for each point another one that shares a label with it: a label first, then a point; -1 where none does."""
    by_label = targets.T.tocsr()
    chosen = _drawn(targets[rows], np.diff(by_label.indptr) > 1, random)
    found = np.full(len(rows), -1, np.int64)
    for place in np.flatnonzero(chosen >= 0):
        members = by_label.indices[by_label.indptr[chosen[place]] : by_label.indptr[chosen[place] + 1]]
        found[place] = random.choice(members[members != rows[place]])
    return found


def _drawn(targets: sp.csr_array, allowed: NDArray[np.bool_], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw one of the allowed labels (L,) of each point; -1 where there is none."""
    labels = drawn_labels(targets, allowed.astype(np.float64), random)
    return np.where((labels >= 0) & allowed[labels], labels, -1)


def _pairs(texts: Texts, rows: NDArray[Any], others: Texts, partners: NDArray[Any]) -> Pairs:
    """Put texts beside the texts of their partners; those without one (-1) are left out."""
    some = partners >= 0
    return Pairs(texts.take(rows[some]).tolist(), others.take(partners[some]).tolist())


def _followed(pairs: Pairs) -> Pairs:
    """Let each text be followed by its partner's, as LabelMix does."""
    return Pairs(pairs.first, [f"{text} {name}" for text, name in zip(*pairs, strict=True)])


def dots(first: Vectors, second: Vectors) -> Cosines:
    """Return the product of each row with the other's, (N,)."""
    product = first.multiply(second) if sp.issparse(first) else np.asarray(first, np.float64) * second
    return np.asarray(product.sum(axis=1), np.float64).ravel()


def cosines(first: Vectors, second: Vectors) -> Cosines:
    """Return the cosine of each pair of rows; pairs in which one is zero have none and are left out.

    >>> cosines(np.array([[3, 4], [0, 0]]), np.array([[4, 3], [1, 0]])).round(2).tolist()
    [0.96]
    """
    squares = dots(first, first) * dots(second, second)
    some = squares > 0
    found: Cosines = np.clip(dots(first, second)[some] / np.sqrt(squares[some]), -1, 1)
    return found


def nearest(first: Vectors, second: Vectors) -> Cosines:
    """Return the largest cosine of each row of the first with any row of the second; rows of zeros are left out."""
    lengths = np.sqrt(np.maximum(dots(second, second), np.finfo(float).tiny))
    scaled = sp.diags_array(1 / lengths, format="csr") @ second
    own = np.sqrt(dots(first, first))
    found = np.zeros(len(own))
    for start in range(0, len(own), BLOCK):
        products: Any = first[start : start + BLOCK] @ scaled.T
        found[start : start + BLOCK] = sp.coo_array(products.max(axis=1)).toarray().ravel()
    some = own > 0
    out: Cosines = np.clip(found[some] / own[some], -1, 1)
    return out


def measured(pairs: Mapping[str, Pairs], encode: Encode) -> dict[str, Cosines]:
    """Compute the cosines of all kinds of pairs in one space."""
    out = {}
    for kind, (first, second) in pairs.items():
        compare = nearest if kind == "nearest" else cosines
        out[kind] = compare(encode(first), encode(second)) if first and second else np.zeros(0)
    return out


def summary(values: Cosines, random: Cosines) -> Summary:
    """Describe the cosines of one kind beside those of random pairs."""
    if len(values) == 0:
        return Summary(0, *[math.nan] * 5)
    ranked = np.sort(random)
    below = [np.searchsorted(ranked, values, side).mean() for side in ("left", "right")]
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Summary(
        len(values), float(values.mean()), low, median, high, float(np.mean(below)) / max(1, len(ranked))
    )  # fmt: skip


def tfidf(train: Split) -> Encode:
    """Return what turns texts into TF-IDF bags."""
    words = Words.fit(train.need_texts("TF-IDF"), train.labels.texts or [])
    words.forget()
    return words.bag


def encoder_of(model: Model, folder: Path) -> Encode:
    """Return what turns texts into the vectors of a trained encoder."""
    vectors: Any = model.vectors
    if vectors is None:
        raise DataError(
            "this model has no encoder", file=folder, remedy="give one of a recipe that trains, such as astec"
        )

    def encode(texts: list[str]) -> Vectors:
        found: NDArray[np.float32] = vectors.tower.encode(Query(texts))
        return found

    return encode


def cosine_claims(found: Mapping[str, Summary]) -> list[str]:
    """Hold the numbers of one space against what paper 0 says about its figure 2."""
    near = {kind: entry.median > VICINITY for kind, entry in found.items()}
    mixed, other, label = (found[kind].median for kind in ("labelmix", "other", "nearest"))
    out = [
        f"A text followed by one of its labels stays in the vicinity of the text (§4, postulate 1): "
        f"{verdict(near['labelmix'])}, median cosine {mixed:.2f}."
    ]
    for kind in ("head", "tail"):
        if found[kind].pairs:
            out.append(
                f"The text of a {kind} label is not in the vicinity of its points (§7): {verdict(not near[kind])}, "
                f"median cosine {found[kind].median:.2f}; nearer than a random point in {found[kind].nearer:.0%}."
            )
    out += [
        f"So label texts are points far from all training points (§7): {verdict(not near['nearest'])}, the median "
        f"cosine of a label's text with the nearest training point is {label:.2f}.",
        f"Ours: it takes a label of the point's own to stay near: {verdict(near['labelmix'] and not near['other'])}, "
        f"with a label of another point the median is {other:.2f} instead of {mixed:.2f}.",
    ]
    return out


def trained_claim(medians: Mapping[str, float], mixing: Sequence[str]) -> list[str]:
    """Compare encoders that were trained with LabelMix with others: medians of the kind "labelmix" by model."""
    with_it = [medians[name] for name in mixing if name in medians]
    without_it = [median for name, median in medians.items() if name not in mixing]
    if not with_it or not without_it:
        return []
    return [
        "Training with LabelMix brings a text and the same text followed by a label together (caption of figure 2): "
        f"{verdict(min(with_it) > max(without_it))}, median cosine {max(without_it):.3f} without and "
        f"{min(with_it):.3f} with it."
    ]


def draw_densities(spaces: Mapping[str, Mapping[str, Cosines]], path: Path, title: str) -> None:
    """Draw a histogram for each kind of pairs, one below the other, with a colour for each space."""
    lowest = min(
        (float(values.min()) for kinds in spaces.values() for values in kinds.values() if len(values)), default=0
    )
    edges = np.linspace(min(0.0, math.floor(10 * lowest) / 10), 1, 51)
    kinds = list(KINDS)
    with picture(path, title, size=(8.4, 1.2 + 0.72 * len(kinds))) as axes:
        for row, kind in enumerate(reversed(kinds)):
            shares = {
                name: np.histogram(found[kind], edges)[0] / max(1, len(found[kind])) for name, found in spaces.items()
            }
            top = max(float(share.max()) for share in shares.values()) or 1.0
            for colour, (name, share) in zip((INK, SECOND, QUIET), shares.items(), strict=False):
                heights = row + 0.86 * np.sqrt(share / top)  # so that a spike leaves the rest to be seen
                axes.stairs(heights, edges, baseline=row, color=colour, alpha=0.25, fill=True)
                axes.stairs(heights, edges, baseline=row, color=colour, linewidth=1.2,
                            label=literal(name) if row == 0 else None)  # fmt: skip
                if len(spaces[name][kind]):
                    middle = float(np.median(spaces[name][kind]))
                    axes.plot([middle, middle], [row - 0.08, row], color=colour, linewidth=2.5)
        axes.axvline(VICINITY, color=QUIET, linewidth=1, linestyle="--")
        axes.set_yticks(np.arange(len(kinds)), [KINDS[kind] for kind in reversed(kinds)], va="bottom", fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_ylim(-0.15, len(kinds))
        axes.set_xlabel("cosine with a training point; under each histogram its median; dashed: 45°")
        axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, -0.2), ncols=3)


def write_cosines(args: argparse.Namespace, command: str) -> None:
    """Compute the cosines of every data set and write the page."""
    models = {folder.name: Model.load(folder) for folder in args.model}
    mixing = [name for name, model in models.items() if any(part.part == "labelmix" for part in model.recipe.augment)]
    sections, unused = list[str](), set(models)
    for path in args.data:
        train = load(path).train
        encoders = {"TF-IDF": tfidf(train)}
        for name, model in models.items():
            if model.dataset == train.dataset:
                encoders[name] = encoder_of(model, Path(name))
                unused.discard(name)
        pairs = draw_pairs(train, points=args.points, seed=args.seed)
        spaces = {name: measured(pairs, encode) for name, encode in encoders.items()}
        file = f"{args.out.name}-{train.dataset}.svg"
        draw_densities(spaces, args.out.with_name(file), f"{train.dataset}: what is near a training point")
        sections += cosine_section(train, spaces, mixing, file)
    if unused:
        raise DataError(f"trained on none of these data: {', '.join(sorted(unused))}", remedy="give its data set")
    intro = [
        "# What is near a training point", "", f"    {command}", "",
        *paragraph(
            "Figure 2 of paper 0 (LabelMix, Gandalf and InceptionXML-LF): cosines of a training point with another "
            "point, with one that shares a label, with the text of one of its labels, and with itself after LabelMix. "
            f"{CAUTION} Head and tail labels are the first and the last of three bins of equal volume. Labels for "
            f"LabelMix are drawn as it draws them. *In the vicinity*: a median cosine above {VICINITY:.2f} (45°), "
            "which is what a text has with itself followed by another of the same weight that shares no word with it. "
            "*Nearer*: how often the cosine is above that of a random pair, where equal ones count half. Kinds marked "
            "* are ours."
        ),
    ]  # fmt: skip
    write_text(args.out.with_suffix(".md"), [*intro, *sections])


def cosine_section(
    train: Split, spaces: Mapping[str, Mapping[str, Cosines]], mixing: Sequence[str], file: str
) -> list[str]:
    """Write what the page says about one data set."""
    counts = frequencies(train.targets)
    bin_of = bins(counts)
    head, tail = (counts[bin_of == number] for number in (0, bin_of.max(initial=0)))
    out = [
        "", f"## {train.dataset}", "", f"![cosines]({file})", "",
        "Each row is scaled to its highest bar; heights are square roots of shares. Marks under a row are medians.", "",
        f"{len(head):,} head labels with {head.min():,} points or more, {len(tail):,} tail labels with {tail.max():,} "
        "or fewer.", "",
        "| vectors | pair | pairs | mean | 25 % | median | 75 % | nearer |", "|---|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    found = {name: {kind: summary(kinds[kind], kinds["random"]) for kind in kinds} for name, kinds in spaces.items()}
    for name, entries in found.items():
        for kind, entry in entries.items():
            cells = " | ".join("–" if math.isnan(value) else f"{value:.3f}" for value in entry[1:5])
            share = "–" if math.isnan(entry.nearer) or kind in ("random", "nearest") else f"{entry.nearer:.0%}"
            title = KINDS[kind] + " *" * (kind in ADDED)
            out.append(f"| {name} | {title} | {entry.pairs:,} | {cells} | {share} |")
    for name, entries in found.items():
        same = float((spaces[name]["nearest"] >= SAME).mean()) if entries["nearest"].pairs else 0.0
        out += ["", f"With {name}:", "", *(f"- {claim}" for claim in cosine_claims(entries))]
        out.append(f"- Ours: {same:.0%} of the label texts are, to these vectors, also the text of a training point.")
    medians = {name: entries["labelmix"].median for name, entries in found.items() if name != "TF-IDF"}
    if claims := trained_claim(medians, mixing):
        out += ["", "Between encoders:", "", *(f"- {claim}" for claim in claims)]
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Curves: paper 0, figure 4, and paper 1, figure 3

EPOCHS = (1, 2, 4, 8, 15)
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
        """Read a metric at other steps, straight between the measured ones.

        >>> Curve("a", (10, 20), {"P@1": (1.0, 3.0)}).at("P@1", [15])
        [2.0]
        """
        return [float(value) for value in np.interp(steps, self.steps, self.values[metric])]


def smaller(data: Dataset, points: int, seed: int = 0) -> Dataset:
    """Keep some training points, only their labels, and the test points that have one of these."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(data.train))[:points])
    kept = np.unique(data.train.targets[rows].indices)
    old = data.labels
    labels = Labels(
        len(kept), None if old.texts is None else old.texts.take(kept), None if old.ids is None else old.ids.take(kept)
    )

    def cut(split: Split) -> Split:
        return replace(split, labels=labels, targets=split.targets[:, kept], excluded=split.excluded[:, kept])

    test = cut(data.test)
    known = np.flatnonzero(np.diff(test.targets.indptr))
    return replace(data, labels=labels, splits={"train": cut(data.train.take(rows)), "test": test.take(known)})


def grid(names: Sequence[str], epochs: Sequence[int], seeds: Sequence[int], settings: Sequence[str]) -> list[Recipe]:
    """List what is fitted: each recipe with each number of epochs, all of them complete trainings."""
    out = []
    for name in names:
        for seed in seeds:
            for count in epochs:
                recipe = find_recipe(name).override("training.min_steps", 1).override("seed", seed)
                out.append(with_settings(recipe, settings).override("training.epochs", count))
    return out


def identity(recipe: Recipe, train: Split) -> Line:
    """Return what makes a line one of this recipe on these points, and tells it from all others."""
    settings = hashlib.sha256(json.dumps(recipe.dump(), sort_keys=True).encode()).hexdigest()[:16]
    return {
        "data": train.dataset, "points": len(train), "fingerprint": train.fingerprint, "recipe": recipe.name,
        "epochs": int(recipe.dump()["stages"][-1]["epochs"]), "seed": recipe.seed, "settings": settings,
    }  # fmt: skip


def fit_missing(recipes: Iterable[Recipe], data: Dataset, out: Path) -> None:
    """Fit what has no line yet and append its line; a fit that was stopped continues from its checkpoint."""
    out.parent.mkdir(parents=True, exist_ok=True)
    done = read_lines(out, repair=True)
    for recipe in recipes:
        own = identity(recipe, data.train)
        if any(own.items() <= line.items() for line in done):
            continue
        print(f"fitting {own['recipe']}, epochs={own['epochs']}, seed={own['seed']}", file=sys.stderr, flush=True)
        scratch = unfinished(out) / hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]
        line = own | fitted(recipe, data, scratch)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        shutil.rmtree(scratch, ignore_errors=True)
    folder = unfinished(out)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def fitted(recipe: Recipe, data: Dataset, scratch: Path) -> Line:
    """Fit a recipe and measure it on test points and on points that it was trained on."""
    began = time.perf_counter()
    model = fit(recipe, data.train, scratch=scratch)
    seconds = time.perf_counter() - began
    kept, _ = _held_out(recipe, data.train)
    seen = data.train if kept is None else kept
    some = seen.take(np.sort(np.random.default_rng(0).permutation(len(seen))[:TRAIN_POINTS]))
    values = {"train P@1": 100 * precision(model.predict_split(some).labels, some.targets, (1,))[1]}
    values |= evaluate(model, data.test).values
    steps = {line["stage"]: int(line["step"]) for line in read_log(scratch)}  # the last line of each stage stays
    return {
        **{name: round(values[name], 4) for name in METRICS},
        "steps": steps["training"], "all_steps": sum(steps.values()), "train_points": len(some),
        "test_points": len(data.test),
        "seconds": round(seconds, 1), "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def read_log(folder: Path, stage: str | None = None) -> list[dict[str, str]]:
    """Read log.csv of a run, or what it says about one stage."""
    file = folder / "log.csv"
    if not file.exists():
        raise DataError("there is no log.csv", file=folder, remedy="give the folder of a recipe that trains")
    with file.open(newline="", encoding="utf-8") as lines:
        return [line for line in csv.DictReader(lines) if stage is None or line["stage"] == stage]


def logged(folder: Path) -> Curve:
    """Read the validation P@1 of a run by steps."""
    lines = [line for line in read_log(folder, "training") if line.get("P@1")]
    if not lines:
        raise DataError(
            "its log.csv has no P@1", file=folder, remedy="train again with --set training.curves=true"
        )  # fmt: skip
    values = {name: tuple(float(line[name]) for line in lines) for name in ("loss", "P@1")}
    return Curve(folder.name, tuple(int(line["step"]) for line in lines), values)


def curve_of(lines: Sequence[Line], name: str) -> Curve:
    """Average the lines of a recipe over seeds, for each number of epochs."""
    own = [line for line in lines if line["recipe"] == name]
    by_steps: dict[int, list[Line]] = {}
    for line in own:
        by_steps.setdefault(int(line["steps"]), []).append(line)
    steps = tuple(sorted(by_steps))
    values = {
        metric: tuple(float(np.mean([line[metric] for line in by_steps[step]])) for step in steps) for metric in METRICS
    }
    return Curve(name, steps, values)


def equal_steps(first: Curve, second: Curve) -> list[int]:
    """List the steps at which one curve is measured and the other is measured, or lies between two measurements.

    >>> equal_steps(Curve("a", (10, 20, 40), {}), Curve("b", (15, 30), {}))
    [15, 20, 30]
    """
    first_of_both, last_of_both = max(first.steps[0], second.steps[0]), min(first.steps[-1], second.steps[-1])
    return [step for step in sorted({*first.steps, *second.steps}) if first_of_both <= step <= last_of_both]


def curve_claims(first: Curve, second: Curve) -> list[str]:
    """Hold two curves, without and with Gandalf, against what the papers say about theirs."""
    out = []
    shared = equal_steps(first, second)
    plain, changed = ({name: values[-1] for name, values in curve.values.items()} for curve in (first, second))
    if "train P@1" in plain:
        gaps = [last["train P@1"] - last["P@1"] for last in (plain, changed)]
        out.append(
            "There is a large gap between training and test P@1, with the augmentation too (paper 0, figure 4): "
            f"{verdict(min(gaps) > GAP)}, {gaps[0]:.1f} points without and {gaps[1]:.1f} with it at the end (large: "
            f"more than {GAP:g})."
        )
    out.append(
        f"P@1 is better with Gandalf at the end (paper 0, figure 4): {verdict(changed['P@1'] > plain['P@1'])}, "
        f"{plain['P@1']:.1f} → {changed['P@1']:.1f}."
    )
    if not shared:
        return [*out, "Nothing can be said about equal steps: the two curves have none in common."]
    for metric in [name for name in ("P@1", "PSP@5") if name in plain]:
        one, two = first.at(metric, shared), second.at(metric, shared)
        better = [b > a for a, b in zip(one, two, strict=True)]
        out.append(
            f"{metric} is better with Gandalf right from the beginning (paper 1, figure 3): {verdict(all(better))}, at "
            f"{sum(better)} of {len(shared)} equal numbers of steps, of which the first is {shared[0]:,}."
        )
        out.append(
            f"The same budget gives more {metric} with Gandalf (paper 1, §4.2): {verdict(two[-1] > one[-1])}, "
            f"{one[-1]:.1f} → {two[-1]:.1f} after {shared[-1]:,} steps."
        )
        halves = [curve.at(metric, [curve.steps[-1] / 2, curve.steps[-1]]) for curve in (first, second)]
        gains = [end - half for half, end in halves]
        out.append(
            f"Where {metric} saturates without it, it goes on rising with Gandalf (paper 1, §4.2): "
            f"{verdict(gains[1] > max(gains[0], 0))}, the second half of the steps adds {gains[0]:+.1f} without and "
            f"{gains[1]:+.1f} with it."
        )
    return out


def draw_against_steps(curves: Sequence[Curve], metrics: Mapping[str, str], path: Path, title: str) -> None:
    """Draw metrics of curves against steps: a colour for each curve, a line style for each metric (name: style)."""
    with picture(path, title) as axes:
        for colour, curve in zip(COLOURS, curves, strict=False):
            for metric, style in metrics.items():
                axes.plot(
                    curve.steps, curve.values[metric], style, color=colour, linewidth=1.8, marker=".",
                    label=literal(f"{curve.name}, {metric}"),
                )  # fmt: skip
        axes.set_xlabel("steps")
        axes.set_ylabel("percent")
        axes.legend(frameon=False, fontsize=8)


def write_curves(args: argparse.Namespace, command: str) -> None:
    """Fit what is missing, if that is asked for, and write the page from the lines and logs that there are."""
    data = load(args.data)
    data = data if args.points is None else smaller(data, args.points)
    names = (args.recipe, f"{args.recipe}+gandalf")
    recipes = grid(names, sorted(set(args.epochs)), args.seeds, args.set)
    lines_file = args.out.with_suffix(".jsonl")
    if args.fit:
        fit_missing(recipes, data, lines_file)
    wanted = [identity(recipe, data.train) for recipe in recipes]
    known = read_lines(lines_file)
    lines = [line for own in wanted for line in known if own.items() <= line.items()]
    out = [
        "# Learning curves with and without Gandalf", "", f"    {command}", "",
        *paragraph(
            "Figure 4 of paper 0 (training and test P@1) and figure 3 of paper 1 (metrics against steps). " + CAUTION
        ),
    ]  # fmt: skip
    if len({line["recipe"] for line in lines}) == len(names):
        out += fitted_section(lines, [curve_of(lines, name) for name in names], args.out)
    if args.logs:
        out += logged_section([logged(folder) for folder in args.logs], args.out)
    if missing := len(wanted) - len(lines):
        out += ["", f"Not fitted yet: {missing} of {len(wanted)}; the same command with --fit does it."]
    write_text(args.out.with_suffix(".md"), out)


def fitted_section(lines: Sequence[Line], curves: Sequence[Curve], out: Path) -> list[str]:
    """Write what the page says about the models that were fitted for it."""
    data, points = lines[0]["data"], lines[0]["points"]
    files = {
        f"{out.name}-gap-{data}.svg": {"train P@1": "--", "P@1": "-"},
        f"{out.name}-metrics-{data}.svg": {"P@1": "-", "PSP@5": "--", "Cov@5": ":"},
    }
    for file, metrics in files.items():
        draw_against_steps(curves, metrics, out.with_name(file), f"{data}: {' and '.join(metrics)}")
    tested, trained = (lines[0][key] for key in ("test_points", "train_points"))
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
        values = [line["train P@1"], line["P@1"], line["train P@1"] - line["P@1"], line["P@5"], line["PSP@5"]]
        cells = " | ".join(f"{value:.2f}" for value in [*values, line["Cov@5"]])
        text.append(
            f"| {line['recipe']} | {line['epochs']} | {line['seed']} | {line['steps']:,} | {line['all_steps']:,} "
            f"| {cells} | {line['seconds']:.0f} |"
        )
    return [*text, *equal_table(curves, METRICS), "", *(f"- {claim}" for claim in curve_claims(*curves))]


def logged_section(curves: Sequence[Curve], out: Path) -> list[str]:
    """Write what the page says about the logs of two runs."""
    file = f"{out.name}-log.svg"
    draw_against_steps(curves, {"P@1": "-"}, out.with_name(file), "P@1 of validation points")
    names = " and ".join(curve.name for curve in curves)
    text = ["", f"## From the logs of {names}", "", f"![{file}]({file})", "",
            "One training each; P@1 is that of held-out training points after every epoch."]  # fmt: skip
    return [*text, *equal_table(curves, ("loss", "P@1")), "", *(f"- {claim}" for claim in curve_claims(*curves))]


def equal_table(curves: Sequence[Curve], metrics: Sequence[str]) -> list[str]:
    """Compare two curves at equal steps."""
    first, second = curves
    steps = equal_steps(first, second)
    if not steps:
        return []
    heads = " | ".join(f"{metric}: {first.name} | {second.name}" for metric in metrics)
    out = ["", "At equal steps; a value that was not measured lies straight between two that were.", "",
           f"| steps | {heads} |", "|---:|" + "---:|" * (2 * len(metrics))]  # fmt: skip
    columns = [curve.at(metric, steps) for metric in metrics for curve in (first, second)]
    rows = [" | ".join(f"{column[place]:.2f}" for column in columns) for place in range(len(steps))]
    return [*out, *(f"| {step:,} | {row} |" for step, row in zip(steps, rows, strict=True))]


# ---------------------------------------------------------------------------------------------------------------------
# Side by side: the tables of predictions in both papers

K = 5  # labels that are shown
SPECIAL = re.compile(r"([\\`*_\[\]|<>~#])")  # means something in Markdown


def chosen(first: NDArray[Any], second: NDArray[Any], most: int) -> tuple[list[int], list[int]]:
    """Take the first points for which the second model has more right labels, and those for which it has fewer.

    >>> chosen(np.array([1, 2, 0, 1, 3]), np.array([2, 1, 0, 3, 4]), 4)
    ([0, 3], [1])
    """
    better, worse = np.flatnonzero(second > first), np.flatnonzero(second < first)
    return better[: most // 2].tolist(), worse[: most // 2].tolist()


def markdown(text: str) -> str:
    r"""Escape what means something in Markdown.

    >>> markdown("a|b *c*")
    'a\\|b \\*c\\*'
    """
    return SPECIAL.sub(r"\\\1", text)


def write_side_by_side(args: argparse.Namespace, command: str) -> None:
    """Predict the test points with both models and write the page."""
    models = [Model.load(folder) for folder in (args.first, args.second)]
    names = [model.recipe.name for model in models]
    if names[0] == names[1]:
        names = [args.first.name, args.second.name]
    test = load(args.data).test
    tops = [model.predict_split(test, K) for model in models]
    inverse = Propensity.of(models[0].dataset).inverse(models[0].frequencies, models[0].points)
    differences = paired(tops[0], tops[1], test.targets, inverse)
    page = side_by_side(test, tops, names, models[0].frequencies, differences, most=args.most)
    page[2:2] = [f"    {command}", ""]
    write_text(args.out.with_suffix(".md"), page)


def side_by_side(
    test: Split, tops: Sequence[TopK], names: Sequence[str], counts: NDArray[Any], differences: Sequence[Difference],
    *, most: int,
) -> list[str]:  # fmt: skip
    """Write the page about two sets of predictions; counts (L,) are the training points of each label."""
    texts, labels = test.need_texts("predictions"), need_label_texts(test, "a table of labels")
    right = [contains(test.targets, top.labels[:, :K]) for top in tops]
    hits = [found.sum(axis=1) for found in right]
    better, worse = chosen(hits[0], hits[1], most)
    relevant = np.diff(test.targets.indptr)
    reachable = np.minimum(relevant, K)
    none_all = [int(((one == 0) & (two == reachable) & (relevant > 0)).sum()) for one, two in (hits, hits[::-1])]
    more, fewer = int((hits[1] > hits[0]).sum()), int((hits[1] < hits[0]).sum())
    out = [
        f"# Predictions of {names[0]} and {names[1]} side by side", "",
        *paragraph(
            "As in table 5 of paper 1 and table 4 of paper 0. Right labels are bold, with the training points of each "
            f"label in brackets. {CAUTION}"
        ), "",
        *paragraph(
            f"**The choice**: among the {len(test):,} test points of {test.dataset}, in the order of the file, the "
            f"first {most // 2} for which {names[1]} has more right labels among five than {names[0]}, and the first "
            f"{most // 2} for which it has fewer. So half of them are losses, whatever the true share is: {names[1]} "
            f"has more right labels for {more:,} points, fewer for {fewer:,}, as many for {len(test) - more - fewer:,}."
        ), "",
    ]  # fmt: skip
    for entry in differences:
        out.append(
            f"- {entry.metric}: {entry.first:.2f} → {entry.second:.2f} ({entry.difference:+.2f}, 95 % interval "
            f"{entry.low:+.2f} to {entry.high:+.2f}, paired bootstrap over points)."
        )
    out.append(
        "- Points without any right label become points with all that five places can hold (paper 1's example is "
        f"*Oat*): {verdict(none_all[0] > none_all[1])}, {none_all[0]:,} with {names[1]} instead of {names[0]}, "
        f"{none_all[1]:,} the other way round."
    )
    for title, rows in ((f"{names[1]} has more", better), (f"{names[1]} has fewer", worse)):
        out += ["", f"## {title}"]
        for row in rows:
            own = test.targets.indices[test.targets.indptr[row] : test.targets.indptr[row + 1]]
            wanted = ", ".join(f"{markdown(labels[int(label)])} ({counts[label]:,})" for label in own)
            out += ["", f"### {markdown(texts[row])}", "", f"Its labels: {wanted}.", ""]
            out += [
                "| | "
                + " | ".join(f"{name}: {found[row]} of {len(own)}" for name, found in zip(names, hits, strict=True))
            ]
            out[-1] += " |"
            out.append("|---:|---|---|")
            for place in range(tops[0].labels.shape[1]):
                cells = []
                for top, found in zip(tops, right, strict=True):
                    label = int(top.labels[row, place])
                    name = "–" if label < 0 else f"{markdown(labels[label])}"
                    name = f"**{name}**" if found[row, place] else name
                    cells.append(name if label < 0 else f"{name} ({counts[label]:,})")
                out.append(f"| {place + 1} | {' | '.join(cells)} |")
    return out


# ---------------------------------------------------------------------------------------------------------------------


def verdict(held: bool) -> str:
    """Say whether a statement held."""
    return "**confirmed here**" if held else "**not confirmed here**"


def paragraph(text: str) -> list[str]:
    """Break a text into lines."""
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def write_text(path: Path, lines: Sequence[str]) -> None:
    """Write a page, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)


def command_of(arguments: Sequence[str]) -> str:
    """Return the command that a page names: paths are written as they are seen from the repository."""
    seen = [os.path.relpath(word, ROOT) if Path(word).is_absolute() else word for word in arguments]
    return shlex.join(["python", "bench/paper_figures.py", *seen])


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    plain = argparse.RawDescriptionHelpFormatter
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    results = ROOT / "results"

    one = commands.add_parser(
        "cosines", help="what is near a training point (paper 0, figure 2)", formatter_class=plain,
        description="Cosines of training points with other points and with label texts, in TF-IDF and in the space of\n"
        "trained encoders. TF-IDF alone takes seconds. For an encoder, train one first:\n\n"
        "    longtail train astec --data ../shared/data/LF-MDNSeeAlsoTitles-6K --out runs/astec\n"
        "    longtail train astec+labelmix --data ../shared/data/LF-MDNSeeAlsoTitles-6K --out runs/astec-labelmix\n"
        "    python bench/paper_figures.py cosines --model runs/astec --model runs/astec-labelmix\n\n"
        "A model trained with LabelMix is the paper's \"Trained LabelMix Documents\".",
    )  # fmt: skip
    one.add_argument("data", nargs="*", type=Path, default=[DATA / NAME], help=f"data sets; by default {NAME}")
    one.add_argument("--model", action="append", type=Path, default=[], help="a model folder; two at most")
    one.add_argument("--points", type=int, default=POINTS, help="training points at most (%(default)s)")
    one.add_argument("--seed", type=int, default=0, help="of the pairs (%(default)s)")
    one.add_argument("--out", type=Path, default=results / "cosines", help="the results without ending")
    one.set_defaults(run=write_cosines)

    two = commands.add_parser(
        "curves", help="metrics against steps, with and without Gandalf (paper 0, figure 4)", formatter_class=plain,
        description="Training and test P@1, and other metrics, against steps. --fit trains the recipe with and\n"
        "without Gandalf once for each number of epochs, about a minute each on LF-MDNSeeAlsoTitles-6K, and appends a\n"
        "line to OUT.jsonl after each; what has a line is not fitted again, and a stopped fit continues. Without\n"
        "--fit the page is written from the lines that there are. --logs adds the validation curves of two runs:\n\n"
        "    longtail train astec --data DIR --out runs/astec --set training.curves=true\n"
        "    longtail train astec+gandalf --data DIR --out runs/astec-gandalf --set training.curves=true\n\n"
        "A quick look, elsewhere than in results/:\n\n"
        "    python bench/paper_figures.py curves --fit --points 300 --epochs 1 2 --out /tmp/curves \\\n"
        "        --set surrogate.training.epochs=1 --set surrogate.training.min_steps=1",
    )  # fmt: skip
    two.add_argument("--data", type=Path, default=DATA / NAME, help=f"a data set; by default {NAME}")
    two.add_argument("--fit", action="store_true", help="train what has no line yet")
    two.add_argument("--logs", nargs=2, type=Path, metavar="RUN", help="model folders without and with Gandalf")
    two.add_argument("--recipe", default="astec", help="the recipe without Gandalf (%(default)s)")
    two.add_argument("--epochs", nargs="+", type=int, default=list(EPOCHS), help="of the last stage (1 2 4 8 15)")
    two.add_argument("--seeds", nargs="+", type=int, default=[0], help="curves are means over them (0)")
    two.add_argument("--points", type=int, help="only so many training points, and only their labels")
    two.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting of both recipes"
    )
    two.add_argument("--out", type=Path, default=results / "curves", help="the results without ending")
    two.set_defaults(run=write_curves)

    three = commands.add_parser(
        "side-by-side", help="predictions of two models (paper 1, table 5)", formatter_class=plain,
        description="The five best labels of two models for a few test points that a rule chooses: the first ones for\n"
        "which the second model is better, and as many for which it is worse. Train the models first:\n\n"
        "    longtail train astec --data ../shared/data/LF-MDNSeeAlsoTitles-6K --out runs/astec\n"
        "    longtail train astec+gandalf --data ../shared/data/LF-MDNSeeAlsoTitles-6K --out runs/astec-gandalf\n"
        "    python bench/paper_figures.py side-by-side runs/astec runs/astec-gandalf",
    )  # fmt: skip
    three.add_argument("first", type=Path, help="the model folder without Gandalf")
    three.add_argument("second", type=Path, help="the model folder with it")
    three.add_argument("--data", type=Path, default=DATA / NAME, help=f"a data set; by default {NAME}")
    three.add_argument("--most", type=int, default=8, help="points that are shown (%(default)s)")
    three.add_argument("--out", type=Path, default=results / "side-by-side", help="the results without ending")
    three.set_defaults(run=write_side_by_side)
    return whole


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    whole = parser()
    args = whole.parse_args(words)
    if len(getattr(args, "model", [])) >= len(COLOURS):
        whole.error("two models at most: there are three colours, and TF-IDF has one")
    try:
        args.run(args, command_of(words))
    except LongtailError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
