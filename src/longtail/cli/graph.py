"""`longtail graph` and `longtail augment`: the label graph, and training points made from it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.batch import Address, AnEngine, Machines, Workers
from longtail.cli.console import continues, duration, emit, progress, say, size, table, with_settings
from longtail.cli.data import Folder, Force, Format
from longtail.cli.options import Source, reads_data
from longtail.errors import DataError, RecipeError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.data.dataset import Dataset, Split
    from longtail.labels.calibration import Calibration
    from longtail.records import Part

app = typer.Typer(no_args_is_help=True, help="Build, show and test the graph of labels that share training points.")


class Kinds(StrEnum):
    """The kinds of graphs."""

    conditionals = "conditionals"
    glas = "glas"
    walk = "walk"
    proximity = "proximity"


class Methods(StrEnum):
    """The augmentations that make or change the points of a data set."""

    gandalf = "gandalf"
    labelmix = "labelmix"


def _check_threshold(value: float | None) -> float | None:
    """Refuse a threshold outside 0 ≤ threshold < 1; nan fails the comparison too."""
    if value is not None and not 0 <= value < 1:
        raise typer.BadParameter(f"{value} is not at least 0 and below 1")
    return value


def _check_binarise(value: float | None) -> float | None:
    """Refuse a cut outside 0 ≤ cut ≤ 1; nan fails the comparison too."""
    if value is not None and not 0 <= value <= 1:
        raise typer.BadParameter(f"{value} is not from 0 to 1")
    return value


Kind = Annotated[Kinds, typer.Option("--kind", help="How the edges are weighted.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same result.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Threshold = Annotated[
    float,
    typer.Option("--threshold", help="Keep only weights above this, from 0 to below 1.", callback=_check_threshold),
]


def register(parent: typer.Typer) -> None:
    """Add the commands of this module."""
    parent.add_typer(app, name="graph")
    parent.command()(augment)


@app.command()
@reads_data
def build(
    path: Folder,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .safetensors file, or the folder to put it in; a dry run needs none."),
    ] = None,
    kind: Kind = Kinds.conditionals,
    threshold: Threshold = 0.1,
    top: Annotated[int | None, typer.Option(min=1, help="Keep at most this many edges per label.")] = None,
    seed: Seed = 0,
    engine: AnEngine = None,
    workers: Workers = None,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimated memory and time, and stop.")] = False,
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
    source: Source,
) -> None:
    """Write a label graph as a CSR matrix: arrays indptr, indices, values and shape in one safetensors file.

    With an --engine neither the graph nor the label matrix has to fit into memory: workers build runs of rows, which
    wait on the disk beside --out; the same command goes on after a stop. The result is the same, bit for bit.
    """
    from longtail.arrays import matrix_arrays
    from longtail.engines.graphs import build_graph
    from longtail.files import write_arrays
    from longtail.labels.graph import KINDS, estimate
    from longtail.labels.spilled import GraphSettings

    if out is None and not dry_run:
        raise typer.BadParameter("say where the graph goes, or ask for a --dry-run", param_hint="--out")
    data = source.load(path)
    train = data.train.original
    if out is None or dry_run:
        needs = estimate(train.targets, kind, threshold=threshold, top=top)
        if json:
            emit({"peak_bytes": needs.peak_bytes, "seconds": round(needs.seconds, 2), "entries": needs.entries})
        else:
            edges = counted(needs.entries, "edge")
            typer.echo(f"about {size(needs.peak_bytes)} of memory, {duration(needs.seconds)}, at most {edges}")
        return
    file = out if out.suffix == ".safetensors" else out / f"{kind}.safetensors"
    if file.exists() and not force:
        raise DataError(
            "a graph is here already", file=file, remedy="pass --force to replace it, or choose another --out"
        )
    if engine is not None:
        settings = GraphSettings(kind.value, threshold, top, seed)
        with continues(), progress(f"building the {kind} graph of {counted(len(train.labels), 'label')}") as step:
            cluster = Machines(engine, workers, address).cluster()
            entries, peak = build_graph(
                train.targets, data.fingerprint, settings, file, engine, cluster, force=force, progress=step
            )  # fmt: skip
        least = f", at most {size(peak)} a worker" if peak else ""
        say(f"wrote {file}: {counted(entries, 'edge')}, {size(file.stat().st_size)}{least}")
        return
    with progress(f"building the {kind} graph of {counted(len(train.labels), 'label')}"):
        graph = KINDS[kind](train.targets, **_settings(kind, threshold, top, seed))
    write_arrays(file, matrix_arrays("", graph))
    say(f"wrote {file}: {counted(graph.nnz, 'edge')}, {size(file.stat().st_size)}")


def _settings(kind: str, threshold: float, top: int | None, seed: int) -> dict[str, Any]:
    """Return the settings that a kind of graph takes."""
    if kind == "walk":
        return {"seed": seed} | ({} if top is None else {"top": top})
    return {"top": top} | ({} if kind == "proximity" else {"threshold": threshold})


@app.command()
@reads_data
def show(
    path: Folder,
    *,
    label: Annotated[str, typer.Option("--label", "-l", help="A label: its number, raw id or text.")],
    kind: Kind = Kinds.conditionals,
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=100, help="Neighbours shown.")] = 10,
    plot: Annotated[Path | None, typer.Option(help="Draw them to this .svg or .png file.")] = None,
    json: Json = False,
    seed: Seed = 0,
    source: Source,
) -> None:
    """Show the strongest neighbours of a label."""
    from longtail.labels.lookup import find_label
    from longtail.report import bar, draw_neighbours

    train = source.load(path).train.original
    label_id = find_label(train.labels, label)
    neighbours = _neighbours(train, label_id, kind, k, seed)
    name = _name(train, label_id)
    if plot is not None:
        title = f"{name}: {kind}"
        draw_neighbours([row["text"] for row in neighbours], [row["value"] for row in neighbours], plot, title)
        say(f"wrote {plot}")
    if json:
        emit({"label": label_id, "text": name, "kind": kind, "neighbours": neighbours})
        return
    rows = [(row["label"], row["text"], row["points"], f"{row['value']:.3f}", bar(row["value"])) for row in neighbours]
    title = f"{name} (label {label_id}): what goes with it"
    table(
        title, ("label", "text", "points", kind, ""), rows, note="" if rows else "no other label shares a point with it"
    )


def _name(train: Split, label: int) -> str:
    """Return the text of a label, or its number."""
    return train.labels.texts[label] if train.labels.texts is not None else f"label {label}"


def _neighbours(train: Split, label_id: int, kind: str, k: int, seed: int) -> list[dict[str, Any]]:
    """List the k strongest neighbours of a label; visits of a random walk are relative to those of the label itself."""
    import numpy as np

    from longtail.labels.graph import one_row
    from longtail.labels.propensity import frequencies

    row = one_row(train.targets, kind, label_id, threshold=0, top=k + 1, seed=seed)
    if kind == "walk":
        row.data = np.minimum(row.data / row.data[row.indices == label_id], 1)
    counts = frequencies(train.targets)
    order = [place for place in np.lexsort((row.indices, -row.data)) if row.indices[place] != label_id][:k]
    return [
        {
            "label": int(row.indices[place]),
            "text": _name(train, int(row.indices[place])),
            "value": round(float(row.data[place]), 6),
            "points": int(counts[row.indices[place]]),
        }
        for place in order
    ]


@app.command()
@reads_data
def fit(
    path: Folder,
    *,
    plot: Annotated[Path | None, typer.Option(help="Draw the reliability to this .svg or .png file.")] = None,
    json: Json = False,
    seed: Seed = 0,
    source: Source,
) -> None:
    """Test before training whether Gandalf's soft targets are right for this data, and recommend what to do."""
    from longtail.labels.calibration import calibrate
    from longtail.report import draw_reliability

    data = source.load(path)
    with progress("comparing labels with training points of the same text"):
        calibration = calibrate(data.train.original, seed=seed)
    if plot is not None:
        draw_reliability(calibration.reliability, plot, f"{data.name}: soft targets and reality")
        say(f"wrote {plot}")
    if json:
        emit(calibration.to_dict())
    else:
        _show_calibration(data.name, calibration)


