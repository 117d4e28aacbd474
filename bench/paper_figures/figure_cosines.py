"""What is near a training point (paper 0, figure 2).

Cosines of training points with other points and with label texts: in TF-IDF, which takes seconds, and in the space of
trained encoders. A model trained with LabelMix is the paper's "Trained LabelMix Documents".
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from figure_common import CAUTION, paragraph, verdict, write_page
from numpy.typing import NDArray

from longtail.augment.labelmix import LabelMix, tail_weights
from longtail.augment.mixed import drawn_labels
from longtail.augment.soft import need_label_texts
from longtail.bench.changes import find_data
from longtail.data.dataset import Split
from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.errors import DataError
from longtail.labels.propensity import bins, frequencies
from longtail.model import Model
from longtail.parts import Query
from longtail.report import INK, QUIET, SECOND, literal, picture
from longtail.types import Texts, contains, without

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
    "other": "itself, followed by a label of another point *",
    "nearest": "a label's text and the point nearest to it *",
}  # the paper does not have those with a *

Pairs: TypeAlias = tuple[list[str], list[str]]  # texts, and the partner of each
Vectors: TypeAlias = NDArray[Any] | sp.csr_array  # (N, D)
Encode: TypeAlias = Callable[[list[str]], Vectors]
Cosines: TypeAlias = NDArray[np.float64]


class Summary(NamedTuple):
    """What a table says about the cosines of one kind of pairs."""

    pairs: int
    mean: float
    low: float  # first quartile
    median: float
    high: float  # third quartile
    nearer: float  # probability that the cosine is above that of a random pair; equal ones count half


def write_cosines(args: argparse.Namespace, command: str) -> None:
    """Compute the cosines of every data set and write the page."""
    models = {folder.name: Model.load(folder) for folder in args.model}
    mixing = [name for name, model in models.items() if any(part.part == "labelmix" for part in model.recipe.augment)]
    sections, unused = list[str](), set(models)
    for path in args.data:
        train = load(find_data(path)).train
        own = {name: model for name, model in models.items() if model.dataset == train.dataset}
        unused -= own.keys()
        encoders: dict[str, Encode] = {"TF-IDF": Words.fit(train.need_texts("TF-IDF"), train.labels.texts or []).bag}
        encoders |= {name: encoder_of(model, name) for name, model in own.items()}
        pairs = draw_pairs(train, points=args.points, seed=args.seed)
        spaces = {name: measured(pairs, encode) for name, encode in encoders.items()}
        file = f"{args.out.name}-{train.dataset}.svg"
        draw_densities(spaces, args.out.with_name(file), f"{train.dataset}: what is near a training point")
        sections += section(train, spaces, mixing, file)
    if unused:
        raise DataError(f"trained on none of these data: {', '.join(sorted(unused))}", remedy="give its data set")
    intro = paragraph(
        "Figure 2 of paper 0 (LabelMix, Gandalf and InceptionXML-LF): cosines of a training point with another point, "
        "with one that shares a label, with the text of one of its labels, and with itself after LabelMix. "
        f"{CAUTION} Head and tail labels are the first and the last of three bins of equal volume. Labels for LabelMix "
        f"are drawn as it draws them. *In the vicinity*: a median cosine above {VICINITY:.2f} (45°), which is what a "
        "text has with itself followed by another of the same weight that shares no word with it. *Nearer*: how often "
        "the cosine is above that of a random pair, where equal ones count half. Kinds marked * are ours."
    )
    write_page(args.out, command, ["# What is near a training point", "", *intro, *sections])


def draw_pairs(train: Split, *, points: int = POINTS, seed: int = 0) -> dict[str, Pairs]:
    """Draw a pair of each kind for every point that has one; "nearest" has label texts first and all points second."""
    random = np.random.default_rng(seed)
    texts, names = train.need_texts("cosines"), need_label_texts(train, "the comparison of texts with labels")
    whole = without(train.targets, train.excluded)
    rows = np.sort(random.permutation(len(train))[:points])
    targets, bin_of = whole[rows], bins(frequencies(whole))
    mixed = drawn_labels(targets, tail_weights(whole, LabelMix().exponent), random)
    swapped = random.permutation(mixed)  # the same labels as LabelMix draws, each at another point
    swapped = np.where(contains(targets, swapped[:, None]).ravel(), -1, swapped)
    others = (rows + random.integers(1, max(len(train), 2), len(rows))) % len(train)

    def pairs(partners: NDArray[Any], of: Texts, form: str = "{1}") -> Pairs:
        some = partners >= 0
        first, second = texts.take(rows[some]).tolist(), of.take(partners[some]).tolist()
        return first, [form.format(*both) for both in zip(first, second, strict=True)]

    return {
        "random": pairs(np.where(others == rows, -1, others), texts),
        "codocument": pairs(codocuments(whole, rows, random), texts),
        "head": pairs(drawn_labels(targets, 1.0 * (bin_of == 0), random), names),
        "tail": pairs(drawn_labels(targets, 1.0 * (bin_of == bin_of.max(initial=0)), random), names),
        "labelmix": pairs(mixed, names, "{0} {1}"),  # as LabelMix does it
        "other": pairs(swapped, names, "{0} {1}"),
        "nearest": (names.take(np.sort(random.permutation(len(names))[:NEAREST])).tolist(), texts.tolist()),
    }


def codocuments(targets: sp.csr_array, rows: NDArray[Any], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw for each point another one that shares a label with it: a label first, then a point; -1 where none does."""
    by_label = targets.T.tocsr()
    chosen = drawn_labels(targets[rows], (np.diff(by_label.indptr) > 1).astype(np.float64), random)
    found = np.full(len(rows), -1, np.int64)
    for place in np.flatnonzero(chosen >= 0):
        members = by_label.indices[by_label.indptr[chosen[place]] : by_label.indptr[chosen[place] + 1]]
        found[place] = random.choice(members[members != rows[place]])
    return found


