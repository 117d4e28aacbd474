"""What `--dry-run` promises, beside what a fit takes, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import ROOT
from small import WEIGHTS, loops_of

from longtail.recipe import RECIPES, find_recipe

FIT = """
import json, sys, torch
from longtail.machine import memory_usage
idle = memory_usage()[1]
import longtail as lt
from golden.corpus import sized
from longtail.estimates import estimate
from longtail.recipe import recipe_of
recipe, train = recipe_of(json.loads(sys.argv[1])), sized(800, 300)
needs = estimate(recipe, train)
lt.fit(recipe, train)
print(json.dumps([idle, needs.memory_bytes, memory_usage()[1]]))
"""

# Most of their parts are measured with frugal, and with those that are not named here.
HERE = [name for name in RECIPES if name not in WEIGHTS]
LIKE_OTHERS = (
    "inceptionxml", "inceptionxml_plus", "eclare", "xmlcnn", "decaf", "siamesexml",
    "inceptionxml_lf", "astec", "linear",
    "depsl", "dexml", "ngame", "ngame_renee", "dpr", "ance", "lightxml", "unidec", "attentionxml",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_OTHERS else []) for name in HERE]
)
def test_the_memory_of_a_fit_is_foreseen_within_a_factor_of_two(name):
    recipe = find_recipe(name)
    for loop in loops_of(recipe):  # memory does not grow with the steps
        recipe = recipe.override(f"{loop}.epochs", 1).override(f"{loop}.min_steps", 0)
    command = [sys.executable, "-c", FIT, json.dumps(recipe.dump())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT / "tests")
    idle, foreseen, peak = json.loads(done.stdout.splitlines()[-1])
    assert 0.5 <= (foreseen - idle) / (peak - idle) <= 2, (foreseen, peak, idle)


@pytest.mark.parametrize("name", HERE)
def test_larger_data_need_more(name):
    from golden.corpus import sized

    from longtail.estimates import estimate

    small, large = (estimate(find_recipe(name), sized(points, labels)) for points, labels in ((200, 50), (2000, 900)))
    assert small.memory_bytes < large.memory_bytes
    assert small.disk_bytes < large.disk_bytes
    assert small.seconds <= large.seconds
