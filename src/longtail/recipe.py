"""A paper is a value: Part (a frozen record of settings) and Recipe (the parts in the order of the flow).

A recipe is made by a function in `longtail.recipes`, changed with `dataclasses.replace` or `override("a.b", value)`,
written as plain JSON and read back. Parts are found by name; the module of a part is imported when the part is used.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass as checked

from longtail.errors import RecipeError, nearest

PARTS = {
    "bag": "longtail.encoders.bag:Bag",
    "inception": "longtail.encoders.convolutional:Inception",
    "cnn": "longtail.encoders.convolutional:Cnn",
    "everything": "longtail.shortlists.pool:Everything",
    "pool": "longtail.shortlists.pool:Pool",
    "meta": "longtail.shortlists.meta:Meta",
    "near": "longtail.shortlists.near:Near",
    "linear": "longtail.classifiers.linear:Linear",
    "training": "longtail.training.settings:Training",
    "surrogate": "longtail.training.settings:Surrogate",
    "rerank": "longtail.training.settings:Rerank",
    "lexical": "longtail.shortlists.lexical:Lexical",
    "gandalf": "longtail.augment.gandalf:Gandalf",
    "labelmix": "longtail.augment.labelmix:LabelMix",
    "mixup": "longtail.augment.mixup:MixUp",
    "labelmixup": "longtail.augment.mixup:LabelMixUp",
    "synonyms": "longtail.augment.synonyms:Synonyms",
}
RECIPES = {
    "frugal": "longtail.recipes.frugal:frugal",
    "astec": "longtail.recipes.astec:astec",
    "inceptionxml": "longtail.recipes.inceptionxml:inceptionxml",
    "inceptionxml_plus": "longtail.recipes.inceptionxml:inceptionxml_plus",
    "xmlcnn": "longtail.recipes.xmlcnn:xmlcnn",
    "knn": "longtail.recipes.knn:knn",
}
Made = TypeVar("Made", bound="Part")


class Part:
    """Settings of one stage; subclasses are frozen records declared with `@record`."""

    part: ClassVar[str]  # the name in PARTS

    def dump(self) -> dict[str, Any]:
        """Turn into plain JSON values, with the part's name under "part"."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"part": self.part, **fields}

    def override(self: Made, path: str, value: Any) -> Made:
        """Change one setting, given as a dotted path: `override("augment.0.threshold", 0.2)`.

        A part is swapped by giving its name: `override("lexical", "lexical")`.
        """
        name, _, rest = path.partition(".")
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        if name not in fields:
            raise RecipeError(f"{self.part} has no setting {name!r}; {nearest(name, fields)}")
        return _replaced(self, name, _changed(fields[name], rest, value, path))


class Augmentation(Part):
    """A part that makes or changes training points; `acts_on` says where the flow calls it."""

    acts_on: ClassVar[str]  # dataset, batch, words, embeddings, states or contexts


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[Made]) -> type[Made]:
    """Declare a part: a frozen, keyword-only dataclass whose values are checked when it is made."""
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return checked(cls, frozen=True, kw_only=True, config=config)  # type: ignore[return-value]


@record
class Recipe(Part):
    """The stages of a model as fields, in the order of the flow."""

    part: ClassVar[str] = "recipe"
    name: str
    seed: int = pydantic.Field(default=0, ge=0, lt=2**31)
    augment: tuple[Part, ...] = ()
    encoder: Part | None = None
    shortlist: Part | None = None
    classifier: Part | None = None
    loss: Literal["bce", "bce_mean", "decoupled", "decoupled_bce"] = "decoupled"
    surrogate: Part | None = None  # a stage before the training
    training: Part | None = None
    rerank: Part | None = None  # a stage after it
    lexical: Part | None = None
    blend: float | None = pydantic.Field(default=None, ge=0)  # of lexical scores into those of vectors; None: validate


def part_of(value: Mapping[str, Any]) -> Part:
    """Build a part from what `dump` gave."""
    fields = {key: _made(entry) for key, entry in value.items() if key != "part"}
    name = str(value.get("part"))
    if name == Recipe.part:
        return _checked(Recipe, fields)
    cls: type[Part] = _imported(PARTS, name, "part")
    return _checked(cls, fields)


def recipe_of(value: Mapping[str, Any]) -> Recipe:
    """Build a recipe from what `dump` gave."""
    made = part_of(value)
    if not isinstance(made, Recipe):
        raise RecipeError(f"this describes the part {made.part!r}, not a recipe")
    return made


def find_recipe(name: str | Recipe) -> Recipe:
    """Find a recipe by name; `+` adds augmentations: `knn+gandalf`.

    >>> find_recipe("knn+gandalf").name
    'knn+gandalf'
    """
    if isinstance(name, Recipe):
        return name
    first, *added = name.split("+")
    made: Recipe = _imported(RECIPES, first, "recipe")()
    parts = [_checked(_imported(PARTS, extra, "augmentation"), {}) for extra in added]
    for part in parts:
        if not isinstance(part, Augmentation):
            raise RecipeError(f"{part.part!r} is not an augmentation; {nearest(part.part, augmentations())}")
    return _replaced(_replaced(made, "augment", (*made.augment, *parts)), "name", name)


def augmentations() -> list[str]:
    """Name the parts that can follow a `+`."""
    return [name for name, place in PARTS.items() if ".augment." in place]


def parsed(text: str) -> Any:
    """Read the value of a `--set a.b=value`: JSON where it is JSON, else the text itself.

    >>> parsed("0.5"), parsed("true"), parsed("walk")
    (0.5, True, 'walk')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _imported(table: Mapping[str, str], name: str, what: str) -> Any:
    """Import the object that a table names."""
    if name not in table:
        names = augmentations() if what == "augmentation" else table
        raise RecipeError(f"there is no {what} {name!r}; {nearest(name, names)}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _checked(cls: type[Made], fields: Mapping[str, Any]) -> Made:
    """Make a record, turning pydantic's complaint into one line that names the field."""
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise RecipeError(f"{cls.part} has no setting {name!r}; {nearest(name, known)}")
    try:
        return cls(**fields)
    except pydantic.ValidationError as reason:
        first = reason.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise RecipeError(f"{cls.part}.{place} = {first['input']!r}: {first['msg']}") from None


def _replaced(part: Made, name: str, value: Any) -> Made:
    """Change one field and check the whole again."""
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}  # type: ignore[arg-type]
    return _checked(type(part), fields | {name: value})


def _changed(old: Any, rest: str, value: Any, path: str) -> Any:
    """Follow the rest of a path into a part or a tuple of parts."""
    if isinstance(old, tuple) and rest:
        place, _, further = rest.partition(".")
        if not place.isdecimal() or int(place) >= len(old):
            raise RecipeError(f"{path}: {place!r} is not a position of a list of {len(old)}")
        changed = list(old)
        changed[int(place)] = _changed(old[int(place)], further, value, path)
        return tuple(changed)
    if rest:
        if not isinstance(old, Part):
            raise RecipeError(f"{path}: there is nothing below {old!r}")
        return old.override(rest, value)
    if isinstance(value, str) and (isinstance(old, Part) or (old is None and value in PARTS)):
        return _checked(_imported(PARTS, value, "part"), {})
    return value


def _plain(value: Any) -> Any:
    """Turn parts inside a field into plain values."""
    if isinstance(value, Part):
        return value.dump()
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def _made(value: Any) -> Any:
    """Turn plain values back into parts."""
    if isinstance(value, dict) and "part" in value:
        return part_of(value)
    return tuple(_made(entry) for entry in value) if isinstance(value, list) else value
