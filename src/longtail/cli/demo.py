"""`longtail demo`: everything end to end, on real data that is built from installed packages."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli.console import progress, say, table
from longtail.cli.models import draw_probabilities
from longtail.errors import MissingExtra

if TYPE_CHECKING:
    from longtail.data.dataset import Dataset
    from longtail.metrics import Evaluation
    from longtail.model import Model

METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "Cov@5")
BINS = "how much of their labels is among the first five"
Examples = list[tuple[str, list[list[tuple[str, bool]]]]]  # text, and (label, is it right) of each model


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

        serve_models(out / "frugal", out / "frugal-plain", port=port)


def _demo(out: Path, k: int) -> None:
    """Fit and evaluate the demo models, show and report their predictions."""
    from longtail.cli.data import show
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
        with progress(f"fitting {name}") as step, tempfile.TemporaryDirectory() as scratch:
            models[name] = fit(recipe, data.train, scratch=Path(scratch), progress=step)
            results[name] = evaluate(models[name], data.test)
            losses[name] = read_curve(Path(scratch) / "log.csv")
        models[name] = models[name].kept(results[name].to_dict())
        models[name].save(out / name, force=True)
    heads = ("test, %", *METRICS, "head", "torso", "tail")
    rows = [
        (name, *(result.values[metric] for metric in METRICS), *_recalls(result)) for name, result in results.items()
    ]
    note = f"frugal-plain is frugal without Gandalf. head, torso, tail: {BINS}."
    table("See Also of Python objects", heads, rows, note=note)
    pair = {"without Gandalf": "frugal-plain", "with Gandalf": "frugal"}
    predictions = examples({title: models[name] for title, name in pair.items()}, data, k)
    _print_examples(predictions, list(pair))
    curves = {title: losses[name] for title, name in pair.items() if losses[name]}
    try:
        write_report(
            out / "report.html",
            data,
            results,
            predictions,
            curves,
            partial(draw_probabilities, models["frugal"], data.test),
        )
        say(f"wrote {out / 'report.html'}")
    except MissingExtra as reason:
        say(f"no report: {reason}")
    say(f"wrote models to {out}; try: echo 'sort a table by a column' | longtail predict {out / 'frugal'}")
    say("open the page to try them side by side: .venv/bin/longtail demo --serve, then http://127.0.0.1:8000")


def _recalls(result: Evaluation) -> list[float]:
    """Return how much of the labels of each bin is among the first five."""
    return [part.recall[5] for part in result.bins]


def examples(models: dict[str, Model], data: Dataset, k: int, count: int = 10) -> Examples:
    """Predict some test points with each model, and mark the labels that are right."""
    import numpy as np

    rows = np.random.default_rng(7).permutation(len(data.test))[:count]
    sample = data.test.take(np.sort(rows))
    names, texts = data.labels.ids or data.labels.texts, sample.ids or sample.texts
    if names is None or texts is None:
        return []
    tops = [model.predict_split(sample, k) for model in models.values()]
    out: Examples = []
    for row, point in enumerate(texts):
        truth = set(sample.targets[[row]].indices.tolist())
        out.append((point, [[(names[label], label in truth) for label, _, _ in top[row]] for top in tops]))
    return out


def _print_examples(predictions: Examples, titles: list[str]) -> None:
    """Print predictions one below the other."""
    typer.echo(f"\n{len(predictions)} test points: what 'See Also' says (✓ the authors wrote it too)")
    for point, lists in predictions:
        typer.echo(f"\n{point}")
        for title, labels in zip(titles, lists, strict=True):
            marked = [("✓ " if right else "  ") + name for name, right in labels]
            typer.echo(f"   {title:<16} " + ("\n" + " " * 20).join(marked))


def write_report(
    path: Path,
    data: Dataset,
    results: dict[str, Evaluation],
    predictions: Examples,
    curves: dict[str, list[float]],
    draw_calibration: Callable[[Path], None] | None = None,
) -> None:
    """Write the results as one HTML page with pictures."""
    from longtail.labels.propensity import frequencies
    from longtail.page import Page
    from longtail.report import draw_curves, draw_frequencies, draw_groups

    page = Page("longtail: See Also of Python objects")
    page.words(
        "For the name and the summary of a Python object, find the objects that its docs refer to under See Also. "
        f"{len(data.train):,} training points, {len(data.test):,} test points and {len(data.labels):,} labels, read "
        "from the packages that are installed here."
    )
    page.heading("How good")
    rows = [(name, *(result.values[metric] for metric in METRICS)) for name, result in results.items()]
    page.table(("test points, %", *METRICS), rows)
    page.words("frugal-plain is frugal without Gandalf. PSP counts rare labels more; Cov is the share of labels found.")
    plain, gandalf = results["frugal-plain"], results["frugal"]
    recalls = {"without Gandalf": _recalls(plain), "with Gandalf": _recalls(gandalf)}
    groups = [f"{part.name}\n{part.labels:,} labels" for part in gandalf.bins]
    drawings: dict[str, Callable[[Path], None]] = {
        f"Head, torso and tail hold about equally many pairs: {BINS}.": partial(
            draw_groups, groups, recalls, title="Who gains from Gandalf", unit="recall at 5, %"
        ),
        "The long tail: how many training points each label has.": partial(
            draw_frequencies, frequencies(data.train.targets), title="Label frequencies"
        ),
    }
    if curves:
        drawings["The mean loss of each epoch; with Gandalf there are more points and soft targets."] = partial(
            draw_curves, curves, title="Training", unit="loss"
        )
    if draw_calibration is not None:
        drawings["Probabilities: of the labels that got one, how many were right."] = draw_calibration
    page.heading("Pictures")
    page.pictures(drawings)
    page.heading("Ten predictions")
    page.words("✓ the authors wrote it too.")
    page.examples(("object", "without Gandalf", "with Gandalf"), predictions)
    page.write(path)
