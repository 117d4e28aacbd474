"""`longtail data`: look at, check, convert and split data sets."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.console import emit, progress, say, table
from longtail.cli.options import READ, Source, known_format, reads_data
from longtail.errors import DataError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.data.dataset import Dataset

app = typer.Typer(no_args_is_help=True, help="Look at, check, convert and split data sets in any format.")


def _check_share(share: float) -> float:
    """Refuse a share outside 0 < share ≤ 0.9; nan fails the comparison too."""
    if not 0 < share <= 0.9:
        raise typer.BadParameter(f"{share} is not more than 0 and at most 0.9")
    return share


class HeldOut(StrEnum):
    """The splits that held-out points can become."""

    validation = "validation"
    test = "test"


Folder = Annotated[Path, typer.Argument(help="A data set: a folder or one file; its format is found by content.")]
Format = Annotated[
    str,
    typer.Option(
        "--format", "-f", metavar="FORMAT", help="Write this format; see `data formats`.", callback=known_format
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


@app.command()
@reads_data
def info(
    path: Folder,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw label frequencies (log-log) to this .svg or .png file.")
    ] = None,
    source: Source,
) -> None:
    """Print the statistics that the papers print, and the shape of the tail."""
    from longtail.data.statistics import describe

    data = source.load(path)
    facts = describe(data)
    if plot is not None:
        import numpy as np

        from longtail.report import draw_frequencies

        counts = np.bincount(data.train.targets.indices, minlength=len(data.labels))
        draw_frequencies(counts, plot, f"{data.name}: training points per label")
        say(f"wrote {plot}")
    if json:
        emit(facts)
    else:
        show(data, facts)


def show(data: Dataset, facts: dict[str, Any]) -> None:
    """Print statistics as a table with a sparkline of label frequencies."""
    import numpy as np

    from longtail.report import frequency_steps, sparkline

    rows = [(key.replace("_", " "), _cell(value)) for key, value in facts.items()]
    tail = ""
    if "train" in data.splits:
        counts = np.bincount(data.train.targets.indices, minlength=len(data.labels))
        tail = f"label frequency by rank, both logarithmic: {sparkline(frequency_steps(counts))}"
    table(data.name, ("statistic", "value"), rows, note=tail)


def _cell(value: object) -> str:
    """Format one statistic."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " · ".join(f"{name} {_cell(part)}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int | float) else str(value)


@app.command()
@reads_data
def check(
    path: Folder,
    *,
    format_: Annotated[
        str | None, typer.Option("--format", "-f", metavar="FORMAT", help=READ, callback=known_format)
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    most: Annotated[int, typer.Option(min=1, help="Problems listed of each kind.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per problem.")] = False,
    source: Source,
) -> None:
    """List every problem with file, line and remedy; exit 3 if there are errors."""
    from longtail.data.check import check as check_data

    with progress(f"checking {path}"):
        report = check_data(path, format=format_ or source.format, most=most, reading=source.reading)
    for note in report.notes:
        say(note)
    for problem in report.problems:
        if json:
            emit(asdict(problem))
        else:
            typer.echo(str(problem))
    error_kinds = {problem.kind for problem in report.errors}
    for kind, count in sorted(report.counts.items()):
        say(f"{count:,} × {kind}")
    errors = sum(count for kind, count in report.counts.items() if kind in error_kinds)
    say(f"{counted(errors, 'error')}, {counted(sum(report.counts.values()) - errors, 'warning')}")
    if report.errors or (strict and report.warnings):
        raise typer.Exit(DataError.exit_code)


@app.command()
@reads_data
def convert(
    path: Folder,
    out: Annotated[Path, typer.Argument(help="The folder to write, or one file: .jsonl, .csv, .tsv or .parquet.")],
    *,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="Write this format, jsonl by default; see `data formats`.",
            callback=known_format,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Write this split alone, as one file must: train, validation or test.")
    ] = None,
    force: Force = False,
    source: Source,
) -> None:
    """Write a data set in another format; what the format cannot hold is refused, never dropped."""
    from longtail.data.formats import write
    from longtail.data.formats.single import chosen_ending, only_split

    single = chosen_ending(out, format) is not None
    loaded = source.load(path)
    data = loaded if split is None else loaded.with_splits(loaded[split])
    with progress(f"writing {out}"):
        write(data, out, format, force=force)
    if not single:
        say(f"wrote {out} ({format or 'jsonl'}), fingerprint {data.fingerprint}")
    else:
        points = only_split(data)
        say(f"wrote {out}: {counted(len(points), 'point')} of {points.name}, labels by name")


@app.command()
@reads_data
def split(
    path: Folder,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    *,
    share: Annotated[
        float,
        typer.Option(help="The share of the training points held out: above 0, at most 0.9.", callback=_check_share),
    ] = 0.1,
    to: Annotated[HeldOut, typer.Option(help="What the held-out points become.")] = HeldOut.validation,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same split.")] = 0,
    format: Format = "jsonl",
    force: Force = False,
    source: Source,
) -> None:
    """Hold out a part of the training points, as a validation or a test split."""
    from longtail.data.formats import write

    data = source.load(path)
    if to in data.splits:
        raise DataError(f"{data.name} has a {to} split already", file=path, remedy="nothing to do")
    train, heldout = data.train.divide(share, seed=seed)
    if not len(train) or not len(heldout):
        found = f"a share of {share} of {counted(len(data.train), 'training point')} leaves a split without points"
        raise DataError(found, file=path, remedy="give more points, or another --share")
    others = [part for name, part in data.splits.items() if name != "train"]
    write(data.with_splits(train, heldout.named(to.value), *others), out, format, force=force)
    say(f"wrote {out}: train {len(train):,}, {to} {len(heldout):,}")


@app.command()
def formats(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the formats that can be read and written."""
    from longtail.data.formats import FORMATS

    if json:
        emit({name: {"description": entry.description, "soft": entry.soft} for name, entry in FORMATS.items()})
    else:
        rows = [(name, entry.description, "yes" if entry.soft else "no") for name, entry in FORMATS.items()]
        table("Formats", ("name", "files", "soft values"), rows)
