"""MODEL + DATA SET → WHAT THE PAPERS SAY: the settings that were used, and the scores that were printed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from longtail.errors import RecipeError, nearest

PLACES = (1, 3, 5)
UNKNOWN = "?"  # a value that is not published


@dataclass(frozen=True, kw_only=True)
class Published:
    """Scores that a paper prints, in percent; nan is not printed.

    `single` marks what is known to be one model and not an ensemble; a `misprint` is known to be wrong.
    """

    model: str
    data: str
    source: str  # papers and their tables
    P: tuple[float, float, float]  # at 1, 3 and 5
    PSP: tuple[float, float, float]
    augment: str = ""
    set: Mapping[str, Any] = field(default_factory=dict, hash=False)  # what makes this variant of our recipe
    single: bool = False
    misprint: bool = False
    note: str = ""

    @property
    def recipe(self) -> str:
        """The name that `find_recipe` takes."""
        return f"{self.model}+{self.augment}" if self.augment else self.model

    @property
    def metrics(self) -> dict[str, float]:
        """The scores by the names of our metrics."""
        named = {"P": self.P, "PSP": self.PSP}
        return {f"{name}@{k}": value for name, values in named.items() for k, value in zip(PLACES, values, strict=True)}


def published_settings(model: str, data: str) -> dict[str, Any]:
    """Return the published settings of a model on a data set by their paths, in the order in which they are set.

    >>> published_settings("inceptionxml_plus", "AmazonTitles-670K")["training.epochs"]
    35
    """
    models = _file()["settings"]
    _known(model, models, "no settings are published for the model")
    table = models[model]
    _known(data, table["data"], f"no settings of {model} are published for the data set")
    chosen = dict(table["common"])
    for paths, value in zip(table["columns"], table["data"][data], strict=True):
        if isinstance(paths, list) and value != UNKNOWN:
            chosen |= dict.fromkeys(paths, value)
    return chosen


def published_scores(model: str | None = None, data: str | None = None, *, misprints: bool = False) -> list[Published]:
    """Return the printed scores of a model, on a data set, or all of them.

    >>> published_scores("astec", "LF-AmazonTitles-1.3M")[0].metrics["P@1"]
    48.82
    """
    scores = _scores()
    if model is not None:
        _known(model, {entry.model for entry in scores}, "no scores are published for the model")
    if data is not None:
        _known(data, {entry.data for entry in scores}, "no scores are published for the data set")
    wanted = [entry for entry in scores if model in (None, entry.model) and data in (None, entry.data)]
    return [entry for entry in wanted if misprints or not entry.misprint]


@cache
def _file() -> dict[str, Any]:
    """Read published.toml."""
    return tomllib.loads(resources.files("longtail.recipes").joinpath("published.toml").read_text("utf-8"))


@cache
def _scores() -> tuple[Published, ...]:
    """Build the entries; a row takes from its block what it does not say."""
    merged = [block | row for block in _file()["scores"] for row in block["rows"]]
    entries = [{name: value for name, value in entry.items() if name != "rows"} for entry in merged]
    return tuple(Published(**entry | {"P": tuple(entry["P"]), "PSP": tuple(entry["PSP"])}) for entry in entries)


def _known(name: str, valid: Iterable[str], complaint: str) -> None:
    """Refuse a name that is not there."""
    if name not in (names := list(valid)):
        raise RecipeError(f"{complaint} {name!r}; {nearest(name, names)}")
