"""Train, predict, evaluate, and list recipes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longtail.cli import auto
from longtail.cli.console import continues, duration, emit, progress, say, size, table, with_settings
from longtail.cli.options import ChosenSplit, From, Source, Text, matched_points, open_rows, reads_data
from longtail.errors import DataError, RecipeError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.auto.portfolio import Auto
    from longtail.data.dataset import Labels, Split
    from longtail.data.queries import Feed, Queries
    from longtail.evaluation import Evaluation
    from longtail.model import Model
    from longtail.pipeline import Estimate
    from longtail.recipe import Recipe
    from longtail.types import LabelMatrix, TopK

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


def _share(share: float | None) -> float | None:
    """Refuse a share outside 0 < share ≤ 0.9; nan fails the comparison too."""
    if share is not None and not 0 < share <= 0.9:
        raise typer.BadParameter(f"{share} is not more than 0 and at most 0.9")
    return share


@reads_data
def train(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe by name; + adds augmentations: knn+gandalf. auto chooses one within --budget."),
    ],
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
    holdout: Annotated[
        float | None,
        typer.Option(help="Keep this share of the points out of training and evaluate on them: 0.1.", callback=_share),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="The time that auto has for trials and fit together: 60s, 2m, 1h.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the estimated memory, time and disk, and stop.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished model.")] = False,
    licence: Annotated[str, typer.Option(help="The licence of the model, for its card: CC-BY-4.0.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the estimate, or what was trained, as JSON.")] = False,
    source: Source,
) -> None:
    """Fit a recipe to a data set and write the model folder."""
    from longtail.auto.portfolio import Auto
    from longtail.pipeline import evaluate, fit
    from longtail.training.scratch import begin, training

    began = time.monotonic()
    more = [f"{name}={value}" for name, value in (("seed", seed), ("ensemble", ensemble)) if value is not None]
    settings = _asked(recipe, published, budget, [*(set_ or []), *more])
    scratch = out.with_name(out.name + ".unfinished")
    with nullcontext() if dry_run else training(out, scratch, force=force):
        loaded = source.load(data, summary=True)
        points, heldout = (loaded.train, None) if holdout is None else loaded.train.divide(holdout, seed=settings.seed)
        if isinstance(settings, Auto):
            settings = replace(settings, spent=time.monotonic() - began)
        if dry_run:
            _show_needs(settings, points, json=json)
            return
        if begin(scratch, {"recipe": settings.dump(), "data": points.fingerprint, "force": force}):
            say(f"continuing the unfinished run in {scratch}")
        _check_needs(settings, points)
        sizes = f"{counted(len(points), 'point')} and {counted(len(loaded.labels), 'label')}"
        with continues(scratch), progress(f"fitting {settings.name} to {sizes}") as step:
            model = replace(fit(settings, points, scratch=scratch, progress=step), licence=licence)
            measured = heldout if heldout is not None else loaded.splits.get("validation")
            if measured is not None:
                model = model.kept(evaluate(model, measured).to_dict())
        _say_trained(settings, model, table=not json)
        model.save(out, force=force, log=scratch / "log.csv")
        if heldout is not None:
            figures = ", ".join(f"{name} {model.metrics[name]:.2f}" for name in ("P@1", "P@3", "P@5", "R@5", "PSP@5"))
            say(f"trained on {counted(len(points), 'point')}, evaluated on {len(heldout):,} held out: {figures} (%)")
        _keep_board(scratch, out)
    say(f"wrote {out}")
    if json:
        facts = {name: value for name, value in model.facts().items() if name in ("done", "trials")}
        emit({"run": str(out), "points": model.points, "labels": len(model.labels), **facts})
    if model.vectors is not None and len(model.labels) > MANY:
        say(f"`longtail index {out}` makes single predictions quick")


def _asked(recipe: str, published: str | None, budget: str | None, settings: Sequence[str]) -> Recipe | Auto:
    """Read which recipe is asked for, or that it is to be chosen."""
    if recipe == "auto":
        return auto.asked(budget, published, settings)
    if budget is not None:
        raise RecipeError(f"--budget is for auto; {recipe} takes the time that it takes")
    return with_settings(_start(recipe, published), settings)


def _show_needs(settings: Recipe | Auto, points: Split, *, json: bool) -> None:
    """Print what a run will probably need."""
    from longtail.auto.portfolio import Auto
    from longtail.pipeline import estimate

    if isinstance(settings, Auto):
        auto.show_plan(settings, points, json=json)
        return
    needs = estimate(settings, points)
    bytes_ = {"memory_bytes": needs.memory_bytes, "disk_bytes": needs.disk_bytes}
    emit(bytes_ | {"seconds": round(needs.seconds, 1)}) if json else typer.echo(in_words(needs))


def _check_needs(settings: Recipe | Auto, points: Split) -> None:
    """Say what a run will probably need, and refuse what the memory cannot hold."""
    from longtail.auto.portfolio import Auto
    from longtail.pipeline import estimate, need_memory

    if isinstance(settings, Auto):
        say(f"trials and fit within {duration(settings.budget)}")
        return
    need_memory(needs := estimate(settings, points))
    say(in_words(needs))


def _say_trained(settings: Recipe | Auto, model: Model, *, table: bool) -> None:
    """Say what each stage did, and whether it is used; print what was tried."""
    from longtail.recipe import Recipe

    if model.trials and table:
        auto.show_choice(model)
    for stage in model.done:
        say(f"trained {stage}")
    if isinstance(settings, Recipe) and settings.trains and model.vectors is None:
        say("what was trained got no weight on held-out points and is left out; the voices by words are kept")


def _keep_board(scratch: Path, out: Path) -> None:
    """Copy TensorBoard's curves beside the model."""
    if (scratch / "tensorboard").exists():
        board = out.with_name(out.name + ".tensorboard")
        shutil.copytree(scratch / "tensorboard", board, dirs_exist_ok=True)
        say(f"wrote {board}; see it with: tensorboard --logdir {board}")


