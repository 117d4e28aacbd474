"""`longtail compare`: models side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.console import emit, progress, size, table
from longtail.cli.options import ChosenSplit, Source, matched_points, reads_data
from longtail.errors import DataError

if TYPE_CHECKING:
    from longtail.comparison import Change
    from longtail.data.dataset import Split
    from longtail.metrics import Evaluation
    from longtail.model import Model
    from longtail.types import TopK

METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "Cov@5")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(compare)


@dataclass(frozen=True, eq=False)
class Entry:
    """A model with its size, predictions and metrics."""

    name: str
    model: Model
    bytes: int
    top: TopK | None = None
    result: Evaluation | None = None

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics on the data, or those saved with the model."""
        return self.model.metrics if self.result is None else self.result.to_dict()


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
    from longtail.model import Model

    entries = [Entry(str(run), Model.load(run), _bytes(run)) for run in runs]
    points = None
    if data is not None:
        points = matched_points(source.load(data), split, entries[0].model)
        for entry in entries[1:]:
            _same_labels(entries[0], entry)
        entries = [_evaluated(entry, points) for entry in entries]
    differences = [] if points is None else [_differences(entries[0], other, points) for other in entries[1:]]
    if json:
        emit({"models": [_described(entry) for entry in entries], "differences": differences})
        return
    title = (
        "Metrics kept with the models"
        if data is None or points is None
        else f"{data.name}, {points.name}, {len(points):,} points"
    )
    rows = [(entry.name, *(entry.metrics.get(name, "–") for name in METRICS), size(entry.bytes)) for entry in entries]
    table(
        title, ("model", *METRICS, "size"), rows, note="" if data else "give --data to measure all on the same points"
    )
    for difference, other in zip(differences, entries[1:], strict=False):
        _show(difference, f"{other.name} instead of {entries[0].name}")


def _same_labels(first: Entry, other: Entry) -> None:
    """Refuse to compare models whose labels have other numbers."""
    one, two = first.model.labels, other.model.labels
    if len(one) != len(two) or (one.texts is not None and two.texts is not None and one.texts != two.texts):
        raise DataError(
            f"the labels of {other.name} are not those of {first.name}", remedy="train both on the same data"
        )


def _bytes(run: Path) -> int:
    """Add up the files of a model folder."""
    return sum(file.stat().st_size for file in run.iterdir() if file.is_file())


def _evaluated(entry: Entry, points: Split) -> Entry:
    """Evaluate a model on the points."""
    from longtail.labels.matching import padded
    from longtail.labels.propensity import Propensity
    from longtail.metrics import evaluate

    model = entry.model
    with progress(f"{entry.name}: {len(points):,} points"):
        top = model.predict_split(points, 5)
        result = evaluate(
            top, points.targets, train_frequencies=padded(model.frequencies, points.labels), train_points=model.points,
            propensity=Propensity.of(model.dataset),
        )  # fmt: skip
    return Entry(entry.name, model, entry.bytes, top, result)


def _described(entry: Entry) -> dict[str, Any]:
    """Describe one model for JSON."""
    recipe = entry.model.recipe
    return {"run": entry.name, "recipe": recipe.name, "seed": recipe.seed, "bytes": entry.bytes, **entry.metrics}


def _differences(first: Entry, second: Entry, points: Split) -> dict[str, Any]:
    """Find what changed between two models; propensities are those of the first."""
    from longtail.comparison import changed_labels, changed_points, paired
    from longtail.labels.matching import padded
    from longtail.labels.propensity import Propensity

    assert first.top is not None and second.top is not None
    inverse = Propensity.of(first.model.dataset).inverse(
        padded(first.model.frequencies, points.labels), first.model.points
    )
    pair = first.top, second.top
    labels = points.labels.texts or points.labels.ids
    out: dict[str, Any] = {"run": second.name, "against": first.name}
    out["metrics"] = [entry.to_dict() for entry in paired(*pair, points.targets, inverse)]
    for what, sides, names in (
        ("labels", changed_labels(*pair, points.targets), labels),
        ("points", changed_points(*pair, points.targets), points.texts),
    ):
        for side, changes in zip(("better", "worse"), sides, strict=True):
            out[f"{side}_{what}"] = [_change(entry, names[entry.place] if names else "") for entry in changes]
    return out


def _change(entry: Change, text: str) -> dict[str, Any]:
    """Describe one label or point that changed."""
    return {"id": entry.place, "text": text, "first": entry.first, "second": entry.second, "of": entry.of}


def _show(difference: dict[str, Any], title: str) -> None:
    """Print the differences of one pair of models."""
    from longtail.report import shortened

    rows = [
        (entry["metric"], entry["first"], entry["second"], f"{entry['difference']:+.2f}",
         f"{entry['low']:+.2f} to {entry['high']:+.2f}", "yes" if entry["certain"] else "no")
        for entry in difference["metrics"]
    ]  # fmt: skip
    note = "paired bootstrap over points; certain: the interval leaves zero out"
    table(title, ("metric", "before", "after", "difference", "95 %", "certain"), rows, note=note)
    for what, column in (
        ("labels", "points where the label is right"),
        ("points", "labels of the point that are right"),
    ):
        changes = [
            (side, entry["id"], shortened(entry["text"], 50), f"{entry['first']} → {entry['second']} of {entry['of']}")
            for side in ("better", "worse")
            for entry in difference[f"{side}_{what}"]
        ]
        if changes:
            table(f"{what.capitalize()} that changed most", ("", "id", "text", f"{column}, first five"), changes)
