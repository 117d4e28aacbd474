"""The command line: data to stdout, messages and progress to stderr.

Exit codes: 0 ok, 2 usage, 3 data, 4 recipe, 5 resources.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Annotated

import typer

from longtail import __version__
from longtail.cli import bench, compare, data, demo, graph, index, labels, models, report, serve, sign, train
from longtail.errors import LongtailError, Occupied, ResourceError
from longtail.limits import is_shortage, shortage

app = typer.Typer(
    name="longtail",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Find the best few of up to millions of labels for a short text.

    Try it: [bold]longtail demo[/bold]. Your own data: [bold]longtail data info DIR[/bold], then
    [bold]longtail train knn --data DIR --out runs/first[/bold], then
    [bold]longtail evaluate runs/first --data DIR[/bold] and [bold]longtail predict runs/first texts.txt[/bold].""",
)
app.add_typer(data.app, name="data")
app.add_typer(labels.app, name="labels")
demo.register(app)
train.register(app)
models.register(app)
graph.register(app)
compare.register(app)
report.register(app)
bench.register(app)
serve.register(app)
index.register(app)
sign.register(app)


def _version(value: bool) -> None:
    """Print the version and stop."""
    if value:
        typer.echo(f"longtail {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Take the options before a command; the help text is the app's."""


def main() -> None:
    """Run the command line; every expected error is one line on stderr and an exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the blocks that clean up
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        told = _told(error)
        if told is None:
            raise
        sys.stderr.write(f"error: {told[0]}\n")
        sys.exit(told[1])


def _told(error: Exception) -> tuple[str, int] | None:
    """Return the line and the exit code of an error; None of one that nobody expects."""
    if is_shortage(error) and not isinstance(error, ResourceError):  # whatever it was taken for
        return shortage(), ResourceError.exit_code
    if isinstance(error, Occupied):
        return f"{error.file}: {error.found}; choose another place, or pass --force to replace it", error.exit_code
    if isinstance(error, LongtailError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return f"no space left: {error}; nothing was changed", ResourceError.exit_code
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}; check the path and its permissions", 3
    return None
