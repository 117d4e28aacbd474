"""A paper is a value: a recipe names the parts of a model in the order of the flow.

It is made by a function in `longtail.recipes`, changed with `dataclasses.replace` or `override("a.b", value)`, written
as plain JSON and read back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pydantic

from longtail.errors import RecipeError, nearest
from longtail.machine import need
from longtail.parts import Augmentation, Encoder, Objective, Stage, Voice
from longtail.records import PARTS, Cost, Part, Sizes, When, create, imported, part_of, record, replaced

RECIPES = {
    "frugal": "longtail.recipes.frugal:frugal",
    "astec": "longtail.recipes.astec:astec",
    "decaf": "longtail.recipes.decaf:decaf",
    "eclare": "longtail.recipes.eclare:eclare",
    "siamesexml": "longtail.recipes.siamesexml:siamesexml",
    "inceptionxml": "longtail.recipes.inceptionxml:inceptionxml",
    "inceptionxml_plus": "longtail.recipes.inceptionxml:inceptionxml_plus",
    "inceptionxml_lf": "longtail.recipes.inceptionxml_lf:inceptionxml_lf",
    "depsl": "longtail.recipes.unidec:depsl",
    "unidec": "longtail.recipes.unidec:unidec",
    "ngame": "longtail.recipes.ngame:ngame",
    "ngame_renee": "longtail.recipes.ngame:ngame_renee",
    "dexml": "longtail.recipes.dual:dexml",
    "dpr": "longtail.recipes.dual:dpr",
    "ance": "longtail.recipes.dual:ance",
    "lightxml": "longtail.recipes.lightxml:lightxml",
    "attentionxml": "longtail.recipes.attentionxml:attentionxml",
    "laroberta": "longtail.recipes.attentionxml:laroberta",
    "xmlcnn": "longtail.recipes.xmlcnn:xmlcnn",
    "knn": "longtail.recipes.knn:knn",
    "linear": "longtail.recipes.linear:linear",
}


@record
class Recipe(Part):
    """The parts of a model as fields, in the order of the flow."""

    part: ClassVar[str] = "recipe"
    renamed: ClassVar[Mapping[str, str]] = {"shortlist": "sampler"}
    direct: ClassVar[tuple[str, ...]] = ("objectives",)
    name: str  # by which it is found
    seed: int = pydantic.Field(default=0, ge=0, lt=2**31)  # of all chance: the same seed gives the same model
    ensemble: int = pydantic.Field(default=1, ge=1, le=20)  # fits with other seeds whose scores are averaged
    augment: tuple[Augmentation, ...] = ()  # augmentations of the training points
    encoder: Encoder | None = None  # what turns texts into vectors
    objectives: tuple[Objective, ...] = ()  # what a step minimises the sum of; the first is about labels
    stages: tuple[Stage, ...] = ()  # run one after the other
    voices: tuple[Voice, ...] = ()  # scores by words
    blend: float | tuple[float, ...] | None = None  # the weight of each voice beside vectors; None: validate

    def check(self, recipe: Any = None) -> None:
        """Refuse a recipe whose parts do not fit each other."""
        if not self.trains and not self.voices:
            raise RecipeError(f"{self.name}: no part of this recipe makes scores")
        if self.trains and not (self.encoder and self.objectives and self.stages):
            absent = next(name for name in ("encoder", "objectives", "stages") if not self.fields()[name])
            raise RecipeError(f"{self.name}: a recipe that trains needs an encoder, objectives and stages; no {absent}")
        if len(self.weights) != len(self.voices) or min(self.weights, default=0) < 0:
            raise RecipeError(
                f"{self.name}: blend = {self.blend}: give each of {len(self.voices)} voices a weight from 0 up"
            )
        if len({voice.part for voice in self.voices}) < len(self.voices):
            raise RecipeError(f"{self.name}: two voices of one kind would write the same file")
        if self.ensemble > 1 and not self.trains:
            raise RecipeError(f"{self.name}: an ensemble needs weights that chance decides, and this recipe has none")
        if self.objectives and self.objectives[0].over != "labels":
            raise RecipeError(f"{self.name}: the first objective must be over labels")
        if self.objectives and not any(one.share for one in self.objectives if one.over == "labels"):
            raise RecipeError(f"{self.name}: no objective over labels is served: give one a weight, served=1")
        if self.objectives and not any(one.weight for one in self.objectives):
            raise RecipeError(f"{self.name}: no objective is trained: give one a weight, weight=1")
        for augmentation in self.augment:
            if not self.trains and augmentation.acts_on != ("dataset",) and not augmentation.can_act_once:
                raise RecipeError(f"{self.name}: {augmentation.part} changes batches, and this recipe trains on none")
        for package in ("torch",) if self.trains else ():
            need(package, "train")
        for part in self.parts():
            part.check(self)

    def undecided(self) -> When:
        """Return when validation points settle a setting; the weight of words waits for the weights of vectors."""
        return max(super().undecided(), When.AFTER if self.blends and self.blend is None else When.NEVER)

    @property
    def blends(self) -> bool:
        """Whether scores are the sum of several."""
        return len(self.voices) + self.trains > 1 and bool(self.voices)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each voice; the usual ones where none were chosen."""
        if not self.blends:
            return (1.0,) * len(self.voices)
        if self.blend is None:
            return tuple(voice.usual for voice in self.voices)
        return self.blend if isinstance(self.blend, tuple) else (self.blend,) * len(self.voices)

    def sizes(self, data: Sizes) -> Sizes:
        """Return what the cost of this recipe grows with: label points, batches and epochs beside the data."""
        more = any("dataset" in part.acts_on for part in self.augment)  # label points
        points = data.points + (data.labels if more else 0)
        steps = [stage.steps(points) for stage in self.stages if stage.runs(self, data.labels)]
        return replace(
            data, points=points, pairs=data.pairs * (3 if more else 1),
            width=0 if self.encoder is None else self.encoder.width,
            batch_size=min(points, max((batch for batch, _ in steps), default=0)),
            passes=sum(passes for _, passes in steps),
            moments=max((stage.moments() for stage in self.stages), default=0.0),
        )  # fmt: skip

    def total_cost(self, sizes: Sizes) -> Cost:
        """Add up the cost of all members: each is served, one at a time is trained."""
        one, more = super().total_cost(sizes), self.ensemble - 1
        return one + Cost(memory=more * one.disk, disk=more * one.disk, seconds=more * one.seconds)

    def members(self) -> list[Recipe]:
        """Return the recipe of each member of an ensemble, with seeds that no other seed's ensemble has."""
        if self.ensemble == 1:
            return [self]
        members = []
        for place in range(self.ensemble):
            augment = tuple(own for part in self.augment if (own := part.of_member(place)) is not None)
            member = replaced(replaced(self, "ensemble", 1), "augment", augment)
            members.append(replaced(member, "seed", self.seed * self.ensemble + place))
        return members

    @property
    def trains(self) -> bool:
        """Whether weights are learnt."""
        return bool(self.encoder or self.objectives or self.stages)

    def missing(self, name: str, rest: str, value: Any) -> Recipe:
        """Add a stage or a voice that is set by its name: `--set rerank=rerank`, `--set linear=linear`."""
        if name not in PARTS or not issubclass(kind := imported(PARTS, name, "part"), Stage | Voice):
            return super().missing(name, rest, value)
        what = "stage" if issubclass(kind, Stage) else "voice"
        if rest:
            raise RecipeError(f"{self.name} has no {what} {name!r} yet: add it first, --set {name}={name}")
        if value in (None, "none"):
            return self  # it is not there
        added = value if isinstance(value, kind) else create(kind, {})
        if value not in (name, added):
            raise RecipeError(f"{name} = {value!r}: a {what} is added by its name, {name}={name}")
        if what == "voice":
            return replaced(self, "voices", (*self.voices, added))
        stages = (*self.stages, added)
        return replaced(self, "stages", tuple(sorted(stages, key=lambda stage: stage.place)))


