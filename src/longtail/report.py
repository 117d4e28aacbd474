"""NUMBERS → TABLES AND PICTURES. Pictures need the extra `report`; sparklines and bars need nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, MissingExtra
from longtail.whole import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLOCKS = "▁▂▃▄▅▆▇█"
FEW = 30  # cases below which a point of a reliability curve says little
INK, SECOND, QUIET, GRID = "#1f5a96", "#c8553d", "#8a8f98", "#e6e8eb"


def sparkline(values: Sequence[float] | NDArray[Any]) -> str:
    """Draw values as a row of blocks.

    >>> sparkline([0, 1, 3])
    '▁▃█'
    """
    numbers = np.asarray(values, float)
    if len(numbers) == 0:
        return ""
    top = numbers.max()
    steps = np.round(numbers / top * (len(BLOCKS) - 1)).astype(int) if top > 0 else np.zeros(len(numbers), int)
    return "".join(BLOCKS[step] for step in steps)


def bar(value: float, width: int = 24) -> str:
    """Draw a share between 0 and 1 as a bar.

    >>> bar(0.5, 4)
    '██  '
    """
    eighths = round(max(0.0, min(1.0, value)) * width * 8)
    return ("█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")).ljust(width)


def frequency_steps(counts: NDArray[Any], steps: int = 40) -> NDArray[np.float64]:
    """Take log(1 + frequency) at evenly spaced ranks on a logarithmic axis: the shape of the tail in one line."""
    ranked = np.sort(counts)[::-1]
    if len(ranked) == 0:
        return np.zeros(0)
    places = np.unique(np.geomspace(1, len(ranked), min(steps, len(ranked))).round().astype(int)) - 1
    return np.asarray(np.log1p(ranked[places]), np.float64)


def draw_frequencies(counts: NDArray[Any], path: str | Path, title: str) -> None:
    """Draw label frequency against rank, both logarithmic."""
    ranked = np.sort(counts)[::-1]
    with picture(path, title) as axes:
        nonzero = ranked[ranked > 0]
        axes.loglog(np.arange(1, len(nonzero) + 1), nonzero, color=INK, linewidth=2)
        axes.axhline(5, color=SECOND, linewidth=1, linestyle="--")
        share = float((counts <= 5).mean()) if len(counts) else 0.0
        axes.annotate(f"{share:.0%} of the labels have 5 points or fewer", (1, 5.4), color=SECOND, fontsize=9)
        axes.set_xlabel("label, by rank")
        axes.set_ylabel("training points")


def draw_neighbours(names: Sequence[str], values: Sequence[float], path: str | Path, title: str) -> None:
    """Draw the strongest neighbours of a label as horizontal bars, the strongest on top."""
    with picture(path, title, size=(7.2, 0.9 + 0.32 * max(1, len(names)))) as axes:
        places = np.arange(len(names))[::-1]
        axes.barh(places, values, color=INK, height=0.62)
        axes.set_yticks(places, [literal(shortened(name)) for name in names], fontsize=8)
        for place, value in zip(places, values, strict=True):
            axes.text(value, place, f" {value:.2f}", va="center", fontsize=8, color=QUIET)
        axes.set_xlim(0, 1.08 * max([*values, 1e-9]))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)


def shortened(text: str, most: int = 60) -> str:
    """Cut a text that is too long for a picture.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def literal(text: str) -> str:
    r"""Escape dollar signs, which matplotlib would take for the borders of a formula.

    >>> literal("price $x$")
    'price \\$x\\$'
    """
    return text.replace("$", r"\$")


