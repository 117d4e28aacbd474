"""Shared by the commands: output, progress, tables, and reading `--set`."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from longtail import types
from longtail.errors import RecipeError
from longtail.records import AnyPart, overridden, parsed
from longtail.system import address_space

STOPPED = 130  # the exit code after Ctrl-C
stderr = Console(stderr=True, highlight=False)


def emit(value: object) -> None:
    """Print one JSON object to stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """Print a message to stderr."""
    stderr.print(text, soft_wrap=True, markup=False)


@contextmanager
def hush(quiet: bool) -> Iterator[None]:
    """Print no messages to stderr, inside the block: another process of the same command does."""
    stderr.quiet = quiet
    try:
        yield
    finally:
        stderr.quiet = False


EVERY = 10.0  # seconds between lines of progress where there is no terminal
FIXED = 16  # characters of a line with a bar: the spinner, the percentage, the time left, and blanks
ELAPSED, WIDE = 8, 60  # characters of the time that has passed, and from which width it is shown


@contextmanager
def progress(what: str) -> Iterator[types.Progress]:
    """Show a bar with the time left on a terminal, and plain lines elsewhere; yields step(name, done, total)."""
    if not stderr.is_terminal:
        with _Lines(what) as lines:
            yield lines.step
        return
    wide = stderr.width >= WIDE
    bar = max(8, min(40, stderr.width // 5))
    taken = FIXED + bar + (ELAPSED if wide else 0)
    times = (TimeElapsedColumn(), TimeRemainingColumn()) if wide else (TimeRemainingColumn(),)
    columns = (SpinnerColumn(), _What(taken), BarColumn(bar), TaskProgressColumn(), *times)
    with Progress(*columns, console=stderr, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda name, done, total: bars.update(
            task, description=f"{what}: {name}", completed=done, total=total or None
        )


class _What(ProgressColumn):
    """What is being done, shortened so that the other columns, which take so many characters, have their place."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.taken = taken

    def render(self, task: Task) -> Text:
        """Show the end of the description: it says how far it is."""
        return Text(ending(task.description, max(8, stderr.width - self.taken)), no_wrap=True)


def ending(text: str, room: int) -> str:
    """Shorten a text from its beginning to so many characters of a terminal.

    >>> ending("fitting: epoch 3", 10), ending("fitting", 10)
    ('…: epoch 3', 'fitting')
    """
    if cell_len(text) <= room:
        return text
    text = text[-room:]
    while cell_len(text) >= room:
        text = text[1:]
    return f"…{text}"


class _Lines:
    """A line when something begins, and one every ten seconds, whether it tells how far it is or not."""

    def __init__(self, what: str) -> None:
        self.what, self.told = what, ""
        self.began = self.said = time.monotonic()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._timer = threading.Thread(target=self._wait, name="longtail-progress", daemon=True)

    def __enter__(self) -> _Lines:
        say(self.what)
        if address_space() is None:  # of which a thread takes much: where it is limited there are fewer lines
            with suppress(RuntimeError, MemoryError):
                self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._timer.is_alive():
            self._timer.join()

    def step(self, name: str, done: int, total: int) -> None:
        """Take how far it is, and say it if it is time to."""
        self.told = f": {name}" + (f" ({done / total:.0%})" if total else "")
        self._say()

    def _wait(self) -> None:
        """Say from time to time how long it has taken."""
        while not self._over.wait(max(0.01, self.said + EVERY - time.monotonic())):
            self._say(passed=True)

    def _say(self, *, passed: bool = False) -> None:
        """Print a line, unless there was one a moment ago."""
        with self._lock:
            now = time.monotonic()
            if now - self.said >= EVERY:
                self.said = now
                say(self.what + self.told + (f", {duration(now - self.began)} so far" if passed else ""))


@contextmanager
def continues(unfinished: Path | None = None) -> Iterator[None]:
    """Say how to go on when the user stops what is running; `unfinished` is where its checkpoints are."""
    try:
        yield
    except KeyboardInterrupt:
        command = shlex.join(["longtail", *sys.argv[1:]])
        kept = () if unfinished is None else (file.name for file in unfinished.rglob("*") if file.is_file())
        if unfinished is not None and not set(kept) - {"run.json"}:
            say(f"stopped; nothing was written. The same command begins again: {command}")
        else:
            say(f"stopped; the same command goes on where it was: {command}")
        raise typer.Exit(STOPPED) from None


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = "") -> None:
    """Print a table to stdout; columns of numbers are right-aligned, and many columns are set closer."""
    wide = len(columns) > 8
    grid = Table(
        title=Text(title, "bold"), title_justify="left", caption=Text(note) if note else None, caption_justify="left",
        box=box.SIMPLE_HEAD if wide else box.ROUNDED, padding=(0, 1, 0, 0) if wide else (0, 1), pad_edge=not wide,
    )  # fmt: skip
    for position, column in enumerate(columns):
        numbers = all(
            isinstance(row[position], int | float) or str(row[position]).replace(",", "").isdecimal() for row in rows
        )
        grid.add_column(Text(column), justify="right" if numbers else "left", overflow="fold")
    digits = 1 if wide else 2
    for row in rows:
        grid.add_row(*(Text(f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell)) for cell in row))
    Console(highlight=False).print(grid)


def with_settings(part: AnyPart, settings: Sequence[str]) -> AnyPart:
    """Apply `--set a.b=value` settings to a recipe or a part, one after the other."""
    return overridden(part, read_settings(settings))


def read_settings(settings: Sequence[str]) -> list[tuple[str, Any]]:
    """Read `--set a.b=value` settings."""
    pairs = []
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise RecipeError(f"--set {setting}: no '='; write --set name=value")
        pairs.append((path.strip(), parsed(value)))
    return pairs


def size(count: float) -> str:
    """Format a number of bytes: 1.5 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def duration(seconds: float) -> str:
    """Write a time in words.

    >>> duration(1), duration(90), duration(7300)
    ('1 second', '1.5 minutes', '2.0 hours')
    """
    if seconds < 60:
        return types.counted(max(1, round(seconds)), "second")
    return f"{seconds / 60:.1f} minutes" if seconds < 3600 else f"{seconds / 3600:.1f} hours"