def recipe_of(value: Mapping[str, Any]) -> Recipe:
    """Build a recipe from what `dump` gave."""
    part = part_of(value)
    if not isinstance(part, Recipe):
        raise RecipeError(f"this describes the part {part.part!r}, not a recipe")
    return part


def find_recipe(name: str | Recipe) -> Recipe:
    """Find a recipe by name; `+` adds augmentations: `knn+gandalf`.

    >>> find_recipe("knn+gandalf").name
    'knn+gandalf'
    """
    if isinstance(name, Recipe):
        return name
    first, *added = name.split("+")
    recipe: Recipe = imported(RECIPES, first, "recipe")()
    for extra in added:
        if extra not in PARTS:
            raise RecipeError(f"there is no augmentation {extra!r}; {nearest(extra, augmentations())}")
        part = create(imported(PARTS, extra, "augmentation"), {})
        if not isinstance(part, Augmentation):
            raise RecipeError(f"{extra!r} is not an augmentation; {nearest(extra, augmentations())}")
        others = tuple(own for own in recipe.augment if own.part != part.part)  # the recipe's own gives way
        recipe = replaced(recipe, "augment", (*others, part))
    return replaced(recipe, "name", name)


def summary(name: str) -> str:
    """Say in a line what a recipe is.

    >>> summary("ance")
    'ANCE: DPR with negatives that the encoder itself finds, every five epochs.'
    """
    place = RECIPES[name].partition(":")[0]
    alone = sum(other.partition(":")[0] == place for other in RECIPES.values()) == 1
    about = sys.modules[place] if (function := imported(RECIPES, name, "recipe")) and alone else function
    return (about.__doc__ or "").splitlines()[0].removeprefix("Return ").partition(" References:")[0]


def augmentations() -> list[str]:
    """Name the parts that can follow a `+`."""
    return [name for name, place in PARTS.items() if ".augment." in place]
