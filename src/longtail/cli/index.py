"""Make the index of a model, and explain its predictions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longtail.cli.console import emit, progress, say, table
from longtail.cli.models import Json, Run
from longtail.errors import DataError

if TYPE_CHECKING:
    from longtail.explanations import Explanation


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (index, explain):
        app.command()(command)


def index(
    run: Run,
    precision: Annotated[
        Literal["fp32", "fp16", "int8"], typer.Option(help="How label vectors are kept in memory.")
    ] = "int8",
    search: Annotated[
        Literal["auto", "exact", "hnsw", "ivf"],
        typer.Option(help="Look at all labels, through a graph (hnsw, extra `ann`), or into clusters (ivf)."),
    ] = "auto",
    recall: Annotated[
        float, typer.Option(min=0, max=1, help="How much of the five best must be found, measured on training texts.")
    ] = 0.98,
    json: Json = False,
) -> None:
    """Make single predictions quick: few bytes a label, and a graph or clusters that reach the asked recall."""
    from longtail.artefact import build_artefact

    with progress(f"indexing {run}") as step:
        made = build_artefact(run, precision=precision, search=search, recall=recall, progress=step)
    if json:
        emit(None if made is None else asdict(made))
    elif made is None:
        say("nothing to do: this model has no label vectors, or finds its candidates by itself")
    else:
        reach = f", reach {made.reach}" if made.reach else ""
        found = f"recall {made.recall:.4f} measured on {made.texts:,} training texts"
        say(f"wrote {run / made.file}: {made.precision}, {made.search}{reach}; {found}")
        if made.recall < recall:
            say(f"the asked recall of {recall} is out of reach at this precision; try --precision fp32")


def explain(
    run: Run,
    text: Annotated[str, typer.Argument(help="The text to explain a label for.")],
    label: Annotated[
        str | None, typer.Option("--label", "-l", help="A label: number, raw id or text; else the best one.")
    ] = None,
    json: Json = False,
) -> None:
    """Tell why a text gets a label: words, nearest training points and label texts, neighbours, head or tail."""
    from longtail.index import Index
    from longtail.labels.lookup import find_label

    opened = Index.load(run, verify=True)
    if label is None:
        best = opened.predict([text], 1).labels[0, 0]
        if best < 0:
            raise DataError(
                "the model finds no label for this text", remedy="name one with --label, or use other words"
            )
        chosen = int(best)
    else:
        chosen = find_label(opened.labels, label)
    found = opened.explanation(text, chosen)
    if json:
        emit(found.to_dict())
    else:
        show(found)


def show(found: Explanation) -> None:
    """Print an explanation as tables."""
    from longtail.report import bar

    rank = "not among the best 100" if found.rank is None else f"rank {found.rank}"
    sure = "" if found.probability is None else f", right in {found.probability:.0%} of such cases"
    typer.echo(f"{found.label_text}  (label {found.label}, {found.bin}, {found.frequency:,} training points)")
    typer.echo(f"score {found.score:.4f}, {rank}{sure}\n")
    most = max((abs(entry.score) for entry in found.words), default=0) or 1
    rows = [(entry.word, f"{entry.score:+.4f}", bar(entry.score / most, 20)) for entry in found.words]
    table("Words: what the score loses without them", ("word", "share", ""), rows)
    if found.points:
        rows = [(entry.text, f"{entry.similarity:.2f}", "✓" if entry.has else "") for entry in found.points]
        table("Nearest training points", ("text", "similarity", "has the label"), rows)
    if found.label_texts:
        rows = [(entry.text, f"{entry.score:.2f}", str(entry.id)) for entry in found.label_texts]
        table("Nearest label texts", ("label", "similarity", "id"), rows)
    if found.neighbours:
        rows = [(entry.text, f"{entry.score:.0%}", str(entry.id)) for entry in found.neighbours]
        table("Neighbours: labels of the same points", ("label", "of its points", "id"), rows)
