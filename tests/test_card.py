"""Model cards: what a stranger needs."""

from __future__ import annotations

import json

import numpy as np

import longtail as lt
from longtail.card import shown, write_card
from longtail.data.dataset import from_rows
from longtail.folder import read_config
from longtail.machine import commit

TEXTS = ["red cat", "old dog", "red fox", "grey cat"] * 100
TRAIN = from_rows({"train": (TEXTS, [[0], [1], [2], [0, 2]] * 100)}, label_texts=["cat", "dog", "fox"], name="pets|<b>")


def test_a_card_says_what_it_is_of_what_it_may_and_what_made_it(tmp_path):
    recipe = lt.find_recipe("frugal").override("encoder.dim", 16).override("training.epochs", 2).override("seed", 3)
    model = lt.fit(recipe, TRAIN.train)
    result = lt.evaluate(model, TRAIN.train.named("test"))
    model = model.kept(result.to_dict())
    model.save(tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: longtail\n")
    low, high = result.intervals["P@1"]
    for name in ("nDCG", "R", "PSP", "PSnDCG"):
        assert f"| {name} | {result.values[f'{name}@1']:.2f} ({result.intervals[f'{name}@1'][0]:.2f} to " in card
    assert "coverage (Cov) is no mean over points and has none" in card
    picture = card.partition("```text\n")[2].partition("\n```")[0].splitlines()
    assert len(picture) == len(result.reliability) + 1
    for line, row in zip(picture[1:], result.reliability, strict=True):
        assert f"{100 * row.predicted:.0f} %" in line and f"  {row.count:,} prediction" in line and "|" in line
        assert abs(line.count("█") - 40 * row.observed) < 1.6  # the mark may stand in the bar
    for part in (
        'license: "unknown"', "# frugal on pets\\|&lt;b>", "3 labels", "| training points | 400 |", "seed 3",
        "| `encoder.dim` | 16 |", "| labels of a point, mean | 1.25 |", "| training | 2 |", TRAIN.train.fingerprint,
        f"| P | {result.values['P@1']:.2f} ({low:.2f} to {high:.2f}) |", "| probability, mean | right |", "## Limits",
        "lt.Index.load(", "Licence: not given", commit(), f"numpy {np.__version__}", "points.arrow",
    ):  # fmt: skip
        assert part in card, part
    settings = card.partition("```json\n")[2].partition("\n```")[0]
    assert json.loads(settings) == recipe.dump() | {
        name: read_config(tmp_path / "run")["recipe"][name] for name in ("augment", "voices", "blend", "stages")
    } | {name: read_config(tmp_path / "run")["recipe"][name] for name in ("encoder", "objectives")}


def test_a_licence_is_kept_and_a_recipe_of_ones_own_needs_no_name_that_is_known(tmp_path):
    from dataclasses import replace

    model = lt.fit("knn", TRAIN.train)
    model = replace(model, licence="CC-BY-4.0", recipe=replace(model.recipe, name="mine"))
    model.save(tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    assert 'license: "CC-BY-4.0"' in card
    assert "`mine`, seed 0" in card
    assert lt.Model.load(tmp_path / "run").licence == "CC-BY-4.0"


def test_facts_of_an_earlier_version_are_enough_for_a_card():
    recipe = lt.find_recipe("knn").dump()
    card = write_card({"recipe": recipe, "labels": 1, "points": 2, "dataset": "d"}, [])
    assert "1 label for a short text" in card
    assert "Not evaluated yet" in card
    assert shown([]) == {}
