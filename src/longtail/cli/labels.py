"""Change the labels of a trained model: add, remove, undo, list, check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.console import emit, say, table
from longtail.cli.models import Json, Run
from longtail.cli.options import From, Text, open_rows
from longtail.cli.sign import say_stale
from longtail.errors import DataError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.index import Index

app = typer.Typer(
    no_args_is_help=True,
    help="Add labels to a trained model or remove them, without training; running services see them at once.",
)


@app.command()
def add(
    run: Run,
    file: Annotated[
        str,
        typer.Argument(help="A table with `text` and optionally `id`, or one text per line; - is standard input."),
    ] = "-",
    text: Text = None,
    from_: From = None,
) -> None:
    """Add labels; prints one JSON object per label, with its id."""
    from longtail.index import Index

    texts, ids = _read(file, text, from_)
    index = Index.load(run)
    for label in index.add(texts, ids):
        emit(_entry(index, label))
    say(f"added {counted(len(texts), 'label')}; `longtail labels undo {run}` takes that back")
    say_stale(run)


@app.command()
def remove(
    run: Run,
    labels: Annotated[list[str], typer.Argument(help="Labels: ids, raw ids or texts.")],
) -> None:
    """Remove labels: they keep their ids and are never predicted."""
    from longtail.index import Index
    from longtail.labels.lookup import find_label

    index = Index.load(run)
    label_ids = [find_label(index.labels, label) for label in labels]
    index.remove(label_ids)
    for label in label_ids:
        emit(_entry(index, label))
    say(f"removed {counted(len(label_ids), 'label')}; `longtail labels undo {run}` takes that back")
    say_stale(run)


@app.command()
def undo(run: Run) -> None:
    """Undo the last `add` or `remove`."""
    from longtail.index import Index

    index = Index.load(run)
    before = len(index.labels), len(index.removed)
    index.undo()
    added, removed = before[0] - len(index.labels), before[1] - len(index.removed)
    say(f"took {counted(added, 'label')} away again" if added else f"brought {counted(removed, 'label')} back")
    say_stale(run)


@app.command("list")
def list_(run: Run, json: Json = False) -> None:
    """List the labels that were added and removed since training."""
    from longtail.index import Index

    index = Index.load(run)
    trained = len(index.model.labels)
    changed = sorted({*range(trained, len(index.labels)), *index.removed})
    entries = [_entry(index, label) for label in changed]
    if json:
        emit({"labels": len(index.labels), "trained": trained, "changed": entries})
        return
    rows = [(entry["id"], entry["text"], entry["state"]) for entry in entries]
    table(f"Trained: {counted(trained, 'label')}", ("id", "text", "state"), rows)


@app.command()
def check(run: Run) -> None:
    """Verify the checksum of every file of the model, and read the journal of its labels."""
    from longtail.index import Index

    index = Index.load(run, verify=True)
    say(f"{index}: every file is as it was written, removed: {counted(len(index.removed), 'label')}")


def _entry(index: Index, label: int) -> dict[str, Any]:
    """Describe a label: id, raw id, text and state."""
    raw = {} if index.labels.ids is None else {"raw_id": index.labels.ids[label]}
    text = str(label) if index.labels.texts is None else index.labels.texts[label]
    state = "removed" if label in index.removed else "added" if label >= len(index.model.labels) else "trained"
    return {"id": label, **raw, "text": text, "state": state}


def _read(file: str, text: str | None, format: str | None) -> tuple[list[str], list[str] | None]:
    """Read label texts, and their raw ids if the rows have them."""
    texts: list[str] = []
    ids: list[str | None] = []
    with open_rows(file, text, format) as feed:
        if feed.note:
            say(feed.note)
        for block in feed.blocks:
            texts += block.texts
            ids += [row.get("id", row.get("uid")) for row in block.rows()]
    if not texts:
        raise DataError("no labels", file=file, remedy='write one a line: {"text": "..."}')
    known = [raw_id for raw_id in ids if raw_id is not None]
    if known and len(known) < len(ids):
        raise DataError("some lines have an id and some have none", file=file, remedy="give one to each, or to none")
    return texts, [str(raw_id) for raw_id in known] or None