def encoder_of(model: Model, name: str) -> Encode:
    """Return what turns texts into the vectors of a trained encoder."""
    vectors: Any = model.vectors
    if vectors is None:
        raise DataError(
            "this model has no encoder", file=name, remedy="give one of a recipe that trains, such as astec"
        )
    return lambda texts: vectors.tower.encode(Query(texts))


def measured(pairs: Mapping[str, Pairs], encode: Encode) -> dict[str, Cosines]:
    """Compute the cosines of all kinds of pairs in one space."""
    out = {}
    for kind, (first, second) in pairs.items():
        compare = nearest if kind == "nearest" else cosines
        out[kind] = compare(encode(first), encode(second)) if first and second else np.zeros(0)
    return out


def dots(first: Vectors, second: Vectors) -> Cosines:
    """Return the product of each row with the other's, (N,)."""
    product = first.multiply(second) if sp.issparse(first) else np.asarray(first, np.float64) * second
    return np.asarray(product.sum(axis=1), np.float64).ravel()


def cosines(first: Vectors, second: Vectors) -> Cosines:
    """Return the cosine of each pair of rows; pairs in which one is zero have none and are left out."""
    squares = dots(first, first) * dots(second, second)
    some = squares > 0
    return np.clip(dots(first, second)[some] / np.sqrt(squares[some]), -1, 1)


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
    return np.clip(found[some] / own[some], -1, 1)


def summary(values: Cosines, random: Cosines) -> Summary:
    """Describe the cosines of one kind beside those of random pairs."""
    if len(values) == 0:
        return Summary(0, *[math.nan] * 5)
    below = [np.searchsorted(np.sort(random), values, side).mean() for side in ("left", "right")]
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    nearer = float(np.mean(below)) / max(1, len(random))
    return Summary(len(values), float(values.mean()), low, median, high, nearer)


