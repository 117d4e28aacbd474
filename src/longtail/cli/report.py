"""`longtail report`: what models find and how good they are, as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.console import progress, say
from longtail.cli.models import Data
from longtail.cli.options import ChosenSplit, Source, matched_points, reads_data
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.comparison import Comparison, Named
    from longtail.data.dataset import Split
    from longtail.evaluation import Evaluation
    from longtail.model import Model
    from longtail.page import Page

BINS = "how much of their labels is among the first five"
SERIES = 3  # models at most in a picture, and beside each other in examples
Examples = list[tuple[str, list[list[tuple[str, bool]]]]]  # text, and (label, is it right) of each model
Drawings = dict[str, Callable[[Path], None]]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(report)


@reads_data
def report(
    runs: Annotated[list[Path], typer.Argument(help="Model folders; the others are compared with the first.")],
    *,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    split: ChosenSplit = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=20, help="Labels per example.")] = 5,
    source: Source,
) -> None:
    """Write one HTML file: metrics with intervals, head and tail, calibration, differences and examples."""
    from longtail.model import Model
    from longtail.page import read_curve
    from longtail.pipeline import compare

    alike = len({run.resolve().name for run in runs}) < len({run.resolve() for run in runs})
    folders = {str(run) if alike else run.resolve().name: run for run in runs}
    models = {name: Model.load(run) for name, run in folders.items()}
    first = next(iter(models.values()))
    points = matched_points(source.load(data), split, first, models.values())
    with progress(f"evaluating {counted(len(models), 'model')} on {counted(len(points), 'point')}"):
        comparison = compare(models, points)
        shown = dict(list(models.items())[:SERIES])
        predictions = examples(shown, points, k)
    curves = {name: read_curve(folders[name] / "log.csv") for name in shown}
    Report(
        title=f"{', '.join(models)} on {points.dataset}, {points.name}",
        about=" ".join(
            [
                f"{counted(len(points), 'point')} of {points.dataset} and {counted(len(points.labels), 'label')}.",
                *(_described(name, model) for name, model in models.items()),
            ]
        ),
        comparison=comparison,
        frequencies=first.frequencies,
        series=tuple(shown),
        curves={name: curve for name, curve in curves.items() if curve},
        trials={name: model.trials for name, model in models.items() if model.trials},
        predictions=predictions,
    ).write(out)
    say(f"wrote {out}")


def _described(name: str, model: Model) -> str:
    """Say in a sentence what a model is."""
    return f"{name}: recipe {model.recipe.name}, fitted to {counted(model.points, 'point')} of {model.dataset}."


def examples(models: Mapping[str, Model], points: Split, k: int, *, count: int = 10, ids: bool = False) -> Examples:
    """Predict some points with each model, and mark the labels that are right; by raw ids where these say more."""
    import numpy as np

    rows = np.random.default_rng(7).permutation(len(points))[:count]
    sample = points.take(np.sort(rows))
    names = (points.labels.ids if ids else None) or points.labels.texts or points.labels.ids
    texts = (sample.ids if ids else None) or sample.need_texts("a report")
    tops = [model.predict_split(sample, k) for model in models.values()]
    out: Examples = []
    for row, point in enumerate(texts):
        truth = set(sample.targets[[row]].indices.tolist())
        lists = [[(names[label] if names else str(label), label in truth) for label, _, _ in top[row]] for top in tops]
        out.append((point, lists))
    return out


def recalls(result: Evaluation) -> list[float]:
    """Return how much of the labels of each bin is among the first five."""
    return [part.recall[5] for part in result.bins]


def draw_calibration(result: Evaluation, path: Path, *, title: str = "Calibration") -> None:
    """Draw a reliability diagram: how often predictions of each probability are right."""
    from longtail.report import draw_reliability

    up = "share of them that are right"
    draw_reliability({"five best labels": result.reliability}, path, title, across="probability of a prediction", up=up)


@dataclass(frozen=True, eq=False)
class Report:
    """What a report shows, from top to bottom."""

    title: str
    about: str
    comparison: Comparison
    frequencies: Any  # (L,) training points of each label
    series: Sequence[str]  # the models of pictures and examples
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    trials: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what `auto` tried for each model
    predictions: Examples = field(default_factory=list)
    note: str = ""
    gains: str = "Head, torso and tail"

    def write(self, path: Path) -> None:
        """Write the page."""
        from longtail.comparison import METRICS
        from longtail.page import Page

        page = Page(self.title)
        page.words(self.about)
        page.heading("How good")
        page.table(("%", *METRICS), self.comparison.rows())
        page.words(" ".join([self.note, "PSP counts rare labels more; Cov is the share of labels found."]).strip())
        page.table(("95 % interval", *METRICS[:6]), self._intervals(METRICS[:6]))
        self._differences(page)
        self._choices(page)
        page.heading("Pictures")
        page.pictures(self._drawings())
        if self.predictions:
            page.heading(counted(len(self.predictions), "prediction").capitalize())
            page.words("✓ the label is right.")
            page.examples(("text", *self.series), self.predictions)
        page.write(path)

    def _intervals(self, metrics: Sequence[str]) -> list[tuple[str, ...]]:
        """Write the intervals of all models."""
        rows = []
        for name, one in self.comparison.evaluations.items():
            ends = [one.intervals.get(metric) for metric in metrics]
            rows.append((name, *("–" if end is None else f"{end[0]:.2f} to {end[1]:.2f}" for end in ends)))
        return rows

    def _differences(self, page: Page) -> None:
        """Show what changed from the first model to each of the others."""
        from longtail.comparison import DIFFERENCES

        for pair in self.comparison.pairs:
            page.heading(f"{pair.second} instead of {pair.first}")
            page.table(DIFFERENCES, pair.rows())
            page.words("Paired bootstrap over points; certain: the interval leaves zero out.")
            for what, better, worse in (
                ("label", pair.better_labels, pair.worse_labels),
                ("point", pair.better_points, pair.worse_points),
            ):
                rows = [*_changes("better", better), *_changes("worse", worse)]
                if rows:
                    page.table((f"{what} that changed", "", "right before", "right after", "of"), rows)

    def _choices(self, page: Page) -> None:
        """Show what `auto` tried, and why it chose."""
        from longtail.card import TRIED, trial_rows, untried

        for name, found in self.trials.items():
            page.heading(f"Why {name} is {found['chosen']}")
            page.words(f"{found['why']}.")
            page.table(TRIED, trial_rows(found))
            for line in untried(found):
                page.words(f"{line}.")

    def _drawings(self) -> Drawings:
        """Name the pictures by their captions."""
        from longtail.report import FEW, draw_curves, draw_frequencies, draw_groups, draw_pareto

        shown = {name: self.comparison.evaluations[name] for name in self.series}
        groups = [f"{part.name}\n{counted(part.labels, 'label')}" for part in list(shown.values())[-1].bins]
        series = {name: recalls(one) for name, one in shown.items()}
        drawings: Drawings = {
            f"Head, torso and tail hold about equally many pairs: {BINS}.": partial(
                draw_groups, groups, series, title=self.gains, unit="recall at 5, %"
            ),
            "The long tail: how many training points each label has.": partial(
                draw_frequencies, self.frequencies, title="Label frequencies"
            ),
        }
        if self.curves:
            drawings["The mean loss of each epoch."] = partial(draw_curves, self.curves, title="Training", unit="loss")
        for name, found in self.trials.items():
            if points := last_trials(found):
                caption = f"What was tried for {name}, on {found['held_out']:,} held-out points; the last round."
                drawings[caption] = partial(draw_pareto, points, found["chosen"], title="Quality and time")
        for name, one in shown.items():
            if one.reliability:
                caption = (
                    f"Probabilities of {name}: of the labels that got one, how many were right. Grey points stand for "
                    f"fewer than {FEW} predictions, whose number is beside them."
                )
                drawings[caption] = partial(draw_calibration, one, title=f"Calibration of {name}")
        return drawings


def last_trials(found: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the reckoned seconds of a fit and the quality of what the last round of trials compared."""
    good = [one for one in found["trials"] if not one["failed"]]
    last = max((one["share"] for one in good if one["name"] == found["chosen"]), default=0)
    return {one["name"]: (one["fit_seconds"], one["P@1"] + one["PSP@5"]) for one in good if one["share"] == last}


def _changes(side: str, entries: Sequence[Named]) -> list[tuple[Any, ...]]:
    """Write what got better or worse as rows."""
    return [(one.text, side, one.change.first, one.change.second, one.change.of) for one in entries]
