"""`longtail bench`: run a suite and write its table."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli.console import continues, progress, say, table
from longtail.types import Progress, counted

if TYPE_CHECKING:
    from longtail.bench.suite import Job, Suite


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(bench)


def bench(
    suite: Annotated[Path, typer.Argument(help="A suite file: recipes, data and seeds; see results/suites.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file of result lines; results/NAME.jsonl by default.")
    ] = None,
    table_: Annotated[
        Path | None, typer.Option("--table", "-t", help="The Markdown table; results/NAME.md by default.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run only the run or peer of this name.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the runs and which of them are done, and stop.")] = False,
) -> None:
    """Run a grid of recipes × data × seeds, one at a time; the same command continues after a stop."""
    from longtail.bench.lines import read_lines, run_suite
    from longtail.bench.suite import read_suite
    from longtail.bench.table import table as markdown_table
    from longtail.whole import whole_file

    loaded = read_suite(suite)
    folder = suite.parent.parent if suite.parent.name == "suites" else suite.parent
    lines = out or folder / f"{loaded.name}.jsonl"
    page = table_ or (lines.with_suffix(".md") if out else folder / f"{loaded.name}.md")
    if list_:
        _show(loaded, lines, only or [])
        return

    def begin(job: Job, number: int, total: int) -> AbstractContextManager[Progress]:
        return progress(f"{number} of {total}: {job}")

    with continues():
        fresh = run_suite(loaded, lines, only=only or (), begin=begin)
    failed = [line for line in fresh if "error" in line]
    for line in fresh:
        if "skipped" in line:
            say(f"skipped {line['run']} on {line['data']}: {line['skipped']}")
    for line in failed:
        say(f"failed: {line['run']} on {line['data']}, seed {line['seed']}: {line['error']}")
    with whole_file(page) as partial:
        partial.write_text(markdown_table(loaded, read_lines(lines), _command(suite)), encoding="utf-8")
    done = sum("skipped" not in line for line in fresh)
    say(f"{counted(done, 'new line')} in {lines}; wrote {page}" if done else f"nothing was run; wrote {page}")
    if failed:
        raise typer.Exit(1)


def _command(suite: Path) -> str:
    """Return the command that writes a table again, with a relative path."""
    here = Path.cwd()
    resolved = suite.resolve()
    return f"longtail bench {resolved.relative_to(here) if resolved.is_relative_to(here) else suite.name}"


def _show(suite: Suite, lines: Path, only: list[str]) -> None:
    """List the jobs of a suite and their state."""
    from longtail.bench.lines import latest, read_lines

    known = latest(read_lines(lines))
    rows = []
    for job in suite.jobs(only):
        line = known.get(job.key)
        state = "to do" if line is None else f"failed: {line['error']}" if "error" in line else "done"
        took = f"{line['seconds']:.1f}" if line and "seconds" in line else ""
        rows.append((str(job), state, took))
    table(suite.title, ("run", "state", "seconds"), rows)
