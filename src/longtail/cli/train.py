"""`longtail train`: fit a recipe to data, or go on from a model with more points."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli import auto
from longtail.cli.console import continues, duration, emit, hush, progress, say, size, table, with_settings
from longtail.cli.launch import Launcher, launch
from longtail.cli.models import Data
from longtail.cli.options import Source, reads_data
from longtail.errors import RecipeError
from longtail.shards import joined, local_size, started
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.auto.portfolio import Auto
    from longtail.data.dataset import Split
    from longtail.estimates import Estimate
    from longtail.index import Index
    from longtail.model import Model
    from longtail.recipe import Recipe
    from longtail.shards import Group

MANY = 20_000  # labels from which an index is worth building
REPLAYED = 1000  # points of an earlier model that show what was forgotten


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(train)


def _start(recipe: str | None, published: str | None, before: Index | None) -> Recipe:
    """Find a recipe, with the settings that are published for a data set if one is named, or that of a model."""
    from longtail.recipe import find_recipe, recipe_of
    from longtail.recipes.published import published_settings
    from longtail.records import overridden

    if recipe is None and before is not None:
        asked = before.model.asked
        return recipe_of(asked) if asked else replace(before.model.recipe, blend=None)
    if recipe is None:
        raise typer.BadParameter("give one, such as knn or frugal: `longtail recipes` lists them", param_hint="RECIPE")
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
        str | None,
        typer.Argument(
            help="A recipe by name; + adds augmentations: knn+gandalf. auto chooses one within --budget. "
            "That of --continue-from if none."
        ),
    ] = None,
    *,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model folder to write.")],
    continue_from: Annotated[
        Path | None,
        typer.Option(help="Go on from this model: --data has new points, also with new labels; its own are replayed."),
    ] = None,
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
    processes: Annotated[
        int,
        typer.Option(min=1, help="Share the labels among so many processes, each of which has its own rows of them."),
    ] = 1,
    launcher: Annotated[
        Launcher, typer.Option(help="Who starts the processes: this command on this machine, or a Ray cluster.")
    ] = Launcher.local,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished model.")] = False,
    licence: Annotated[str, typer.Option(help="The licence of the model, for its card: CC-BY-4.0.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the estimate, or what was trained, as JSON.")] = False,
    source: Source,
) -> None:
    """Fit a recipe to a data set and write the model folder."""
    from longtail.auto.portfolio import Auto
    from longtail.continuing import continued_points
    from longtail.folder import answers_by, read_config
    from longtail.index import Index
    from longtail.pipeline import evaluate, fit
    from longtail.training.scratch import begin, training

    if processes > 1 and not dry_run and not started():
        raise typer.Exit(launch(processes, launcher.value))
    began = time.monotonic()
    before = None if continue_from is None else Index.load(continue_from, verify=True)
    more = [f"{name}={value}" for name, value in (("seed", seed), ("ensemble", ensemble)) if value is not None]
    settings = _asked(recipe, published, budget, before, [*(set_ or []), *more])
    scratch = out.with_name(out.name + ".unfinished")
    with (
        joined() as group,
        hush(not group.first),
        training(out, scratch, force=force) if group.first and not dry_run else nullcontext(),
    ):
        loaded = source.load(data, summary=True)
        points, heldout = (loaded.train, None) if holdout is None else loaded.train.divide(holdout, seed=settings.seed)
        grown = None if before is None else replace(before.model, labels=before.labels)
        whole = points if grown is None else continued_points(grown, points)
        if isinstance(settings, Auto):
            settings = replace(settings, spent=time.monotonic() - began)
        if dry_run:
            _show_needs(settings, whole, max(processes, group.size), json=json)
            return
        earlier = None if continue_from is None else answers_by(read_config(continue_from))
        run = {"recipe": settings.dump(), "data": whole.fingerprint, "earlier": earlier, "force": force}
        if group.first and begin(scratch, run):
            say(f"continuing the unfinished run in {scratch}")
        _check_needs(settings, whole, group)
        group.wait()  # the folder of the run is there
        sizes = f"{counted(len(whole), 'point')} and {counted(len(whole.labels), 'label')}"
        with continues(scratch), progress(f"fitting {settings.name} to {sizes}") as step:
            model = fit(settings, points, scratch=scratch, progress=step, continue_from=grown)
            if not group.first:
                return
            model = replace(model, licence=licence)
            measured = heldout if heldout is not None else loaded.splits.get("validation")
            if measured is not None:
                model = model.kept(evaluate(model, measured).to_dict())
        _say_trained(settings, model, table=not json)
        model.save(out, force=force, log=scratch / "log.csv")
        if heldout is not None:
            _say_held_out(model, len(whole), len(heldout))
        _keep_board(scratch, out)
    if before is not None and before.removed:  # they stay so
        Index.load(out).remove(sorted(before.removed))
    if before is not None and not json:
        _show_changes(before, model, measured if measured is not None else loaded.splits.get("test"))
    _say_written(model, out, json=json)


def _say_held_out(model: Model, trained: int, heldout: int) -> None:
    """Say how good the model is on points that were held out."""
    figures = ", ".join(f"{name} {model.metrics[name]:.2f}" for name in ("P@1", "P@3", "P@5", "R@5", "PSP@5"))
    say(f"trained on {counted(trained, 'point')}, evaluated on {heldout:,} held out: {figures} (%)")


def _say_written(model: Model, out: Path, *, json: bool) -> None:
    """Say where the model is."""
    say(f"wrote {out}")
    if json:
        facts = {name: value for name, value in model.facts().items() if name in ("done", "trials")}
        emit({"run": str(out), "points": model.points, "labels": len(model.labels), **facts})
    if model.vectors is not None and len(model.labels) > MANY:
        say(f"`longtail index {out}` makes single predictions quick")


def _asked(
    recipe: str | None, published: str | None, budget: str | None, before: Index | None, settings: Sequence[str]
) -> Recipe | Auto:
    """Read which recipe is asked for, or that it is to be chosen."""
    if recipe == "auto":
        if before is not None:
            raise RecipeError("auto begins anew; leave --continue-from out, or name a recipe")
        return auto.asked(budget, published, settings)
    if budget is not None:
        raise RecipeError(f"--budget is for auto; {recipe or 'a recipe'} takes the time that it takes")
    settled = with_settings(_start(recipe, published, before), settings)
    settled.check()
    return settled


def _show_needs(settings: Recipe | Auto, points: Split, processes: int, *, json: bool) -> None:
    """Print what a run will probably need."""
    from longtail.auto.portfolio import Auto
    from longtail.estimates import available, enough_processes, estimate

    if isinstance(settings, Auto):
        auto.show_plan(settings, points, json=json)
        return
    needs = estimate(settings, points, processes=processes)
    free = available()
    enough = None if free is None else enough_processes(settings, points, free)
    if json:
        facts = {"memory_bytes": needs.memory_bytes, "disk_bytes": needs.disk_bytes, "seconds": round(needs.seconds, 1)}
        more = {"processes": processes, "sent_bytes_per_step": needs.sent_bytes, "free_bytes": free}
        emit(facts | more | {"enough_processes": enough})
        return
    typer.echo(in_words(needs))
    if processes > 1:
        typer.echo(f"each of {processes} processes, which sends about {size(needs.sent_bytes)} in a step")
    if free is not None and enough != 1:
        typer.echo(_advice(size(free), enough))


def _advice(free: str, enough: int | None) -> str:
    """Say what to do where one machine is not enough."""
    smaller = "--set training.optimizer=adagrad takes a third of the memory of label rows"
    if enough is None:
        return f"machines with {free} free, as this one, are too small, however many; {smaller}, and linear needs less"
    return (
        f"one machine with {free} free, as this one, is not enough, and {enough} are: --processes {enough}, a machine "
        f"each (docs/scaling.md); {smaller}"
    )


def _check_needs(settings: Recipe | Auto, points: Split, group: Group) -> None:
    """Say what a run will probably need, and refuse what the memory cannot hold."""
    from longtail.auto.portfolio import Auto
    from longtail.estimates import estimate, need_memory

    if isinstance(settings, Auto):
        if not group.alone:
            raise RecipeError("auto tries recipes in one process; leave --processes out, or name a recipe")
        say(f"trials and fit within {duration(settings.budget)}")
        return
    need_memory(needs := estimate(settings, points, processes=group.size), processes=local_size())
    say(in_words(needs) if group.alone else f"each of {group.size} processes: {in_words(needs)}")


def _say_trained(settings: Recipe | Auto, model: Model, *, table: bool) -> None:
    """Say what each stage did, and whether it is used; print what was tried."""
    from longtail.recipe import Recipe

    if model.trials and table:
        auto.show_choice(model)
    for stage in model.done:
        say(f"trained {stage}")
    if isinstance(settings, Recipe) and settings.trains and model.vectors is None:
        say("what was trained got no weight on held-out points and is left out; the voices by words are kept")


def _show_changes(before: Index, after: Model, points: Split | None) -> None:
    """Show what more points changed: sizes, and figures on points that are new to both, or known to both."""
    from longtail.comparison import DIFFERENCES
    from longtail.continuing import some_points, unseen
    from longtail.pipeline import compare

    model = before.model
    rows = [("points", model.points, after.points), ("labels", len(before.labels), len(after.labels))]
    table("What changed", ("", "before", "after"), [(name, f"{one:,}", f"{two:,}") for name, one, two in rows])
    replayed = some_points(model, after.labels, REPLAYED)
    fresh = None if points is None else unseen(model, points)
    for split, what in ((fresh, "that neither was trained on"), (replayed, "that both were trained on")):
        if split is None or len(split) == 0:
            continue
        (pair,) = compare({"before": model, "after": after}, split).pairs
        note = "paired bootstrap over points; certain: the interval leaves zero out"
        table(f"{counted(len(split), 'point')} {what}", DIFFERENCES, pair.rows(), note=note)


def _keep_board(scratch: Path, out: Path) -> None:
    """Copy TensorBoard's curves beside the model."""
    if (scratch / "tensorboard").exists():
        board = out.with_name(out.name + ".tensorboard")
        shutil.copytree(scratch / "tensorboard", board, dirs_exist_ok=True)
        say(f"wrote {board}; see it with: tensorboard --logdir {board}")
