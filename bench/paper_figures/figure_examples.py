"""Predictions of two models (paper 1, table 5, and paper 0, table 4).

The five best labels of both for the first test points for which the second model is better, and as many for which it
is worse.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from figure_common import CAUTION, paragraph, verdict, write_page
from numpy.typing import NDArray

from longtail.augment.soft import need_label_texts
from longtail.bench.changes import find_data
from longtail.comparison import Difference, paired
from longtail.data.dataset import Split
from longtail.data.formats import load
from longtail.labels.propensity import Propensity
from longtail.model import Model
from longtail.types import TopK, contains

K = 5  # labels that are shown
SPECIAL = re.compile(r"([\\`*_\[\]|<>~#])")  # means something in Markdown


def write_side_by_side(args: argparse.Namespace, command: str) -> None:
    """Predict the test points with both models and write the page."""
    models = [Model.load(folder) for folder in (args.first, args.second)]
    names = [model.recipe.name for model in models]
    if names[0] == names[1]:
        names = [args.first.name, args.second.name]
    test = load(find_data(args.data)).test
    tops = [model.predict_split(test, K) for model in models]
    inverse = Propensity.of(models[0].dataset).inverse(models[0].frequencies, models[0].points)
    differences = paired(tops[0], tops[1], test.targets, inverse)
    page = side_by_side(test, tops, names, models[0].frequencies, differences, most=args.most)
    write_page(args.out, command, page)


def side_by_side(
    test: Split, tops: Sequence[TopK], names: Sequence[str], counts: NDArray[Any], differences: Sequence[Difference],
    *, most: int,
) -> list[str]:  # fmt: skip
    """Write the page about two sets of predictions; counts (L,) are the training points of each label."""
    right = [contains(test.targets, top.labels[:, :K]) for top in tops]
    hits = [found.sum(axis=1) for found in right]
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
        *(
            f"- {entry.metric}: {entry.first:.2f} → {entry.second:.2f} ({entry.difference:+.2f}, 95 % interval "
            f"{entry.low:+.2f} to {entry.high:+.2f}, paired bootstrap over points)."
            for entry in differences
        ),
        "- Points without any right label become points with all that five places can hold (paper 1's example is "
        f"*Oat*): {verdict(none_all[0] > none_all[1])}, {none_all[0]:,} with {names[1]} instead of {names[0]}, "
        f"{none_all[1]:,} the other way round.",
    ]  # fmt: skip
    texts, labels = test.need_texts("predictions"), need_label_texts(test, "a table of labels")

    def shown(label: int, bold: bool = False) -> str:
        mark = "**" * bold
        return "–" if label < 0 else f"{mark}{markdown(labels[label])}{mark} ({counts[label]:,})"

    for title, rows in zip(("more", "fewer"), chosen(hits[0], hits[1], most), strict=True):
        out += ["", f"## {names[1]} has {title}"]
        for row in rows:
            own = test.targets.indices[test.targets.indptr[row] : test.targets.indptr[row + 1]]
            heads = " | ".join(f"{name}: {found[row]} of {len(own)}" for name, found in zip(names, hits, strict=True))
            out += ["", f"### {markdown(texts[row])}", "", f"Its labels: {', '.join(shown(int(x)) for x in own)}.", "",
                    f"| | {heads} |", "|---:|---|---|"]  # fmt: skip
            for place in range(tops[0].labels.shape[1]):
                cells = [shown(int(top.labels[row, place]), bool(found[row, place]))
                         for top, found in zip(tops, right, strict=True)]  # fmt: skip
                out.append(f"| {place + 1} | {' | '.join(cells)} |")
    return out


def chosen(first: NDArray[Any], second: NDArray[Any], most: int) -> tuple[list[int], list[int]]:
    """Take the first points for which the second model has more right labels, and those for which it has fewer."""
    better, worse = np.flatnonzero(second > first), np.flatnonzero(second < first)
    return better[: most // 2].tolist(), worse[: most // 2].tolist()


def markdown(text: str) -> str:
    """Escape what means something in Markdown."""
    return SPECIAL.sub(r"\\\1", text)
