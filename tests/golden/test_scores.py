"""What every recipe answers on a small fixed corpus: serving changes only on purpose.

scores.json holds the recipes too, so that tuning them changes nothing here. After a change that is meant:
`LONGTAIL_GOLDEN=write pytest tests/golden`, and read the difference. `bench/bits.py` compares two trees bit for bit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from golden.corpus import answers, plain
from small import WEIGHTS, small

from longtail.recipe import RECIPES, recipe_of

FILE = Path(__file__).with_name("scores.json")
GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
STORED = ("model, one text", "model, a batch", "index, one text", "index, few texts")  # of a batch: its first texts
FIRST = 12
pytestmark = pytest.mark.usefixtures("one_thread")


def same_answer(labels, scores, known_labels, known_scores):
    """Compare answers; processors round otherwise, so that labels whose scores are about equal may change places."""
    close = {"rtol": 1e-3, "atol": 1e-4}
    np.testing.assert_allclose(scores, known_scores, **close)
    found, known = dict(zip(labels, scores, strict=True)), dict(zip(known_labels, known_scores, strict=True))
    for label in found.keys() | known.keys():  # one that is only in one of them stands at the end of it
        np.testing.assert_allclose(found.get(label, scores[-1]), known.get(label, known_scores[-1]), **close)


def test_every_recipe_has_golden_scores():
    assert set(RECIPES) - WEIGHTS <= set(GOLDEN)


@pytest.mark.parametrize("name", [name for name in dict.fromkeys([*GOLDEN, *RECIPES]) if name not in WEIGHTS])
def test_the_answers_are_those_that_are_known(name):
    if os.environ.get("LONGTAIL_GOLDEN") == "write" and name not in GOLDEN:
        GOLDEN[name] = {"recipe": small(name).dump()}
    topks = answers(recipe_of(GOLDEN[name]["recipe"]))
    cut = {key: {part: rows[:FIRST] for part, rows in plain(topks[key]).items()} for key in STORED}
    if os.environ.get("LONGTAIL_GOLDEN") == "write":
        GOLDEN[name]["answers"] = cut
        FILE.write_text(json.dumps(GOLDEN, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
    for key, expected in GOLDEN[name]["answers"].items():
        for row, known in enumerate(expected["labels"]):
            same_answer(cut[key]["labels"][row], cut[key]["scores"][row], known, expected["scores"][row])
    one, many = topks["index, few texts"], topks["index, a batch"]
    assert (one.labels[:FIRST] == many.labels[:FIRST]).mean() > 0.98  # ties at a rounding border
    np.testing.assert_allclose(one.scores[:FIRST], topks["model, a batch"].scores[:FIRST], rtol=1e-4, atol=1e-5)