def _show_calibration(name: str, calibration: Calibration) -> None:
    """Print the reliability tables, the losses and the advice."""
    from longtail.report import bar

    for which, rows in calibration.reliability.items():
        cells = [
            (
                f"{row.low:g}–{row.high:g}" if row.low < row.high else "exactly 1",
                f"{row.count:,}", f"{row.predicted:.3f}", f"{row.observed:.3f}", bar(row.observed),
            )
            for row in rows
        ]  # fmt: skip
        table(f"{name}, {which}", ("soft target", "pairs", "promised", "real", ""), cells)
    if calibration.losses:
        losses = [(values, f"{loss:.4f}") for values, loss in calibration.losses.items()]
        table("Held-out log loss", ("values", "loss"), losses, note=f"chosen: {calibration.method}")
    typer.echo(calibration.advice)


@reads_data
def augment(
    path: Folder,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    *,
    method: Annotated[Methods, typer.Option("--method", "-m", help="How new points are made.")] = Methods.gandalf,
    threshold: Threshold = 0.1,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Calibrate soft targets on training points whose text is a label's text."),
    ] = False,
    binarise: Annotated[
        float | None,
        typer.Option(help="Drop targets below this, from 0 to 1; the others become 1.", callback=_check_binarise),
    ] = None,
    format: Format = "jsonl",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a setting: --set share=0.5.")] = None,
    seed: Seed = 0,
    force: Force = False,
    source: Source,
) -> None:
    """Write a data set with more training points, for any tool; test points, labels and filters stay."""
    from longtail.augment.soft import binarised
    from longtail.data.formats import FORMATS, write
    from longtail.records import part_of

    flags = {"part": method.value, "threshold": threshold} | ({"calibrate": True} if calibrate else {})
    part = with_settings(part_of(flags), set_ or [])
    data = source.load(path)
    with progress(f"augmenting {counted(len(data.train), 'point')} with {method}"):
        part, train = _augment(part, data.train, seed)
    if binarise is not None:
        train = binarised(train, binarise)
    elif not FORMATS[format].soft and bool((train.targets.data != 1).any()):
        raise DataError(
            f"{format} cannot hold the soft targets of {method}",
            remedy="pass --binarise 0.5 (any cut): values below it are left out and the others become 1",
        )
    augmented: Dataset = data.with_splits(train, *(split for name, split in data.splits.items() if name != "train"))
    with progress(f"writing {out}"):
        settings = part.dump() | {"seed": seed, "binarise": binarise, "of": data.fingerprint}
        write(augmented, out, format, force=force, augmentation=settings)
    added = int(train.augmented.sum()) if train.augmented is not None else 0
    made = f"{added:,} of them made by {method}"
    points = f"{counted(len(train), 'point')}, {made}, {counted(train.targets.nnz, 'target')}"
    say(f"wrote {out} ({format}): {points}")


def _augment(part: Part, train: Split, seed: int) -> tuple[Part, Split]:
    """Augment the training points; also return the settings with what was fitted."""
    from longtail.augment.gandalf import Gandalf
    from longtail.parts import Augmentation

    if isinstance(part, Augmentation) and part.can_act_once:
        return part, part.augment_once(train, seed=seed)
    if not isinstance(part, Gandalf):
        raise RecipeError(f"{part.part} makes no training points")
    fitted = part.fit(train, seed=seed)
    if fitted.calibrate:
        say(fitted.calibration(train).advice)
    return fitted, fitted.augment(train, seed=seed)