def draw_densities(spaces: Mapping[str, Mapping[str, Cosines]], path: Path, title: str) -> None:
    """Draw a histogram for each kind of pairs, one below the other, with a colour for each space."""
    lowest = np.concatenate([values for found in spaces.values() for values in found.values()]).min(initial=0)
    edges = np.linspace(math.floor(10 * lowest) / 10, 1, 51)
    with picture(path, title, size=(8.4, 1.2 + 0.72 * len(KINDS))) as axes:
        for row, kind in enumerate(reversed(KINDS)):
            cosines_of = {name: found[kind] for name, found in spaces.items()}
            shares = [np.histogram(values, edges)[0] / max(1, len(values)) for values in cosines_of.values()]
            top = max(float(share.max()) for share in shares) or 1.0
            for colour, share, (name, values) in zip((INK, SECOND, QUIET), shares, cosines_of.items(), strict=False):
                heights = row + 0.86 * np.sqrt(share / top)  # so that a spike leaves the rest to be seen
                axes.stairs(heights, edges, baseline=row, color=colour, alpha=0.25, fill=True)
                axes.stairs(heights, edges, baseline=row, color=colour, linewidth=1.2,
                            label=literal(name) if row == 0 else None)  # fmt: skip
                if len(values):
                    axes.plot([np.median(values)] * 2, [row - 0.08, row], color=colour, linewidth=2.5)
        axes.axvline(VICINITY, color=QUIET, linewidth=1, linestyle="--")
        titles = [title.removesuffix(" *") for title in reversed(KINDS.values())]
        axes.set_yticks(np.arange(len(KINDS)), titles, va="bottom", fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_ylim(-0.15, len(KINDS))
        axes.set_xlabel("cosine with a training point; under each histogram its median; dashed: 45°")
        axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, -0.2), ncols=3)


def section(train: Split, spaces: Mapping[str, Mapping[str, Cosines]], mixing: Sequence[str], file: str) -> list[str]:
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
            out.append(f"| {name} | {KINDS[kind]} | {entry.pairs:,} | {cells} | {share} |")
    for name, entries in found.items():
        same = float((spaces[name]["nearest"] >= SAME).mean()) if entries["nearest"].pairs else 0.0
        out += ["", f"With {name}:", "", *claims(entries)]
        out.append(f"- Ours: {same:.0%} of the label texts are, to these vectors, also the text of a training point.")
    medians = {name: entries["labelmix"].median for name, entries in found.items() if name != "TF-IDF"}
    between = trained_claim(medians, mixing)
    return [*out, "", "Between encoders:", "", *between] if between else out


def claims(found: Mapping[str, Summary]) -> list[str]:
    """Hold the numbers of one space against what paper 0 says about its figure 2."""
    near = {kind: entry.median > VICINITY for kind, entry in found.items()}
    mixed, other, label = (found[kind].median for kind in ("labelmix", "other", "nearest"))
    return [
        "- A text followed by one of its labels stays in the vicinity of the text (§4, postulate 1): "
        f"{verdict(near['labelmix'])}, median cosine {mixed:.2f}.",
        *(
            f"- The text of a {kind} label is not in the vicinity of its points (§7): {verdict(not near[kind])}, "
            f"median cosine {found[kind].median:.2f}; nearer than a random point in {found[kind].nearer:.0%}."
            for kind in ("head", "tail")
            if found[kind].pairs
        ),
        f"- So label texts are points far from all training points (§7): {verdict(not near['nearest'])}, the median "
        f"cosine of a label's text with the nearest training point is {label:.2f}.",
        f"- Ours: it takes a label of the point's own to stay near: {verdict(near['labelmix'] and not near['other'])}, "
        f"with a label of another point the median is {other:.2f} instead of {mixed:.2f}.",
    ]


def trained_claim(medians: Mapping[str, float], mixing: Sequence[str]) -> list[str]:
    """Compare encoders that were trained with LabelMix with others: medians of the kind "labelmix" by model."""
    with_it = [medians[name] for name in mixing if name in medians]
    without_it = [median for name, median in medians.items() if name not in mixing]
    if not with_it or not without_it:
        return []
    return [
        "- Training with LabelMix brings a text and the same text followed by a label together (caption of figure 2): "
        f"{verdict(min(with_it) > max(without_it))}, median cosine {max(without_it):.3f} without and "
        f"{min(with_it):.3f} with it."
    ]
