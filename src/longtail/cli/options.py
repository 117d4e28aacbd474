"""Options that all commands share which read data: the format, the columns, and what labels are."""

from __future__ import annotations

import functools
import inspect
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from longtail.cli.console import progress, say
from longtail.errors import DataError, nearest

if TYPE_CHECKING:
    from longtail.data.dataset import Dataset, Split
    from longtail.data.formats.columns import Reading
    from longtail.data.queries import Feed, Find
    from longtail.model import Model


def known_format(name: str | None) -> str | None:
    """Refuse an unknown format before anything is read."""
    if name is not None:
        from longtail.data.formats import FORMATS

        if name not in FORMATS:
            raise typer.BadParameter(f"{name!r} is not a format; {nearest(name, FORMATS)}")
    return name


READ = "Read this format instead of finding it by content; see `data formats`."
From = Annotated[str | None, typer.Option("--from", metavar="FORMAT", help=READ, callback=known_format)]
Text = Annotated[
    str | None, typer.Option("--text", metavar="COLUMN", help="The column of texts; several, with commas, are joined.")
]
ChosenSplit = Annotated[
    str | None, typer.Option("--split", help="train, validation or test; test, or the only one, by default.")
]
Trusted = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-keys", metavar="FILE", help="Refuse a model that none of the public keys in this file has signed."
    ),
]
OPTIONS: dict[str, Any] = {
    "from_": From,
    "text": Text,
    "labels": Annotated[str | None, typer.Option("--labels", metavar="COLUMN", help="The column of labels.")],
    "sep": Annotated[str | None, typer.Option("--sep", help="What separates labels in a cell: ; or | or tab …")],
    "labels_are": Annotated[
        Literal["names", "ids"] | None,
        typer.Option("--labels-are", help="What numbers are; ids only where a label file counts labels, by default."),
    ],
    "language": Annotated[
        str | None, typer.Option("--language", help="The language of label texts in a SKOS vocabulary: en.")
    ],
}


@dataclass(frozen=True)
class Source:
    """How data is to be read."""

    format: str | None
    reading: Reading

    def load(self, path: Path, *, summary: bool = False) -> Dataset:
        """Load a data set, and say which columns were taken, and what is odd in it where a summary is wanted."""
        from longtail.data.check import summarise
        from longtail.data.formats.registry import read
        from longtail.data.problems import Problems

        problems = Problems()
        with progress(f"reading {path}"):
            data, _ = read(path, self.format, self.reading, problems)
        for note in problems.notes:
            say(note)
        if summary and (odd := summarise(data, problems)):
            say(f"odd in the data: {', '.join(odd)}; `longtail data check {path}` lists them")
        return data


def reads_data(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options; it gets them as one argument `source`."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "source"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in OPTIONS.items()]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        from longtail.data.formats.columns import Reading

        from_, *columns = (given.pop(name) for name in OPTIONS)
        command(**given, source=Source(from_, Reading.of(*columns)))

    parameters = [parameter.replace(kind=keyword) for parameter in own] + more
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def matched_points(data: Dataset, split: str | None, model: Model, others: Iterable[Model] = ()) -> Split:
    """Take the points to measure a model on, with its labels, and say what has to be said of them."""
    from longtail.continuing import to_measure

    points, notes = to_measure(model, data, split, others)
    for note in notes:
        say(note)
    return points


@contextmanager
def open_rows(
    file: str,
    text: str | None,
    format: str | None,
    split: str | None = None,
    find: Find | None = None,
    usual: tuple[str, ...] = (),
) -> Iterator[Feed]:
    """Open rows of texts: a file, or standard input with lines, JSON lines, or a table whose header names texts."""
    from longtail.data.formats.columns import Reading
    from longtail.data.formats.survey import sniff
    from longtail.data.queries import open_feed, read_feed

    reading = replace(Reading.of(text), usual=usual)
    if file != "-":
        with open_feed(Path(file), reading, format=format, split=split, find=find) as feed:
            yield feed
        return
    source: Any = sys.stdin.buffer
    buffer = source if isinstance(source, io.BufferedReader) else io.BufferedReader(source)
    kind = format or sniff(buffer.peek(1))
    if format is None and kind not in ("csv", "tsv", "parquet", "excel") and not (text and kind == "jsonl"):
        kind = ""  # lines are answered as they come
    if kind in ("parquet", "arrow", "excel"):
        raise DataError(f"{kind} cannot be read from standard input", remedy="give the path of the file")
    yield read_feed(buffer, "standard input", kind, reading, find)
