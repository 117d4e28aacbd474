"""Change the labels of a trained model: add, remove, undo, list, check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.console import emit, say, table
from longtail.cli.models import Json, Run
from longtail.errors import DataError

if TYPE_CHECKING:
    from longtail.index import Index

app = typer.Typer(
    no_args_is_help=True,
    help="Add labels to a trained model or take them away, without training; running services follow at once.",
)


@app.command()
def add(
    run: Run,
    file: Annotated[
        str, typer.Argument(help="JSON lines with `text` and perhaps `id`, or one text a line; - is standard input.")
    ] = "-",
) -> None:
    """Add labels; prints one JSON object a label, with its number."""
    from longtail.index import Index

    texts, ids = _read(file)
    opened = Index.load(run)
    for label in opened.add(texts, ids):
        emit(_entry(opened, label))
    say(f"added {len(texts):,} labels; `longtail labels undo {run}` takes them back")


@app.command()
def remove(
    run: Run,
    labels: Annotated[list[str], typer.Argument(help="Labels: numbers, raw ids or texts.")],
) -> None:
    """Take labels away: they keep their numbers and are never predicted."""
    from longtail.index import Index
    from longtail.labels.lookup import find_label

    opened = Index.load(run)
    chosen = [find_label(opened.labels, label) for label in labels]
    opened.remove(chosen)
    for label in chosen:
        emit(_entry(opened, label))
    say(f"removed {len(chosen):,} labels; `longtail labels undo {run}` brings them back")


@app.command()
def undo(run: Run) -> None:
    """Take back the last `add` or `remove`."""
    from longtail.index import Index

    opened = Index.load(run)
    before = len(opened.labels), len(opened.removed)
    opened.undo()
    added, removed = before[0] - len(opened.labels), before[1] - len(opened.removed)
    say(f"took back an addition of {added:,} labels" if added else f"brought {removed:,} labels back")


@app.command("list")
def list_(run: Run, json: Json = False) -> None:
    """List the labels that were added and removed since training."""
    from longtail.index import Index

    opened = Index.load(run)
    trained = len(opened.model.labels)
    changed = sorted({*range(trained, len(opened.labels)), *opened.removed})
    entries = [_entry(opened, label) for label in changed]
    if json:
        emit({"labels": len(opened.labels), "trained": trained, "changed": entries})
        return
    rows = [(entry["id"], entry["text"], entry["state"]) for entry in entries]
    table(f"{trained:,} labels were trained", ("id", "text", "state"), rows)


@app.command()
def check(run: Run) -> None:
    """Compare every file of the model with its checksum, and read the journal of its labels."""
    from longtail.index import Index

    opened = Index.load(run, verify=True)
    say(f"{opened}: every file is as it was written, {len(opened.removed):,} labels are removed")


def _entry(index: Index, label: int) -> dict[str, Any]:
    """Describe a label in one line."""
    raw = {} if index.labels.ids is None else {"raw_id": index.labels.ids[label]}
    text = str(label) if index.labels.texts is None else index.labels.texts[label]
    state = "removed" if label in index.removed else "added" if label >= len(index.model.labels) else "trained"
    return {"id": label, **raw, "text": text, "state": state}


def _read(file: str) -> tuple[list[str], list[str] | None]:
    """Read label texts, and their raw ids if the lines have them."""
    from longtail.data.queries import read_queries

    texts: list[str] = []
    ids: list[Any] = []
    if file == "-":
        blocks = list(read_queries(sys.stdin.buffer, "standard input", numbered=False))
    else:
        with Path(file).open("rb") as lines:
            blocks = list(read_queries(lines, file, numbered=False))
    for block in blocks:
        texts += block.texts
        ids += block.ids
    if not texts:
        raise DataError("no labels", file=file, remedy='write one a line: {"text": "..."}')
    named = [own for own in ids if own is not None]
    if named and len(named) < len(ids):
        raise DataError("some lines have an id and some have none", file=file, remedy="give one to each, or to none")
    return texts, [str(own) for own in named] or None
