"""BUDGET + SETTINGS → CANDIDATES: what `auto` is asked for, and which recipes it may try."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from longtail.errors import BadArgument, RecipeError
from longtail.recipe import Recipe, find_recipe
from longtail.records import overridden

WORDS = {"lexical": "lexical", "lexical.pairs": None}  # the voice of `knn` beside another, as in `frugal`
SHORT = {"training.epochs": 2, "training.min_steps": 160, "linear.trees": 1}
PORTFOLIO: tuple[tuple[str, str, dict[str, Any]], ...] = (  # the best on most data first: it is taken among equals
    ("frugal", "frugal", {}),
    ("frugal, short", "frugal", SHORT),
    ("linear and knn", "linear", WORDS),
    ("linear and knn, one tree", "linear", {**WORDS, "linear.trees": 1}),
    ("linear", "linear", {}),
    ("frugal without voices", "frugal", {"lexical": "none", "linear": "none"}),
    ("astec+gandalf", "astec+gandalf", {}),
    ("inceptionxml_plus+gandalf", "inceptionxml_plus+gandalf", {}),
    ("knn", "knn", {}),
)
BAR = "knn"  # what is chosen is never worse than this in the trials


UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}  # seconds of each


@dataclass(frozen=True)
class Auto:
    """What is asked for: the seconds of trials and fit together, and settings that every recipe has to take."""

    name: ClassVar[str] = "auto"
    budget: float
    settings: tuple[tuple[str, Any], ...] = ()
    spent: float = field(default=0.0, compare=False)  # seconds that are gone already: the data were read

    @classmethod
    def of(cls, budget: float | str | None, settings: Iterable[tuple[str, Any]] = ()) -> Auto:
        """Read a budget: a number of seconds, or a text with its unit.

        >>> Auto.of("2m").budget, Auto.of("1.5h").budget, Auto.of(60).budget
        (120.0, 5400.0, 60.0)
        """
        if budget is None:
            raise BadArgument("auto has no budget", remedy="say how long it may take: budget=60, --budget 60s")
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([smh]?)\s*", str(budget), re.ASCII)
        if found is None:
            raise BadArgument(f"a budget of {budget!r}", remedy="write seconds, minutes or hours: 60s, 2m, 1h")
        return cls(float(found[1]) * UNITS[found[2]], tuple(settings))

    def __post_init__(self) -> None:
        if not 0 < self.budget < math.inf:
            raise BadArgument(f"a budget of {self.budget} seconds", remedy="give more than 0: budget=60, --budget 60s")

    @property
    def seed(self) -> int:
        """The seed of every recipe, and of what is held out."""
        return int(dict(self.settings).get("seed", 0))

    def dump(self) -> dict[str, Any]:
        """Return plain JSON values that tell one search from another."""
        return {"part": self.name, "budget": self.budget, "settings": [list(pair) for pair in self.settings]}


@dataclass(frozen=True)
class Candidate:
    """A recipe that may be tried, under the name of its settings."""

    name: str
    recipe: Recipe
    settings: Mapping[str, Any]


def portfolio(auto: Auto, *, label_texts: bool) -> tuple[list[Candidate], dict[str, str]]:
    """List what may be tried, and why the others are left out: a setting that they do not have.

    Without label texts `+gandalf`, which makes points of them, is left away.
    """
    found: list[Candidate] = []
    left_out: dict[str, str] = {}
    for named, recipe, usual in PORTFOLIO:
        name, value = named, find_recipe(recipe)
        if not label_texts:
            name, value = named.removesuffix("+gandalf"), find_recipe(recipe.removesuffix("+gandalf"))
        try:
            value = overridden(value, [*usual.items(), *auto.settings])
            value.check()
        except RecipeError as reason:
            left_out[name] = str(reason)
            continue
        if any(value == other.recipe for other in found):
            left_out[name] = "with these settings it is the same as another"
        else:
            found.append(Candidate(name, value, usual))
    if not found:
        asked = ", ".join(f"{path}={value}" for path, value in auto.settings)
        raise RecipeError(f"auto has no recipe to try that takes {asked}: {next(iter(left_out.values()))}")
    return found, left_out
