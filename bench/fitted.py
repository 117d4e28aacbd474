"""The models that timings are taken with: made once, which takes minutes, and kept in $LONGTAIL_CACHE."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail.artefact import build_artefact
from longtail.data.dataset import Split
from longtail.model import Model
from longtail.pipeline import fit
from longtail.recipe import find_recipe, recipe_of

NAME = "LF-MSDocsSeeAlsoTitles-87K"
CACHE = Path(os.environ.get("LONGTAIL_CACHE", Path(tempfile.gettempdir()) / "longtail-bench"))
POINTS = 5000  # that models are fitted to whose answers nobody looks at


def indexed(name: str, make: Callable[[], Model]) -> Path:
    """Return the folder of a model with its index, making what is not there."""
    folder = CACHE / f"{name}-{NAME}"
    if not (folder / "config.json").exists():
        make().save(folder)
    if not list(folder.glob("index_*")):
        build_artefact(folder)
    return folder


def frugal(train: Split) -> Path:
    """Train frugal as it is."""
    return indexed("frugal", lambda: fit("frugal", train))


def without_words(train: Split) -> Path:
    """Take the scores by words out of frugal; its index then looks further for the same recall."""

    def make() -> Model:
        model = Model.load(frugal(train))
        return replace(model, lexical=None, recipe=replace(model.recipe, lexical=None))

    return indexed("frugal-vectors", make)


def brief(name: str, train: Split) -> Path:
    """Fit a recipe for one epoch: its answers are poor, the time that they take is real.

    Models that convolve see few points, and all labels; what Astec finds near grows with the points, so it sees all.
    """
    recipe = recipe_of(_brief(find_recipe(name).dump()))
    some = train if name in ("knn", "astec") else train.take(np.arange(POINTS))
    return indexed(name, lambda: fit(recipe, some))


def _brief(value: Any) -> Any:
    """Set all epochs to one."""
    if isinstance(value, list):
        return [_brief(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: {"epochs": 1, "least": 0}.get(name, _brief(item)) for name, item in value.items()}
