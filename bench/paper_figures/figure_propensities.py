"""Inverse propensities of labels, and which labels TailMix draws by them (TailMix, figure 2).

Targets are drawn for every training point once, as a step of TailMix draws them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from figure_common import CAUTION, paragraph, verdict, write_page
from numpy.typing import NDArray

from longtail.augment.tailmix import drawn_targets
from longtail.bench.changes import find_data
from longtail.data.dataset import Split
from longtail.data.formats import load
from longtail.errors import DataError
from longtail.labels.propensity import Propensity, frequencies
from longtail.report import INK, QUIET, SECOND, literal, picture

DATA = ("CVELibraries-4K", "LF-MDNSeeAlso-6K", "YSOFinnaTitles-24K")
COLOURS = (INK, SECOND, QUIET)
FEW = 5  # points of a rare label at most


def write_propensities(args: argparse.Namespace, command: str) -> None:
    """Count, draw the picture and write the page."""
    if len(args.data) > len(COLOURS):
        raise DataError(f"{len(args.data)} data sets", remedy=f"name {len(COLOURS)} at most: there are no more colours")
    trains = [load(find_data(name)).train for name in args.data]
    inverse = {train.dataset: inverse_of(train) for train in trains}
    path = args.out.with_suffix(".svg")
    draw_shares(inverse, path)
    write_page(args.out, command, propensities_page(trains, inverse, path.name))


def inverse_of(train: Split) -> NDArray[np.float64]:
    """Return the inverse propensities of labels, with the constants of the paper."""
    counts = frequencies(train.targets)
    return Propensity(0.55, 1.5).inverse(counts, len(train)).astype(np.float64)


def draw_shares(inverse: dict[str, NDArray[np.float64]], path: Path) -> None:
    """Draw how many labels have which inverse propensity, a line for each data set."""
    edges = np.linspace(1, max(values.max(initial=1) for values in inverse.values()), 41)
    with picture(path, "Inverse propensities of labels", size=(7.2, 3.4)) as axes:
        for colour, (name, values) in zip(COLOURS, inverse.items(), strict=False):
            shares = np.histogram(values, edges)[0] / max(1, len(values))
            axes.stairs(100 * shares, edges, color=colour, linewidth=1.4, label=literal(name))
        axes.set_xlabel("inverse propensity: higher for rarer labels")
        axes.set_ylabel("% of labels")
        axes.legend(frameon=False, fontsize=9)


def propensities_page(trains: list[Split], inverse: dict[str, NDArray[np.float64]], file: str) -> list[str]:
    """Write the page."""
    out = [
        "# Inverse propensities of labels", "",
        *paragraph(
            "As in figure 2 of the TailMix paper (A = 0.55, B = 1.5). TailMix draws the target of a point among its "
            f"labels with the softmax of these numbers; rare labels are those with {FEW} points or fewer. {CAUTION}"
        ), "",
        f"![inverse propensities]({file})", "",
        "| data | labels | 10 % | median | 90 % | rare labels | of all positives | of drawn targets |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    more = []
    for train in trains:
        counts, values = frequencies(train.targets), inverse[train.dataset]
        ((_, drawn),) = drawn_targets(train.targets, values, 1, np.random.default_rng(0))
        rare = counts <= FEW
        low, high = rare[train.targets.indices].mean(), rare[drawn].mean()
        more.append(bool(high > low))
        cells = " | ".join(f"{part:.1f}" for part in np.quantile(values, [0.1, 0.5, 0.9]))
        out.append(f"| {train.dataset} | {len(values):,} | {cells} | {rare.mean():.0%} | {low:.0%} | {high:.0%} |")
    return [*out, "", f"- Rare labels are drawn more often than their share of the positives: {verdict(all(more))}."]
