"""`longtail train auto`: what is asked for, what would be tried, and what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from longtail.cli.console import duration, emit, read_settings, say, size, table
from longtail.errors import RecipeError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.auto.portfolio import Auto
    from longtail.data.dataset import Split
    from longtail.model import Model


def asked(budget: str | None, published: str | None, settings: Sequence[str]) -> Auto:
    """Read what is asked for."""
    from longtail.auto.portfolio import Auto

    if published is not None:
        raise RecipeError("auto chooses settings by trials; leave --published out, or name a recipe")
    return Auto.of(budget, read_settings(settings))


def show_plan(auto: Auto, points: Split, *, json: bool) -> None:
    """Print what would be tried, with what each fit is estimated to take, and what would not."""
    from longtail.estimates import estimate
    from longtail.pipeline import search_for

    search = search_for(auto, points)
    share, tried = search.plan()
    needs = {one.name: estimate(one.recipe, search.sizes) for one in search.candidates}
    if json:
        plan = [
            {"name": one.name, "recipe": one.recipe.name, "settings": one.settings, "tried": one in tried}
            | asdict(needs[one.name])
            for one in search.candidates
        ]
        emit({"budget": auto.budget, "share": share, "portfolio": plan, "left_out": search.left_out})
        return
    rows = []
    for one in search.candidates:
        own = needs[one.name]
        needed = duration(own.seconds), size(own.memory_bytes), size(own.disk_bytes)
        rows.append((one.name, *needed, "yes" if one in tried else "no"))
    note = f"first with {share:.0%} of the points; the better half goes on with twice as many while there is time"
    if not search.tests:
        note = f"{counted(len(points), 'point')} are too few for trials: nothing is compared"
    table("What auto may try", ("recipe", "a fit takes about", "memory", "disk", "tried"), rows, note=note)
    for name, why in search.left_out.items():
        say(f"{name}: {why}")


def show_choice(model: Model) -> None:
    """Print what was tried, and why this was chosen."""
    from longtail.card import TRIED, trial_rows, untried

    found = model.trials
    if found["trials"]:
        table(f"Trials on {counted(found['held_out'], 'held-out point')}", TRIED, trial_rows(found))
    for line in untried(found):
        say(f"not tried: {line}")
    say(f"chose {found['chosen']}: {found['why']}")
    say(f"{found['seconds']:.0f} s of {found['budget']:g} s, {found['trial_seconds']:.0f} s of them before the fit")
