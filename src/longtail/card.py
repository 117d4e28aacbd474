"""FACTS + FIGURES → MODEL CARD: what a stranger has to know of a model folder, in Markdown.

The facts are the plain values of config.json, so that a card can be written again without opening the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from longtail.probabilities import LEAST, Evidence
from longtail.recipe import RECIPES, find_recipe
from longtail.types import counted

Facts = Mapping[str, Any]
METRICS = ("P", "nDCG", "R", "PSP", "PSnDCG", "Cov")
TRIED = ("recipe", "points", "P@1", "PSP@5", "sum", "trial s", "fit s")  # heads of the trials of `auto`
WIDE = 40  # letters of a bar
FEW = 5  # training points of a label that is rare


def write_card(facts: Facts, evaluations: Sequence[Facts]) -> str:
    """Write the model card."""
    sections = (_head, _use, _data, _recipe, _trials, _figures, _limits, _origin)
    lines = [line for section in sections for line in (*section(facts, evaluations), "")]
    return "\n".join(lines)


def is_trained(known: int, points: int) -> bool:
    """Return whether so many points that a model was trained on, of all, make its figures worthless."""
    return 2 * known > points


def shown(evaluations: Sequence[Facts]) -> Facts:
    """Return the figures that stand for the model: the last ones on test points, or on others it was not trained on.

    >>> shown([{"split": "test", "P@1": 50.0}, {"split": "train", "P@1": 90.0, "trained": 9, "points": 9}])["P@1"]
    50.0
    >>> shown([{"split": "validation", "P@1": 20.0}, {"split": "train", "P@1": 84.0}])["P@1"]
    20.0
    """
    fresh = [one for one in evaluations if not is_trained(one.get("trained", 0), one.get("points", 0))]
    tests = [one for one in fresh if one.get("split") == "test"]
    others = [one for one in fresh if one.get("split") != "train"]
    return (tests or others or fresh or list(evaluations) or [{}])[-1]


def _head(facts: Facts, _: Sequence[Facts]) -> Iterator[str]:
    """Name the model; what the front matter says is read by model hubs."""
    recipe = str(facts["recipe"]["name"])
    yield from ("---", "library_name: longtail", "pipeline_tag: text-classification")
    yield f"license: {json.dumps(facts.get('licence') or 'unknown')}"
    yield from (f"tags: {json.dumps(['extreme-multi-label', 'text-classification', recipe])}", "---", "")
    yield from (f"# {recipe} on {_plain(facts['dataset'])}", "")
    yield f"Finds the best few of {counted(facts['labels'], 'label')} for a short text."


def _use(_facts: Facts, _evaluations: Sequence[Facts]) -> Iterator[str]:
    """Say how to load it."""
    yield from ("## Use it", "", "Nothing in this folder is ever executed. `pip install longtail`, then:", "")
    yield from ("```sh", "longtail predict FOLDER texts.txt", "longtail serve FOLDER", "```", "", "```python")
    yield from ("import longtail as lt", "", 'index = lt.Index.load("FOLDER")')
    yield from ('index.predict(["a text"], k=5).to_frame()  # or [0]: (label, text, score), best first', "```")


def _data(facts: Facts, _: Sequence[Facts]) -> Iterator[str]:
    """Say what it was trained on."""
    data = facts.get("data", {})
    rows = {"data set": _plain(facts["dataset"]), "training points": f"{facts['points']:,}"}
    rows["labels"] = f"{facts['labels']:,}"
    if data:
        rows |= {"labels of a point, mean": f"{data['labels_each']:.2f}"}
        rows |= {"points of a label, median": f"{data['points_each']:g}"}
        rows |= {f"labels with {FEW} points or fewer": f"{data['rare']:.0%}"}
        rows |= {"labels have texts": "yes" if data["texts"] else "no", "fingerprint": f"`{data['fingerprint']}`"}
    yield from ("## Data", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()))


def _recipe(facts: Facts, _: Sequence[Facts]) -> Iterator[str]:
    """Name the recipe, the settings that are not its own, and what the training did."""
    recipe = facts["recipe"]
    name = str(recipe["name"])
    yield from ("## Recipe", "", f"`{name}`, seed {recipe['seed']}.")
    known = name.partition("+")[0] in RECIPES
    usual, own = dict(_flat(find_recipe(name).dump() if known else {})), dict(_flat(recipe))
    changed = {path: value for path, value in own.items() if usual.get(path, recipe) != value and path != "seed"}
    if known and changed:
        yield from ("", "| setting that was changed, or chosen on held-out points | value |", "|---|---|")
        yield from (f"| `{path}` | {_plain(json.dumps(value))} |" for path, value in changed.items())
    if facts.get("done"):
        yield from ("", "| stage of the training | epochs | steps | points of a step |", "|---|---|---|---|")
        for stage in facts["done"]:
            member = f", member {stage['member'] + 1}" if recipe["ensemble"] > 1 else ""
            yield f"| {stage['stage']}{member} | {stage['epochs']:,} | {stage['steps']:,} | {stage['batch_size']:,} |"
    yield from ("", "<details><summary>all settings</summary>", "", "```json", json.dumps(recipe, indent=1), "```")
    yield from ("", "</details>")


def _trials(facts: Facts, _: Sequence[Facts]) -> Iterator[str]:
    """Say what `auto` tried, and why it chose this recipe."""
    if found := facts.get("trials"):
        yield from ("## How the recipe was chosen", "", f"{_plain(found['why'])}.", "")
        yield from (_row(TRIED), _row(["---"] * len(TRIED)))
        yield from (_row(map(_plain, row)) for row in trial_rows(found))
        yield from ("", *(f"- {_plain(line)}" for line in untried(found)))


def trial_rows(found: Facts) -> list[tuple[str, ...]]:
    """Write the trials of `auto` that ended as rows under the heads TRIED, in their order."""
    rows = []
    for one in found["trials"]:
        if not one["failed"]:
            figures = (one["P@1"], one["PSP@5"], one["P@1"] + one["PSP@5"], one["seconds"], one["fit_seconds"])
            name = one["name"] + (" (chosen)" if one["name"] == found["chosen"] else "")
            rows.append((name, f"{one['points']:,}", *(f"{value:.1f}" for value in figures)))
    return rows


def untried(found: Facts) -> list[str]:
    """Say what has no trial, and why."""
    failed = {one["name"]: one["failed"] for one in found["trials"] if one["failed"]}
    return [f"{name}: {why}" for name, why in {**found["left_out"], **failed}.items()]


def _row(cells: Iterable[str]) -> str:
    """Write a row of a table."""
    return f"| {' | '.join(cells)} |"


def _figures(_: Facts, evaluations: Sequence[Facts]) -> Iterator[str]:
    """Show what was measured, in percent."""
    yield "## Figures"
    if not evaluations:
        yield from ("", "Not evaluated yet: `longtail evaluate FOLDER --data DATA` measures it and writes this again.")
    for one in evaluations:
        date = f", {one['date'][:10]}" if one.get("date") else ""
        data = f"{_plain(one.get('dataset', ''))}, {one.get('split', 'validation')}"
        yield from ("", f"### {data}: {counted(one['points'], 'point')}{date}", "")
        ks = [name.partition("@")[2] for name in one if name.startswith("P@")]
        yield from (f"| % | {' | '.join(f'@{k}' for k in ks)} |", "|---|" + "---|" * len(ks))
        for name in METRICS:
            cells = [_figure(one, f"{name}@{k}") for k in ks]
            yield f"| {name} | {' | '.join(cells)} |"
        yield from ("", "| bin of equal volume | labels | recall |", "|---|---|---|")
        for part in one["bins"]:
            recall = ", ".join(f"{name} {value:.2f}" for name, value in part["recall"].items())
            yield f"| {part['name']} | {part['labels']:,} | {recall} |"
        if one.get("reliability"):
            yield from ("", "| probability, mean | right | predictions |", "|---|---|---|")
            rows = one["reliability"]
            yield from (f"| {row['predicted']:.0%} | {row['observed']:.0%} | {row['count']:,} |" for row in rows)
            yield from ("", "```text", *_picture(rows), "```")
        if one.get("fingerprint"):
            yield from ("", f"Fingerprint of these points: `{one['fingerprint']}`.")
    if any(one.get("intervals") for one in evaluations):
        yield from ("", "In brackets: 95 % intervals, over points; coverage (Cov) is no mean over points and has none.")


def _picture(rows: Sequence[Facts]) -> Iterator[str]:
    r"""Draw how often predictions were right as bars, with a mark where their probability lies.

    >>> print(*_picture([{"predicted": 0.25, "observed": 0.125, "count": 1200}]), sep="\n")
    predicted  right  bar: the share that was right; | the share that was predicted
         25 %   12 %  █████····|······························  1,200 predictions
    """
    yield "predicted  right  bar: the share that was right; | the share that was predicted"
    for row in rows:
        right, mark = (round(WIDE * min(1, max(0, row[name]))) for name in ("observed", "predicted"))
        cells = ["█"] * right + ["·"] * (WIDE - right)
        cells[max(0, mark - 1)] = "|"
        shares = f"{100 * row['predicted']:7.0f} %  {100 * row['observed']:3.0f} %"
        yield f"{shares}  {''.join(cells)}  {counted(row['count'], 'prediction')}"


def _figure(one: Facts, name: str) -> str:
    """Write a metric, with its interval where there is one."""
    low, high = one.get("intervals", {}).get(name, (None, None))
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{one[name]:.2f}{interval}" if name in one else "–"


def _limits(facts: Facts, evaluations: Sequence[Facts]) -> Iterator[str]:
    """Say what it cannot do."""
    yield from ("## Limits", "")
    yield "- It knows its labels and no others; every text with a word that it knows gets some of them, right or not."
    if facts.get("data", {}).get("rare"):
        yield f"- {facts['data']['rare']:.0%} of its labels had at most {FEW} points to learn from; expect less there."
    if facts.get("probabilities"):
        yield "- Scores are no probabilities; `probabilities=True` gives calibrated ones, true of texts like its own."
    else:
        lack = Evidence(**facts.get("evidence", {})).lack("prediction", LEAST)
        yield f"- Scores are no probabilities, and none were calibrated: {lack}."
    where = "on the points above" if evaluations else "nowhere yet"
    yield f"- It was measured {where}; texts of other kinds, lengths or languages are another matter."
    if facts.get("examples"):
        yield "- The folder holds the texts that it was trained on (points.arrow)."
    else:
        yield "- The folder holds no training text: predictions are not explained by points, and training cannot go on."


def _origin(facts: Facts, _: Sequence[Facts]) -> Iterator[str]:
    """Say what made it, and what it may be used for."""
    yield from ("## Licence and origin", "")
    yield f"Licence: {_plain(facts.get('licence') or 'not given; ask who made it, and mind the licence of the data')}."
    if facts.get("credits"):
        yield from ("", str(facts["credits"]))
    if facts.get("made"):
        versions = ", ".join(f"{name} {value}" for name, value in facts["made"].items() if value)
        yield from ("", f"Made with {versions}.")


def _flat(value: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Write nested settings as dotted paths."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _flat(entry, f"{before}.{name}" if before else name)
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        for place, entry in enumerate(value):
            yield from _flat(entry, f"{before}.{place}")
    else:
        yield before, value


def _plain(text: object) -> str:
    r"""Keep a text inside its cell, and from being read as Markdown or HTML.

    >>> _plain("a|b <i>")
    'a\\|b &lt;i>'
    """
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
