"""Predict, evaluate, and list recipes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longtail.cli.batch import Address, AnEngine, Files, Machines, Workers, predict_many
from longtail.cli.console import continues, emit, progress, say, table
from longtail.cli.options import ChosenSplit, From, Source, Text, Trusted, matched_points, open_rows, reads_data
from longtail.errors import DataError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.data.dataset import Labels
    from longtail.data.queries import Feed, Queries
    from longtail.evaluation import Evaluation
    from longtail.types import TopK

Run = Annotated[Path, typer.Argument(help="A model folder that `longtail train` wrote.")]
Data = Annotated[Path, typer.Option("--data", "-d", help="A data set: a folder or one file in any format.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (predict, evaluate, recipes):
        app.command()(command)


def predict(
    run: Run,
    file: Annotated[
        str,
        typer.Argument(
            help="A table in any format (CSV, Excel, Parquet, JSON lines …), or one text per line; - is standard "
            "input. Many such files: a pattern ('texts/*.parquet'), or an address (s3://bucket/texts)."
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
    level: Annotated[
        int | None,
        typer.Option(min=1, help="Roll labels up to this level of their vocabulary: 1 has the broadest ones."),
    ] = None,
    *,
    text: Text = None,
    from_: From = None,
    split: ChosenSplit = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="Write .jsonl, .csv, .tsv or .parquet; a name without an ending is a folder of such files.",
        ),
    ] = None,
    format: Annotated[
        Literal["jsonl", "csv", "tsv", "parquet"] | None, typer.Option("--format", "-f", help="The files of a folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out, or begin anew.")] = False,
    engine: AnEngine = None,
    workers: Workers = None,
    address: Address = None,
    trusted_keys: Trusted = None,
) -> None:
    """Predict labels for every row: its columns come back with `labels`, as JSON lines or in the file --out.

    The same command continues a run with --out that was stopped. Many files are predicted by many workers, on an
    --engine: one file of answers in the folder --out for each of them.
    """
    from longtail.answering import PredictSettings
    from longtail.answers import Target, identity, write_answers
    from longtail.engines.places import is_many
    from longtail.folder import answers_by, read_config
    from longtail.index import Index
    from longtail.labels.journal import FILE

    if decide is not None and threshold is not None:
        raise DataError("--threshold and --decide exclude each other", remedy="give one of them")
    limit = threshold if decide is None else decide
    settings = PredictSettings(k, limit, probabilities, exclude_own, level)
    if engine is not None or is_many(file):
        machines = Machines(engine or "local", workers, address)
        predict_many(run, file, out, settings, machines, Files(text, from_, format, force, trusted_keys))
        return
    target = None if out is None else Target.of(Path(out), format)
    if target is not None:
        target.check(force)
    index = Index.load(run, verify=True, trusted=trusted_keys)

    answer = settings.answer(index)
    with open_rows(file, text, from_, split, settings.find(index), index.model.columns) as feed:
        if feed.note:
            say(feed.note)
        if target is None:
            _print_answers(feed, answer, index.labels)
            return
        job = identity(feed.path, answers_by(read_config(run)), run / FILE)
        job["settings"] = [k, limit, probabilities, exclude_own, text, from_, split, level]
        with continues(target.scratch), progress(f"predicting {file}") as step:
            rows = write_answers(feed, answer, index.labels, target, job, force=force, progress=step)
    say(f"wrote {target.out}: {counted(rows, 'row')}")


def _print_answers(feed: Feed, answer: Callable[[Queries], TopK], labels: Labels) -> None:
    """Print a JSON line for each row; progress of a file is shown where the lines do not go to a terminal."""
    from longtail.answers import json_lines, no_texts

    quiet = feed.path is None or sys.stdout.isatty()
    done = 0
    with nullcontext() if quiet else progress(f"predicting {feed.path}") as step:
        for queries in feed.blocks:
            sys.stdout.writelines(json_lines(queries, answer(queries), labels))
            sys.stdout.flush()
            done += len(queries)
            if step is not None:
                step(counted(done, "row"), feed.position(), feed.total)
    if not done:
        raise no_texts(feed)


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
    trusted_keys: Trusted = None,
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
    from longtail.probabilities import LEAST

    constants = None
    if propensity is not None:
        try:
            a, b = (float(part) for part in propensity.split(","))
            constants = Propensity(a, b)
        except ValueError as reason:
            raise DataError(f"--propensity {propensity}: {reason}", remedy="give two numbers: 0.55,1.5") from None
    model = Model.load(run, trusted=trusted_keys)
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
            raise ModelError(f"this model has no probabilities: {model.evidence.lack('prediction', LEAST)}")
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