def predict(
    run: Run,
    file: Annotated[
        str,
        typer.Argument(
            help="A table in any format (CSV, Excel, Parquet, JSON lines …), or one text per line; - is standard input."
        ),
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
            "--exclude-own", help="Leave out the label in the column `own` (number or raw id): the text itself."
        ),
    ] = False,
    *,
    text: Text = None,
    from_: From = None,
    split: ChosenSplit = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write .jsonl, .csv or .parquet; any other name is a folder of such files."),
    ] = None,
    format: Annotated[
        Literal["jsonl", "csv", "parquet"] | None, typer.Option("--format", "-f", help="The files of a folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out, or begin anew.")] = False,
) -> None:
    """Predict labels for every row: its columns come back with `labels`, as JSON lines or in the file --out.

    The same command continues a run with --out that was stopped.
    """
    from longtail.answers import Target, identity, write_answers
    from longtail.folder import answers_by
    from longtail.index import Index
    from longtail.labels.journal import FILE
    from longtail.labels.lookup import label_finder

    if decide is not None and threshold is not None:
        raise DataError("--threshold and --decide exclude each other", remedy="give one of them")
    limit = threshold if decide is None else decide
    target = None if out is None else Target.of(out, format)
    if target is not None:
        target.check(force)
    index = Index.load(run, verify=True)

    def answer(queries: Queries) -> TopK:
        exclude = _own_labels(queries, len(index.labels))
        return index.predict(queries.texts, k=k, threshold=limit, probabilities=probabilities, exclude=exclude)

    find = label_finder(index.labels) if exclude_own else None
    with open_rows(file, text, from_, split, find, index.model.columns) as feed:
        if feed.note:
            say(feed.note)
        if target is None:
            _print_answers(feed, answer, index.labels)
            return
        job = identity(feed.path, answers_by(run), run / FILE)
        job["settings"] = [k, limit, probabilities, exclude_own, text, from_, split]
        with continues(target.scratch), progress(f"predicting {file}") as step:
            rows = write_answers(feed, answer, index.labels, target, job, force=force, progress=step)
    say(f"wrote {target.out}: {counted(rows, 'row')}")


def _print_answers(feed: Feed, answer: Callable[[Queries], TopK], labels: Labels) -> None:
    """Print a JSON line for each row; progress of a file is shown where the lines do not go to a terminal."""
    from longtail.answers import json_lines

    quiet = feed.path is None or sys.stdout.isatty()
    done = 0
    with nullcontext() if quiet else progress(f"predicting {feed.path}") as step:
        for queries in feed.blocks:
            sys.stdout.writelines(json_lines(queries, answer(queries), labels))
            sys.stdout.flush()
            done += len(queries)
            if step is not None:
                step(f"{done:,} rows", feed.position(), feed.total)


def _own_labels(queries: Queries, labels: int) -> LabelMatrix | None:
    """Return the labels that texts themselves are, as a matrix."""
    import numpy as np

    from longtail.types import label_matrix

    if all(own is None for own in queries.own):
        return None
    starts = np.cumsum([0, *(own is not None for own in queries.own)])
    return label_matrix(starts, np.array([own for own in queries.own if own is not None]), (len(queries), labels))


@reads_data
def evaluate(
    run: Run,
    data: Data,
    *,
    split: ChosenSplit = None,
    bins: Annotated[int, typer.Option(min=1, max=20, help="Head-to-tail bins of equal volume.")] = 3,
    propensity: Annotated[
        str | None, typer.Option(help="Constants A,B instead of the data set's family: 0.55,1.5.")
    ] = None,
    reliability: Annotated[
        Path | None, typer.Option(help="Draw the calibration of the probabilities to this .svg, .png or .pdf file.")
    ] = None,
    json: Json = False,
    source: Source,
) -> None:
    """Evaluate a model: P, nDCG, recall, PSP, PSnDCG and coverage at 1, 3, 5; head, torso, tail.

    The figures are kept with the model: in its metrics.json and its card, for `compare` and the service.
    """
    from longtail.cli.report import draw_calibration
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
    model = Model.load(run)
    points = matched_points(source.load(data), split, model)
    with progress(f"evaluating on {counted(len(points), 'point')}"):
        result = measure(model, points, bins=bins, propensity=constants)
    try:
        keep_evaluation(run, model.facts(), result.to_dict())
        say(f"kept with the model: {run / METRICS}")
    except OSError as reason:  # a folder that may only be read
        say(f"not kept with the model: {reason}")
    if reliability is not None:
        if model.probabilities is None:
            raise ModelError("this model has no probabilities: no points, or too few, were held out in training")
        draw_calibration(result, reliability, title=f"{model.recipe.name} on {points.dataset}, {points.name}")
        say(f"wrote {reliability}")
    if json:
        emit(result.to_dict())
    else:
        show_evaluation(f"{run} on {points.dataset}, {points.name}", result)


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
    note = f"add with +: {', '.join(augmentations())}; auto chooses among some of them by trials: --budget 60s"
    table("Recipes", ("name", "what it is"), rows, note=note)