def draw_reliability(
    tables: Mapping[str, Sequence[Any]], path: str | Path, title: str, *, across: str = "", up: str = ""
) -> None:
    """Draw predicted against observed relevance for each table; the area of a point is the number of pairs.

    A point of fewer than `FEW` is grey and has its number beside it. `across` and `up` name the axes, if they are not
    those of Gandalf's calibration.
    """
    with picture(path, title, size=(5.6, 5.0)) as axes:
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle="--", label="as promised")
        for colour, (name, rows) in zip((SECOND, INK), tables.items(), strict=False):
            predicted, observed = [row.predicted for row in rows], [row.observed for row in rows]
            largest = max((row.count for row in rows), default=1)
            axes.plot(predicted, observed, color=QUIET, linewidth=1)
            enough = [row for row in rows if row.count >= FEW]
            line = [row.predicted for row in enough], [row.observed for row in enough]
            axes.plot(*line, color=colour, linewidth=1.5, label=literal(name))
            colours = [QUIET if row.count < FEW else colour for row in rows]
            areas = [12 + 140 * row.count / largest for row in rows]
            axes.scatter(predicted, observed, s=areas, color=colours, alpha=0.8, zorder=3)
            for row in rows:
                if row.count < FEW:
                    where = (row.predicted, row.observed)
                    axes.annotate(f"{row.count:,}", where, (5, -3), textcoords="offset points", color=QUIET, fontsize=8)
        axes.set_xlim(0, 1.05)
        axes.set_ylim(0, 1.05)
        axes.set_xlabel(across or "soft target of a pair of labels")
        axes.set_ylabel(up or "share of pairs that are really relevant")
        axes.legend(frameon=False, fontsize=9, loc="upper left")


def draw_groups(
    groups: Sequence[str], series: Mapping[str, Sequence[float]], path: str | Path, title: str, unit: str
) -> None:
    """Draw bars in groups, in each of them one bar for each of the series, which are at most three."""
    with picture(path, title) as axes:
        width = 0.8 / max(1, len(series))
        colours = (QUIET, INK) if len(series) < 3 else (QUIET, INK, SECOND)
        for number, (name, values) in enumerate(series.items()):
            places = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
            bars = axes.bar(places, values, width * 0.92, color=colours[number % len(colours)], label=literal(name))
            axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
        axes.set_xticks(np.arange(len(groups)), [literal(name) for name in groups])
        axes.set_ylabel(unit)
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.25)  # room for the legend above the bars
        axes.legend(frameon=False, fontsize=9, loc="upper left", ncols=len(series))


def draw_curves(curves: Mapping[str, Sequence[float]], path: str | Path, title: str, unit: str) -> None:
    """Draw values by epoch, one line for each name, which are at most three."""
    with picture(path, title) as axes:
        for colour, (name, values) in zip((QUIET, INK, SECOND), curves.items(), strict=False):
            axes.plot(np.arange(1, len(values) + 1), values, color=colour, linewidth=2, label=literal(name))
        axes.set_xlabel("epoch")
        axes.set_ylabel(unit)
        axes.locator_params(axis="x", integer=True)
        axes.legend(frameon=False, fontsize=9)


def draw_pareto(points: Mapping[str, tuple[float, float]], chosen: str, path: str | Path, title: str) -> None:
    """Draw quality against the seconds of a fit, with a line through what nothing cheaper is better than."""
    with picture(path, title) as axes:
        line: list[tuple[float, float]] = []
        for seconds, value in sorted(points.values()):
            line += [(seconds, value)] if not line or value > line[-1][1] else []
        axes.step(*zip(*line, strict=True), where="post", color=QUIET, linewidth=1, linestyle="--")
        for name, (seconds, value) in points.items():
            colour = SECOND if name == chosen else INK
            axes.scatter([seconds], [value], s=36, color=colour)
            axes.annotate(
                literal(shortened(name, 30)), (seconds, value), (5, 4), textcoords="offset points", fontsize=8
            )
        axes.set_xscale("log")
        axes.set_xlabel("seconds of a whole fit, reckoned")
        axes.set_ylabel("P@1 + PSP@5, held-out points")
        axes.margins(x=0.2, y=0.15)


class picture:  # noqa: N801  (a context manager that reads like a word)
    """Open axes in one look, and write them to an SVG, PNG or PDF file when the block ends."""

    def __init__(self, path: str | Path, title: str, size: tuple[float, float] = (6.4, 4.0)) -> None:
        self.path, self.title, self.size = Path(path), title, size
        if self.path.suffix not in (".svg", ".png", ".pdf"):
            raise DataError("pictures are .svg, .png or .pdf", file=path, remedy="change the ending")

    def __enter__(self) -> Axes:
        try:
            from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)
        except ImportError:
            raise MissingExtra("matplotlib", "report") from None
        self.figure = Figure(figsize=self.size, dpi=150, layout="constrained")
        axes = self.figure.subplots()
        axes.set_title(literal(self.title), loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        return axes

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            with whole_file(self.path) as partial:
                # no date inside: the same numbers give the same file
                self.figure.savefig(partial, metadata={"Date": None} if self.path.suffix == ".svg" else None)
