"""SETTINGS ↔ PLAIN VALUES: a part is a frozen record that is found by name, changed by path, and written as JSON.

The module of a part is imported when the part is used. `--set a.b=value` ends in `Part.override`.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass as checked

from longtail.errors import RecipeError, nearest
from longtail.types import counted

PARTS = {
    "bag": "longtail.encoders.bag:Bag",
    "inception": "longtail.encoders.inception:Inception",
    "cnn": "longtail.encoders.cnn:Cnn",
    "recurrent": "longtail.encoders.recurrent:Recurrent",
    "transformer": "longtail.encoders.transformer:Transformer",
    "residual": "longtail.encoders.heads:Residual",
    "convolved": "longtail.encoders.convolved:Convolved",
    "gated": "longtail.encoders.heads:Gated",
    "project": "longtail.encoders.heads:Project",
    "all_labels": "longtail.samplers.all_labels:AllLabels",
    "batch_pool": "longtail.samplers.batch_pool:BatchPool",
    "clusters": "longtail.samplers.clusters:Clusters",
    "drawn": "longtail.samplers.drawn:Drawn",
    "beam": "longtail.samplers.beam:Beam",
    "near": "longtail.samplers.near:Near",
    "tree": "longtail.samplers.tree:Tree",
    "rows": "longtail.classifiers.rows:Rows",
    "label_text": "longtail.classifiers.texts:LabelText",
    "graph_text": "longtail.classifiers.texts:GraphText",
    "combined": "longtail.classifiers.texts:Combined",
    "dense_rows": "longtail.classifiers.dense_rows:DenseRows",
    "label_attention": "longtail.classifiers.attention:LabelAttention",
    "bce": "longtail.losses.bce:Bce",
    "bce_mean": "longtail.losses.bce:BceMean",
    "decoupled": "longtail.losses.decoupled:Decoupled",
    "contrastive": "longtail.losses.contrastive:Contrastive",
    "supcon": "longtail.losses.decoupled:SupCon",
    "sum_of": "longtail.losses.sums:Sum",
    "triplet": "longtail.losses.triplet:Triplet",
    "chunked_bce": "longtail.losses.chunked:ChunkedBce",
    "objective": "longtail.parts:Objective",
    "shuffled": "longtail.training.orders:Shuffled",
    "lengths": "longtail.training.orders:Lengths",
    "similar": "longtail.training.orders:Similar",
    "loop": "longtail.training.settings:LoopSettings",
    "training": "longtail.training.stages.training:Training",
    "surrogate": "longtail.training.stages.surrogate:Surrogate",
    "siamese": "longtail.training.stages.siamese:Siamese",
    "phase": "longtail.training.stages.phase:Phase",
    "level": "longtail.training.stages.phase:Level",
    "levels": "longtail.training.stages.levels:Levels",
    "recluster": "longtail.training.stages.recluster:Recluster",
    "rerank": "longtail.training.stages.rerank:Rerank",
    "traverse": "longtail.training.stages.traverse:Traverse",
    "lexical": "longtail.scorers.lexical:Lexical",
    "linear": "longtail.classifiers.sparse:Linear",
    "gandalf": "longtail.augment.gandalf:Gandalf",
    "labelmix": "longtail.augment.labelmix:LabelMix",
    "mixup": "longtail.augment.mixup:MixUp",
    "manifoldmixup": "longtail.augment.mixup:ManifoldMixUp",
    "labelmixup": "longtail.augment.mixup:LabelMixUp",
    "tailmix": "longtail.augment.tailmix:TailMix",
    "wordmix": "longtail.augment.mixups:WordMix",
    "hiddenmix": "longtail.augment.mixups:HiddenMix",
    "tmix": "longtail.augment.mixups:TMix",
    "ssmix": "longtail.augment.ssmix:SSMix",
    "synonyms": "longtail.augment.synonyms:Synonyms",
    "recipe": "longtail.recipe:Recipe",
}
RENAMED = {
    "everything": "all_labels",
    "pool": "batch_pool",
    "meta": "clusters",
    "decoupled_bce": "sum_of",
}
LAST = ("min_steps", "decay_every", "warmup")  # settings whose meaning depends on others: epochs, the schedule
AnyPart = TypeVar("AnyPart", bound="Part")


class When(enum.IntEnum):
    """When validation points settle a setting."""

    NEVER = 0  # every setting is given
    AFTER = 1  # once the weights are there: they may be trained again on all points
    WHILE = 2  # while the weights are trained: these stay


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a cost grows with."""

    points: int  # those that augmentations make included
    labels: int
    pairs: int  # positives of all points
    words: float  # different words of a text
    vocabulary: int
    width: int = 0  # dimension of the encoder's vectors
    batch_size: int = 0  # points of the largest step
    passes: float = 0.0  # how often all stages together look at every point
    moments: float = 2.0  # numbers that the optimizer keeps for each of a table
    processes: int = 1  # that share the labels

    @property
    def told(self) -> float:
        """How often a process sends a number that all of them add up: a ring sends it around twice."""
        return 2 * (self.processes - 1) / self.processes

    def distinct(self, texts: float) -> float:
        """Guess how many different words so many texts have, by Heaps' law."""
        share = min(1.0, texts / max(self.points, 1))
        return min(texts * self.words, self.vocabulary * float(share**0.6))


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a part needs: bytes of memory at its peak and on disk, seconds of a fit, bytes sent by a process a step."""

    memory: float = 0.0
    disk: float = 0.0
    seconds: float = 0.0
    sent: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        ours, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Cost(*(one + more for one, more in zip(ours, theirs, strict=True)))


@dataclasses.dataclass(frozen=True)
class StageDone:
    """What a stage of a training did, whatever its settings asked for."""

    stage: str
    epochs: int
    steps: int
    batch_size: int
    member: int = 0  # of an ensemble

    def __str__(self) -> str:
        return f"{self.stage}: {counted(self.epochs, 'epoch')}, {counted(self.steps, 'step')} of {self.batch_size:,}"


class Part(ABC):
    """Settings of one thing, which knows how to build what it describes; subclasses are declared with `@record`."""

    part: ClassVar[str]  # the name in PARTS
    renamed: ClassVar[Mapping[str, str]] = {}  # settings of earlier versions and what they are called now
    direct: ClassVar[tuple[str, ...]] = ()  # lists whose first part is reached without naming the list

    def check(self, recipe: Any) -> None:
        """Refuse a recipe whose other parts do not fit this one; by default its own parts are asked."""
        for part in self.parts():
            part.check(recipe)

    def undecided(self) -> When:
        """Return when validation points settle a setting of this part."""
        return max((part.undecided() for part in self.parts()), default=When.NEVER)

    def cost(self, sizes: Sizes) -> Cost:
        """Return what the part needs beside what its own parts need."""
        return Cost()

    def total_cost(self, sizes: Sizes) -> Cost:
        """Add up the cost of this part and of all parts below it."""
        return sum((part.total_cost(sizes) for part in self.parts()), self.cost(sizes))

    def fields(self) -> dict[str, Any]:
        """Return the settings by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def parts(self) -> Iterator[Part]:
        """Yield the parts that stand directly below this one."""
        for value in self.fields().values():
            for entry in value if isinstance(value, tuple) else (value,):
                if isinstance(entry, Part):
                    yield entry

    def dump(self) -> dict[str, Any]:
        """Return plain JSON values, with the part's name under "part"."""
        return {"part": self.part} | {name: _plain(value) for name, value in self.fields().items()}

    def override(self: AnyPart, path: str, value: Any) -> AnyPart:
        """Change one setting, given as a dotted path: `override("augment.0.threshold", 0.2)`.

        A part of a list is reached by its position or by its name, and the settings of the first objective also
        directly: `stages.0.epochs` and `training.epochs`, `objectives.0.sampler.top` and `sampler.top`. A part is
        swapped by giving the name of another, `override("encoder", "cnn")`, or its name and settings as `dump` gives
        them, and left out by "none".
        """
        name, _, rest = path.partition(".")
        fields = self.fields()
        if name in fields:
            return replaced(self, name, _changed(fields[name], rest, value, path))
        for field, place, below in self._inside(name):
            entries = list(fields[field])
            if below:
                entries[place] = entries[place].override(path, value)
            elif value in (None, "none") and not rest:
                del entries[place]
            else:
                entries[place] = _changed(entries[place], rest, value, path)
            return replaced(self, field, tuple(entries))
        return self.missing(name, rest, value)

    def _inside(self, name: str) -> Iterator[tuple[str, int, bool]]:
        """Find `name` in lists of parts: the name of a part, or else (True) a setting that is reached directly."""
        lists = [(field, value) for field, value in self.fields().items() if isinstance(value, tuple)]
        entries = [(field, place, entry) for field, value in lists for place, entry in enumerate(value)]
        parts = [(field, place, entry) for field, place, entry in entries if isinstance(entry, Part)]
        yield from ((field, place, False) for field, place, entry in parts if entry.part == name)
        yield from ((f, place, True) for f, place, entry in parts if f in self.direct and name in entry.fields())

    def missing(self: AnyPart, name: str, rest: str, value: Any) -> AnyPart:
        """Answer a path that leads nowhere."""
        listed = [entry for value in self.fields().values() if isinstance(value, tuple) for entry in value]
        raise unknown_setting(type(self), name, [*self.fields(), *(e.part for e in listed if isinstance(e, Part))])


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[AnyPart]) -> type[AnyPart]:
    """Declare a part: a frozen, keyword-only dataclass whose values are checked when it is made."""
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return checked(cls, frozen=True, kw_only=True, config=config)  # type: ignore[return-value]


