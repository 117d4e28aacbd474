"""The losses of the first twenty steps of every recipe: the training core changes only on purpose.

losses.json holds the recipes too, so that tuning them changes nothing here. After a change of the core that is meant:
`LONGTAIL_GOLDEN=write pytest tests/golden`, and read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from small import TRAINED, board, short

import longtail as lt
from longtail.recipe import recipe_of
from longtail.training.loop import Loop

FILE = Path(__file__).with_name("losses.json")
STEPS = 20
pytestmark = pytest.mark.usefixtures("one_thread")  # bit-equal


def losses_of(recipe) -> list[float]:
    """Train, and note the losses of the steps of the first stage that has twenty."""
    losses: dict[int, list[float]] = {}
    real = Loop._step

    def record(self, *rest):
        value = real(self, *rest)
        losses.setdefault(id(self.network), []).append(value)
        return value

    with patch.object(Loop, "_step", record):
        lt.fit(recipe, board(200))
    return next(values for values in reversed(losses.values()) if len(values) >= STEPS)[:STEPS]


def golden(name: str):
    """Make the recipe whose losses are written."""
    recipe = short(name, training__batch_size=32, training__epochs=4)
    return recipe.override("sampler.refresh", 2).override("sampler.hard", 2) if name == "frugal" else recipe


@pytest.mark.parametrize("name", TRAINED)
def test_the_first_losses_are_those_that_are_known(name):
    held = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if os.environ.get("LONGTAIL_GOLDEN") == "write":
        recipe = golden(name)
        held[name] = {"recipe": recipe.dump(), "losses": [float(f"{value:.6g}") for value in losses_of(recipe)]}
        FILE.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    found = losses_of(recipe_of(held[name]["recipe"]))
    expected = np.array(held[name]["losses"])
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-4)
    np.testing.assert_allclose(found, expected, rtol=0.02)  # other processors round otherwise, and it adds up
    assert np.mean(found[-3:]) < np.mean(found[:3])
