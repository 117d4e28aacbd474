"""The models that timings are taken with: made once, which takes minutes, and kept in $LONGTAIL_CACHE."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.artefact import Kind, build_artefact
from longtail.data.dataset import Labels, Split
from longtail.errors import LongtailError
from longtail.folder import read_config
from longtail.model import Model
from longtail.pipeline import fit
from longtail.recipe import find_recipe, recipe_of
from longtail.search.exact import unit
from longtail.stores.memory import MemoryStore
from longtail.types import Texts

NAME = "LF-MSDocsSeeAlsoTitles-87K"
CACHE = Path(os.environ.get("LONGTAIL_CACHE", Path(tempfile.gettempdir()) / "longtail-bench"))
POINTS = 5000  # that models are fitted to whose predictions are not evaluated


def indexed(name: str, make: Callable[[], Model], search: Kind = "auto") -> Path:
    """Return the folder of a model with its index, making what is not there."""
    folder = CACHE / f"{name}-{NAME}"
    try:
        read_config(folder)
    except LongtailError:  # not there, or of another version
        make().save(folder, force=True)
    if not list(folder.glob("index_*")):
        build_artefact(folder, search=search)
    return folder


def frugal(train: Split) -> Path:
    """Train frugal as it is."""
    return indexed("frugal", lambda: fit("frugal", train))


def without_words(train: Split) -> Path:
    """Take the scores by words out of frugal; its index then looks further for the same recall."""

    def make() -> Model:
        model = Model.load(frugal(train))
        return replace(model, voices=(), recipe=replace(model.recipe, voices=(), blend=None))

    return indexed("frugal-vectors", make)


def million(train: Split) -> Path:
    """Give `without_words` a million labels: its own, and copies that are moved a little. Only its size matters."""

    def make() -> Model:
        model = Model.load(without_words(train))
        vectors, names, examples = model.vectors, model.labels.texts, model.examples
        assert vectors is not None and names is not None and examples is not None
        times, rng = -(-1_000_000 // len(names)), np.random.default_rng(0)
        trained = vectors.store.take(slice(None))
        noise = [0.02 * rng.normal(size=trained.shape).astype(np.float32) for _ in range(times)]
        rows = unit(np.concatenate([trained + part for part in noise]))
        targets, count = examples.targets, len(rows)
        return replace(
            model,
            labels=Labels(count, Texts([f"{name} {copy}" for copy in range(times) for name in names])),
            frequencies=np.tile(model.frequencies, times),
            vectors=vectors.with_store(MemoryStore.of(rows, np.tile(vectors.store.bias, times))),
            examples=replace(
                examples,
                targets=sp.csr_array((targets.data, targets.indices, targets.indptr), shape=(targets.shape[0], count)),
            ),
        )

    return indexed("million", make, search="exact")


def brief(name: str, train: Split) -> Path:
    """Fit a recipe for one epoch: its answers are poor, the time that they take is real.

    Models that convolve see few points, and all labels; what Astec finds near grows with the points, so it sees all.
    Label vectors that are hardly trained are searched as a whole: they say nothing about a graph of trained ones.
    """
    recipe = recipe_of(_brief(find_recipe(name).dump()))
    points = train if name in ("knn", "astec") else train.take(np.arange(POINTS))
    return indexed(name, lambda: fit(recipe, points), search="exact")


def _brief(value: Any) -> Any:
    """Set all epochs to one."""
    if isinstance(value, list):
        return [_brief(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: {"epochs": 1, "min_steps": 0}.get(name, _brief(item)) for name, item in value.items()}