def register(name: str, place: str) -> None:
    """Make a part of another package known: `register("toy", "my_package.toys:Toy")`."""
    if PARTS.setdefault(name, place) != place:
        raise RecipeError(f"the part {name!r} is already {PARTS[name]}; choose another name")


def part_of(value: Mapping[str, Any]) -> Part:
    """Build a part from what `dump` gave."""
    cls: type[Part] = imported(PARTS, str(value.get("part")), "part")
    return create(cls, {key: _built(entry) for key, entry in value.items() if key != "part"})


def named(name: str, **settings: Any) -> Any:
    """Make a part by its name, for defaults of parts that must not know each other's modules."""
    return create(imported(PARTS, name, "part"), settings)


def overridden(part: AnyPart, settings: Iterable[tuple[str, Any]]) -> AnyPart:
    """Change several settings, in order; those that another one would reset or needs to be there come last."""
    listed = list(settings)
    for path, value in sorted(listed, key=lambda setting: setting[0].rpartition(".")[2] in LAST):
        part = part.override(path, value)
    return part


def parsed(text: str) -> Any:
    """Read the value of a `--set a.b=value`: JSON where it is JSON, else the text itself.

    >>> parsed("0.5"), parsed("true"), parsed("walk")
    (0.5, True, 'walk')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def imported(table: Mapping[str, str], name: str, kind: str) -> Any:
    """Import the object that a table names."""
    if name not in table:
        if name in RENAMED:
            raise RecipeError(f"the {kind} {name!r} is now called {RENAMED[name]!r}")
        raise RecipeError(f"there is no {kind} {name!r}; {nearest(name, table)}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def create(cls: type[AnyPart], fields: Mapping[str, Any]) -> AnyPart:
    """Make a record, turning pydantic's complaint into one line that names the field."""
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise unknown_setting(cls, name, known)
    try:
        return cls(**fields)
    except pydantic.ValidationError as reason:
        first = reason.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise RecipeError(f"{cls.part}.{place} = {first['input']!r}: {first['msg']}") from None


def replaced(part: AnyPart, name: str, value: Any) -> AnyPart:
    """Change one field and check the whole again."""
    return create(type(part), part.fields() | {name: value})


def unknown_setting(cls: type[Part], name: str, known: Any) -> RecipeError:
    """Say that a setting does not exist, and what it is called now or what was probably meant."""
    if name in cls.renamed:
        return RecipeError(f"{cls.part}.{name} is now called {cls.renamed[name]}")
    return RecipeError(f"{cls.part} has no setting {name!r}; {nearest(name, known)}")


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
    if value == "none" and (old is None or isinstance(old, Part)):
        return None
    if isinstance(value, str) and (isinstance(old, Part) or (old is None and value in PARTS)):
        return create(imported(PARTS, value, "part"), {})
    return _built(value)


def _plain(value: Any) -> Any:
    """Turn parts inside a field into plain values."""
    if isinstance(value, Part):
        return value.dump()
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def _built(value: Any) -> Any:
    """Turn plain values back into parts."""
    if isinstance(value, dict) and "part" in value:
        return part_of(value)
    return tuple(_built(entry) for entry in value) if isinstance(value, list) else value
