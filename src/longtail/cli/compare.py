"""`longtail compare`: models side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.console import emit, progress, size, table
from longtail.cli.options import ChosenSplit, Source, matched_points, reads_data
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.comparison import Pair


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(compare)


@reads_data
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Model folders; the others are compared with the first.")],
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", "-d", help="Evaluate on this data set; by default the metrics saved with the models are shown."
        ),
    ] = None,
    split: ChosenSplit = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    source: Source,
) -> None:
    """Show models side by side: metrics, sizes, differences with 95 % intervals, and what got better or worse."""
    from longtail.comparison import METRICS
    from longtail.model import Model
    from longtail.pipeline import compare as measure

    models = {str(run): Model.load(run) for run in runs}
    figures: dict[str, Mapping[str, Any]] = {name: model.metrics for name, model in models.items()}
    pairs: tuple[Pair, ...] = ()
    if data is not None:
        widest = max(models.values(), key=lambda model: len(model.labels))
        points = matched_points(source.load(data), split, widest, models.values())
        with progress(f"evaluating {counted(len(models), 'model')} on {counted(len(points), 'point')}"):
            comparison = measure(models, points)
        pairs, figures = comparison.pairs, {name: one.to_dict() for name, one in comparison.evaluations.items()}
    sizes = {str(run): _bytes(run) for run in runs}
    if json:
        described = [
            {"run": name, "recipe": model.recipe.name, "seed": model.recipe.seed, "bytes": sizes[name], **figures[name]}
            for name, model in models.items()
        ]
        emit({"models": described, "differences": [pair.to_dict() for pair in pairs]})
        return
    title = "Figures kept with the models: of test points, or of their last evaluation"
    if data is not None:
        title = f"{data.name}, {points.name}, {counted(len(points), 'point')}"
    rows = [(name, *(one.get(metric, "–") for metric in METRICS), size(sizes[name])) for name, one in figures.items()]
    table(title, ("model", *METRICS, "size"), rows, note="" if data else _measured(figures))
    for pair in pairs:
        _show(pair)


def _measured(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Say what the figures that are kept with models were measured on."""
    lines = []
    for name, one in figures.items():
        where = f"{one.get('dataset', '')} {one.get('split', '')}, {counted(one['points'], 'point')}" if one else ""
        lines.append(f"{name}: {where or 'not evaluated; longtail evaluate keeps its figures'}")
    if len({one.get("fingerprint") for one in figures.values()}) > 1:
        lines.append("not the same points: give --data to measure all on one data set")
    return "\n".join(lines)


def _bytes(run: Path) -> int:
    """Add up the files of a model folder."""
    return sum(file.stat().st_size for file in run.iterdir() if file.is_file())


def _show(pair: Pair) -> None:
    """Print the differences of one pair of models."""
    from longtail.comparison import DIFFERENCES
    from longtail.report import shortened

    note = "paired bootstrap over points; certain: the interval leaves zero out"
    table(f"{pair.second} instead of {pair.first}", DIFFERENCES, pair.rows(), note=note)
    for what, better, worse, column in (
        ("Labels", pair.better_labels, pair.worse_labels, "points where the label is right"),
        ("Points", pair.better_points, pair.worse_points, "labels of the point that are right"),
    ):
        changes = [
            (side, one.change.place, shortened(one.text, 50),
             f"{one.change.first} → {one.change.second} of {one.change.of}")
            for side, entries in (("better", better), ("worse", worse))
            for one in entries
        ]  # fmt: skip
        if changes:
            table(f"{what} that changed most", ("", "id", "text", f"{column}, first five"), changes)
