"""`longtail demo`: everything end to end, on real data that is built from installed packages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli.console import progress, say, table
from longtail.cli.report import BINS, Examples, Report, examples, recalls
from longtail.errors import MissingExtra
from longtail.whole import temporary

if TYPE_CHECKING:
    from longtail.evaluation import Evaluation
    from longtail.model import Model


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(demo)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the demo models and the report go.")] = Path("demo"),
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=20, help="Labels per example.")] = 5,
    serve: Annotated[
        bool, typer.Option("--serve", help="Open the web page on the demo models; fits them first if they are missing.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of the page; 0 takes any free one.")] = 8000,
) -> None:
    """Build real data from the installed Python packages, fit models, measure them and show predictions."""
    if not serve or not all((out / name / "config.json").exists() for name in ("frugal", "frugal-plain")):
        _demo(out, k)
    if serve:
        from longtail.cli.serve import serve as serve_models

        serve_models([out / "frugal", out / "frugal-plain"], port=port)


def _demo(out: Path, k: int) -> None:
    """Fit and evaluate the demo models, show and report their predictions."""
    from longtail.cli.data import show
    from longtail.comparison import METRICS, Comparison
    from longtail.data.demo import demo_dataset
    from longtail.data.statistics import describe
    from longtail.page import read_curve
    from longtail.pipeline import evaluate, fit
    from longtail.recipe import find_recipe

    with progress("reading the docs of the installed packages") as step:
        data = demo_dataset(progress=step)
    show(data, describe(data))
    frugal = find_recipe("frugal")
    recipes = {"knn": find_recipe("knn"), "frugal-plain": frugal.override("augment", []), "frugal": frugal}
    models: dict[str, Model] = {}
    results: dict[str, Evaluation] = {}
    losses: dict[str, list[float]] = {}
    for name, recipe in recipes.items():
        with progress(f"fitting {name}") as step, temporary("demo") as scratch:
            models[name] = fit(recipe, data.train, scratch=scratch, progress=step)
            results[name] = evaluate(models[name], data.test)
            losses[name] = read_curve(scratch / "log.csv")
        models[name] = models[name].kept(results[name].to_dict())
        models[name].save(out / name, force=True)
    heads = ("test, %", *METRICS, "head", "torso", "tail")
    rows = [
        (name, *(result.values[metric] for metric in METRICS), *recalls(result)) for name, result in results.items()
    ]
    note = f"frugal-plain is frugal without Gandalf. head, torso, tail: {BINS}."
    table("See Also of Python objects", heads, rows, note=note)
    pair = ("frugal-plain", "frugal")
    shown = {name: models[name] for name in pair}
    predictions = examples(shown, data.test, k, ids=True)
    _print_examples(predictions, list(pair))
    report = Report(
        title="longtail: See Also of Python objects",
        about="For the name and the summary of a Python object, find the objects that its docs refer to under See "
        f"Also. {len(data.train):,} training points, {len(data.test):,} test points and {len(data.labels):,} labels, "
        "read from the packages that are installed here.",
        comparison=Comparison(results),
        frequencies=models["frugal"].frequencies,
        series=pair,
        curves={name: losses[name] for name in pair if losses[name]},
        predictions=predictions,
        note="frugal-plain is frugal without Gandalf.",
        gains="Who gains from Gandalf",
    )
    try:
        report.write(out / "report.html")
        say(f"wrote {out / 'report.html'}")
    except MissingExtra as reason:
        say(f"no report: {reason}")
    say(f"wrote models to {out}; try: echo 'sort a table by a column' | longtail predict {out / 'frugal'}")
    say("open the page to try them side by side: .venv/bin/longtail demo --serve, then http://127.0.0.1:8000")


def _print_examples(predictions: Examples, titles: list[str]) -> None:
    """Print predictions one below the other."""
    typer.echo(f"\n{len(predictions)} test points: what 'See Also' says (✓ the authors wrote it too)")
    for point, lists in predictions:
        typer.echo(f"\n{point}")
        for title, labels in zip(titles, lists, strict=True):
            marked = [("✓ " if right else "  ") + name for name, right in labels]
            typer.echo(f"   {title:<16} " + ("\n" + " " * 20).join(marked))
