"""Train, predict, evaluate, and list recipes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.console import continues, duration, emit, progress, say, size, table, with_settings
from longtail.errors import DataError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.data.queries import Queries
    from longtail.evaluation import Evaluation
    from longtail.index import Index
    from longtail.pipeline import Estimate
    from longtail.recipe import Recipe
    from longtail.types import TopK

Run = Annotated[Path, typer.Argument(help="A model folder that `longtail train` wrote.")]
Data = Annotated[Path, typer.Option("--data", "-d", help="A data set: a folder or one file in any format.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
MANY = 20_000  # labels from which an index is worth building


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (train, predict, evaluate, recipes):
        app.command()(command)


def _start(recipe: str, published: str | None) -> Recipe:
    """Find a recipe, with the settings that are published for a data set if one is named."""
    from longtail.recipe import find_recipe
    from longtail.recipes.published import published_settings
    from longtail.records import overridden

    settings = published_settings(recipe.partition("+")[0], published) if published else {}
    return overridden(find_recipe(recipe), settings.items())


def in_words(needs: Estimate) -> str:
    """Say what a run will probably need."""
    return f"about {size(needs.memory_bytes)} of memory, {size(needs.disk_bytes)} on disk, {duration(needs.seconds)}"


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe by name; + adds augmentations: knn+gandalf.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model folder to write.")],
    *,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: --set lexical.neighbours=20.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same model; 0 if not given.")] = None,
    published: Annotated[
        str | None,
        typer.Option(help="Start from the settings that the papers print for this data set: LF-AmazonTitles-131K."),
    ] = None,
    ensemble: Annotated[
        int | None, typer.Option(min=1, help="Fit so many models with other seeds and average their scores.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the estimated memory, time and disk, and stop.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished model.")] = False,
    licence: Annotated[str, typer.Option(help="The licence of the model, for its card: CC-BY-4.0.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the estimate, or what was trained, as JSON.")] = False,
) -> None:
    """Fit a recipe to a data set and write the model folder."""
    from longtail.data.formats import load
    from longtail.pipeline import estimate, evaluate, fit, need_memory
    from longtail.training.scratch import begin, training

    more = [f"{name}={value}" for name, value in (("seed", seed), ("ensemble", ensemble)) if value is not None]
    settings = with_settings(_start(recipe, published), [*(set_ or []), *more])
    scratch = out.with_name(out.name + ".unfinished")
    if dry_run:
        with progress(f"reading {data}"):
            needs = estimate(settings, load(data).train)
        bytes_ = {"memory_bytes": needs.memory_bytes, "disk_bytes": needs.disk_bytes}
        emit(bytes_ | {"seconds": round(needs.seconds, 1)}) if json else typer.echo(in_words(needs))
        return
    with training(out, scratch, force=force):
        with progress(f"reading {data}"):
            loaded = load(data)
        if begin(scratch, {"recipe": settings.dump(), "data": loaded.train.fingerprint, "force": force}):
            say(f"continuing the unfinished run in {scratch}")
        needs = estimate(settings, loaded.train)
        need_memory(needs)
        say(in_words(needs))
        sizes = f"{counted(len(loaded.train), 'point')} and {counted(len(loaded.labels), 'label')}"
        with continues(scratch), progress(f"fitting {settings.name} to {sizes}") as step:
            model = replace(fit(settings, loaded.train, scratch=scratch, progress=step), licence=licence)
            if "validation" in loaded.splits:
                model = model.kept(evaluate(model, loaded.validation).to_dict())
        for stage in model.done:
            say(f"trained {stage}")
        if settings.trains and model.vectors is None:
            say("what was trained got no weight on held-out points and is left out; the voices by words are kept")
        model.save(out, force=force, log=scratch / "log.csv")
        if (scratch / "tensorboard").exists():
            board = out.with_name(out.name + ".tensorboard")
            shutil.copytree(scratch / "tensorboard", board, dirs_exist_ok=True)
            say(f"wrote {board}; see it with: tensorboard --logdir {board}")
    say(f"wrote {out}")
    if json:
        emit({"run": str(out), "points": model.points, "labels": len(model.labels), "done": model.facts()["done"]})
    if model.vectors is not None and len(model.labels) > MANY:
        say(f"`longtail index {out}` makes single predictions quick")


def predict(
    run: Run,
    file: Annotated[
        str, typer.Argument(help="Texts, one per line, or JSON lines with `text` and `id`; - is standard input.")
    ] = "-",
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="Labels per text.")] = 5,
    threshold: Annotated[float | None, typer.Option(help="Leave out labels with a lower score.")] = None,
    decide: Annotated[
        str | None,
        typer.Option(
            help="Leave out labels below thresholds that held-out points tuned for F1: global, bins or labels; "
            "bins:0.9 is for a precision of 0.9."
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Print calibrated probabilities as scores.")
    ] = False,
    exclude_own: Annotated[
        bool,
        typer.Option(
            "--exclude-own", help="Leave out the label under `own` of a JSON line (number or raw id): the text itself."
        ),
    ] = False,
) -> None:
    """Predict labels; prints one JSON object per line: id, labels with id, text and score."""
    from longtail.data.queries import read_queries
    from longtail.index import Index
    from longtail.labels.lookup import label_finder

    index = Index.load(run, verify=True)
    find = label_finder(index.labels) if exclude_own else None
    if decide is not None and threshold is not None:
        raise DataError("--threshold and --decide exclude each other", remedy="give one of them")
    limit = threshold if decide is None else decide
    predict_texts = partial(index.predict, k=k, threshold=limit, probabilities=probabilities)
    if file == "-":
        for queries in read_queries(sys.stdin.buffer, "standard input", find):
            _print_predictions(index, predict_texts, queries)
        return
    with Path(file).open("rb") as lines:
        for queries in read_queries(lines, file, find):
            _print_predictions(index, predict_texts, queries)


def _print_predictions(index: Index, predict_texts: Callable[..., TopK], queries: Queries) -> None:
    """Print the predictions of one block of texts."""
    import numpy as np

    from longtail.types import label_matrix

    exclude = None
    if any(own is not None for own in queries.own):
        starts = np.cumsum([0, *(own is not None for own in queries.own)])
        labels = np.array([own for own in queries.own if own is not None])
        exclude = label_matrix(starts, labels, (len(queries.own), len(index.labels)))
    top = predict_texts(queries.texts, exclude=exclude)
    for row, query_id in enumerate(queries.ids):
        emit({"id": query_id, "labels": [_label(index, *prediction) for prediction in top[row]]})


def _label(index: Index, label: int, text: str, score: float) -> dict[str, Any]:
    """Describe one predicted label."""
    raw = {} if index.labels.ids is None else {"raw_id": index.labels.ids[label]}
    return {"id": label, **raw, "text": text, "score": round(score, 6)}


def evaluate(
    run: Run,
    data: Data,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    bins: Annotated[int, typer.Option(min=1, max=20, help="Head-to-tail bins of equal volume.")] = 3,
    propensity: Annotated[
        str | None, typer.Option(help="Constants A,B instead of the data set's family: 0.55,1.5.")
    ] = None,
    reliability: Annotated[
        Path | None, typer.Option(help="Draw the calibration of the probabilities to this .svg, .png or .pdf file.")
    ] = None,
    json: Json = False,
) -> None:
    """Evaluate a model: P, nDCG, recall, PSP, PSnDCG and coverage at 1, 3, 5; head, torso, tail.

    The figures are kept with the model: in its metrics.json and its card, for `compare` and the service.
    """
    from longtail.cli.report import draw_calibration
    from longtail.data.formats import load
    from longtail.errors import ModelError
    from longtail.folder import METRICS, keep_evaluation
    from longtail.labels.propensity import Propensity
    from longtail.model import Model
    from longtail.pipeline import evaluate as measure

    constants = None
    if propensity is not None:
        try:
            a, b = (float(part) for part in propensity.split(","))
            constants = Propensity(a, b)
        except ValueError as reason:
            raise DataError(f"--propensity {propensity}: {reason}", remedy="give two numbers: 0.55,1.5") from None
    with progress(f"reading {data}"):
        loaded = load(data)
    with progress(f"evaluating on {counted(len(loaded[split]), 'point')}"):
        model = Model.load(run)
        result = measure(model, loaded[split], bins=bins, propensity=constants)
    try:
        keep_evaluation(run, model.facts(), result.to_dict())
        say(f"kept with the model: {run / METRICS}")
    except OSError as reason:  # a folder that may only be read
        say(f"not kept with the model: {reason}")
    if reliability is not None:
        if model.probabilities is None:
            raise ModelError("this model has no probabilities: no points, or too few, were held out in training")
        draw_calibration(result, reliability, title=f"{model.recipe.name} on {loaded.name}, {split}")
        say(f"wrote {reliability}")
    if json:
        emit(result.to_dict())
    else:
        show_evaluation(f"{run} on {loaded.name}, {split}", result)


def show_evaluation(title: str, result: Evaluation) -> None:
    """Print the metrics as a table with k across, and the bins below."""
    names = list(dict.fromkeys(key.split("@")[0] for key in result.values))
    ks = list(dict.fromkeys(key.split("@")[1] for key in result.values))
    rows = [(name, *(result.values[f"{name}@{k}"] for k in ks)) for name in names]
    constants = f"PSP with propensity constants A = {result.propensity.a}, B = {result.propensity.b}"
    table(title, ("metric, %", *(f"@{k}" for k in ks)), rows, note=constants)
    rows = [(b.name, f"{b.labels:,}", b.frequency, *b.contribution.values(), *b.recall.values()) for b in result.bins]
    heads = [f"P@{k}" for k in ks] + [f"R@{k}" for k in ks]
    note = "P: what the bin adds to P@k. R: how much of the bin's own labels is found."
    table("Head to tail, bins of equal volume", ("bin", "labels", "points each", *heads), rows, note=note)


def recipes(
    published: Annotated[bool, typer.Option("--published", help="List the scores that the papers print.")] = False,
    json: Json = False,
) -> None:
    """List the recipes and the augmentations that can follow a +, or what the papers print for them."""
    from longtail.recipe import RECIPES, augmentations, find_recipe, summary

    if published:
        from longtail.recipes.published import published_scores

        scores = published_scores()
        if json:
            emit([{"model": one.recipe, "data": one.data, "source": one.source, **one.metrics} for one in scores])
            return
        metrics = tuple(scores[0].metrics)
        lines = [
            (one.data, one.recipe, *(f"{one.metrics[name]:.2f}" for name in metrics), one.source) for one in scores
        ]
        table(
            "Scores in the papers", ("data", "recipe", *metrics, "where"), lines,
            note="settings: longtail train RECIPE --published DATA; mind ensembles and misprints (published.toml)",
        )  # fmt: skip
        return

    by_name = {name: find_recipe(name) for name in RECIPES}
    if json:
        emit({"recipes": {name: value.dump() for name, value in by_name.items()}, "augmentations": augmentations()})
        return
    rows = [(name, summary(name)) for name in by_name]
    table("Recipes", ("name", "what it is"), rows, note="add with +: " + ", ".join(augmentations()))
