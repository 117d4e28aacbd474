"""Train, predict, evaluate, list recipes, and the demo."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.console import emit, progress, say, size, table, with_settings
from longtail.errors import DataError

if TYPE_CHECKING:
    from longtail.data.dataset import Dataset
    from longtail.metrics import Evaluation
    from longtail.model import Model

Run = Annotated[Path, typer.Argument(help="A model folder that `longtail train` wrote.")]
Data = Annotated[Path, typer.Option("--data", "-d", help="A data set: a folder or one file in any format.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (demo, train, predict, evaluate, recipes):
        app.command()(command)


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe by name; + adds augmentations: knn+gandalf.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model folder to write.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: --set lexical.neighbours=20.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same model; 0 if not given.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the estimated memory, time and disk, and stop.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished model.")] = False,
) -> None:
    """Fit a recipe to a data set and write the model folder."""
    from longtail.data.formats import load
    from longtail.pipeline import estimate, evaluate, fit, need_memory
    from longtail.recipe import find_recipe

    settings = with_settings(find_recipe(recipe), [*(set_ or []), *([] if seed is None else [f"seed={seed}"])])
    if (out / "config.json").exists() and not force and not dry_run:
        raise DataError(
            "a finished model is here", file=out, remedy="pass --force to replace it, or choose another --out"
        )
    with progress(f"reading {data}"):
        loaded = load(data)
    needs = estimate(settings, loaded.train)
    if dry_run:
        emit({"memory_bytes": needs.memory_bytes, "disk_bytes": needs.disk_bytes, "seconds": round(needs.seconds, 1)})
        return
    need_memory(needs)
    say(f"about {size(needs.memory_bytes)} of memory, {size(needs.disk_bytes)} on disk, {needs.seconds:.0f} s")
    scratch = out.with_name(out.name + ".unfinished")
    if force:
        shutil.rmtree(scratch, ignore_errors=True)
    elif scratch.exists():
        say(f"continuing the unfinished run in {scratch}")
    with progress(f"fitting {settings.name} to {len(loaded.train):,} points and {len(loaded.labels):,} labels") as step:
        model = fit(settings, loaded.train, scratch=scratch, progress=step)
        if "validation" in loaded.splits:
            model.metrics.update(evaluate(model, loaded.validation).to_dict())
    model.save(out, force=force)
    shutil.rmtree(scratch, ignore_errors=True)
    say(f"wrote {out}")


def predict(
    run: Run,
    file: Annotated[
        str, typer.Argument(help="Texts, one a line, or JSON lines with `text` and `id`; - is standard input.")
    ] = "-",
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="Labels per text.")] = 5,
) -> None:
    """Predict labels; one JSON object a line: id, labels with id, text and score."""
    from longtail.data.queries import read_queries
    from longtail.model import Model

    model = Model.load(run)
    if file == "-":
        for ids, texts in read_queries(sys.stdin.buffer, "standard input"):
            _print_predictions(model, ids, texts, k)
        return
    with Path(file).open("rb") as lines:
        for ids, texts in read_queries(lines, file):
            _print_predictions(model, ids, texts, k)


def _print_predictions(model: Model, ids: list[Any], texts: list[str], k: int) -> None:
    """Print the predictions of one block of texts."""
    top = model.predict(texts, k)
    for row, own in enumerate(ids):
        emit({"id": own, "labels": [_label(model, *found) for found in top[row]]})


def _label(model: Model, label: int, text: str, score: float) -> dict[str, Any]:
    """Describe one predicted label."""
    raw = {} if model.labels.ids is None else {"raw_id": model.labels.ids[label]}
    return {"id": label, **raw, "text": text, "score": round(score, 6)}


def evaluate(
    run: Run,
    data: Data,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    bins: Annotated[int, typer.Option(min=1, max=20, help="Head-to-tail bins of equal volume.")] = 3,
    propensity: Annotated[
        str | None, typer.Option(help="Constants A,B instead of the data set's family: 0.55,1.5.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure a model: P, nDCG, recall, PSP, PSnDCG and coverage at 1, 3, 5; head, torso, tail."""
    from longtail.data.formats import load
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
    with progress(f"evaluating on {len(loaded[split]):,} points"):
        result = measure(Model.load(run), loaded[split], bins=bins, propensity=constants)
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


def recipes(json: Json = False) -> None:
    """List the recipes and the augmentations that can follow a +."""
    from longtail.recipe import RECIPES, augmentations, find_recipe

    found = {name: find_recipe(name) for name in RECIPES}
    if json:
        emit({"recipes": {name: value.dump() for name, value in found.items()}, "augmentations": augmentations()})
        return
    import importlib

    rows = []
    for name in found:
        described = importlib.import_module(RECIPES[name].partition(":")[0]).__doc__ or ""
        rows.append((name, described.splitlines()[0]))
    table("Recipes", ("name", "what it is"), rows, note="add with +: " + ", ".join(augmentations()))


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the demo models go.")] = Path("demo"),
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=20, help="Labels per example.")] = 5,
) -> None:
    """Build real data from the installed Python packages, fit models, measure them and show predictions."""
    from longtail.cli.data import show
    from longtail.data.demo import demo_dataset
    from longtail.data.statistics import describe
    from longtail.pipeline import evaluate, fit
    from longtail.recipe import find_recipe

    with progress("reading the docs of the installed packages") as step:
        data = demo_dataset(progress=step)
    show(data, describe(data))
    frugal = find_recipe("frugal")
    recipes = {"knn": find_recipe("knn"), "frugal-plain": frugal.override("augment", []), "frugal": frugal}
    models, rows = {}, []
    for name, recipe in recipes.items():
        with progress(f"fitting {name}") as step:
            models[name] = fit(recipe, data.train, progress=step)
            result = evaluate(models[name], data.test)
        models[name].metrics.update(result.to_dict())
        models[name].save(out / name, force=True)
        tail = [entry.recall[5] for entry in result.bins]
        rows.append(
            (name, *(result.values[m] for m in ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "Cov@5")), *tail)
        )
    note = (
        "frugal-plain is frugal without Gandalf. head, torso, tail: how much of their labels is among the first five."
    )
    heads = ("test, %", "P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "Cov@5", "head", "torso", "tail")
    table("See Also of Python objects", heads, rows, note=note)
    show_predictions({"without Gandalf": models["frugal-plain"], "with Gandalf": models["frugal"]}, data, k)
    say(f"wrote models to {out}; try: echo 'sort a table by a column' | longtail predict {out / 'frugal'}")


def show_predictions(models: dict[str, Model], data: Dataset, k: int, examples: int = 10) -> None:
    """Print what models say for some test points beside what their authors wrote."""
    import numpy as np

    rows = np.random.default_rng(7).permutation(len(data.test))[:examples]
    some = data.test.take(np.sort(rows))
    names, texts = data.labels.ids or data.labels.texts, some.ids or some.texts
    tops = {title: model.predict_split(some, k) for title, model in models.items()}
    if names is None or texts is None:
        return
    typer.echo(f"\n{examples} test points: what 'See Also' says (✓ the authors wrote it too)")
    for place, point in enumerate(texts):
        truth = set(some.targets[[place]].indices.tolist())
        typer.echo(f"\n{point}")
        for title, top in tops.items():
            marked = [("✓ " if label in truth else "  ") + names[label] for label, _, _ in top[place]]
            typer.echo(f"   {title:<16} " + ("\n" + " " * 20).join(marked))
