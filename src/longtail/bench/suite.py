"""SUITE FILE → JOBS: a grid of recipes × data × seeds, and the peers beside it.

A suite is a TOML file; every key, recipe and setting is checked when it is read, so that a long run does not fail at a
misspelt name.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic
from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from longtail.auto.portfolio import Auto, portfolio
from longtail.bench.variants import check_way, columns
from longtail.errors import DataError, RecipeError, nearest, one_line
from longtail.recipe import Recipe, augmentations, find_recipe
from longtail.records import When, overridden, replaced

CHANGES = ("validation", "first-words", "permute-label-texts", "shuffle-test-words")  # in the order of their use
METRICS = tuple(f"{metric}@{k}" for metric in ("P", "nDCG", "R", "PSP", "PSnDCG", "PSN", "Cov") for k in (1, 3, 5))
METRICS += ("P@10",)  # of recipes alone; PSN is PSnDCG as AttentionXML computes it
SUM = "P@1 + PSP@5"  # what `auto` chooses by
BINS = ("head", "torso", "tail")  # recall of the bin's own labels at 5
COSTS = ("seconds", "cpu_seconds", "peak_mb", "model_mb", "mflops", "latency_ms", "batch_seconds")
COLUMNS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "Cov@5", "seconds", "peak_mb")
HARD = 0.5  # soft targets from here on are hard ones for a peer, unless the suite says otherwise

Words = tuple[str, ...]
Table = TypeVar("Table")
_config = pydantic.ConfigDict(extra="forbid", strict=False)


@checked(frozen=True, kw_only=True, config=_config)
class Run:
    """A recipe with settings; `ensemble` averages the scores of that many seeds, `budget` is the time of `auto`."""

    name: str
    recipe: str
    set: dict[str, Any] = Field(default_factory=dict)
    data: Words | None = None
    seeds: tuple[int, ...] | None = None
    change: str | Words = ()
    ensemble: int = Field(default=1, ge=1, le=20)
    budget: float | None = Field(default=None, gt=0)  # seconds
    also: Words = ()  # ways in which test points are measured too, such as "shuffled", "mistyped short"


@checked(frozen=True, kw_only=True, config=_config)
class Peer:
    """Another tool, trained by the peers' harness, perhaps on data that an augmentation made.

    `tool` is what the harness calls it, if that is not its name here.
    """

    name: str
    tool: str | None = None
    data: Words | None = None
    change: str | Words = ()
    also: Words = ()
    augment: str | None = None
    pairs: bool | None = None  # whether it gets neighbouring words as one, beside the words
    set: dict[str, Any] = Field(default_factory=dict)  # of the augmentation
    binarise: float = Field(default=HARD, gt=0, le=1)


@checked(frozen=True, kw_only=True, config=_config)
class Claim:
    """What a paper says of two runs; the table says whether it holds here.

    The run `higher` has more of a metric than the run `lower`, by more than the factor `times` where one is given, or
    with `level` at least about as much: not less by more than so many points.
    """

    says: str
    higher: str
    lower: str
    metric: str = "PSP@5"
    times: float = Field(default=1.0, gt=0)
    level: float = Field(default=0.0, ge=0)
    data: Words | None = None


@checked(frozen=True, kw_only=True, config=_config)
class Suite:
    """The contents of a suite file."""

    name: str
    title: str
    data: Words = ()
    seeds: tuple[int, ...] = (0,)
    columns: Words = COLUMNS
    ratio_to: str | None = None
    intervals: bool = False  # whether recipes are compared with the best peers by a bootstrap over points
    note: str = ""
    reuse: Words = ()  # suites beside this one: what they have run already is not run again
    run: tuple[Run, ...] = ()
    peer: tuple[Peer, ...] = ()
    claim: tuple[Claim, ...] = ()

    def jobs(self, only: Iterable[str] = ()) -> list[Job]:
        """List the jobs, or those of the named runs and peers, data set by data set."""
        known = [*(peer.name for peer in self.peer), *(run.name for run in self.run)]
        for name in (names := tuple(only)):
            if name not in known:
                raise RecipeError(f"the suite has no run {name!r}; {nearest(name, known)}")
        jobs = [job for job in self._all() if not names or job.name in names]
        order = list(dict.fromkeys([*self.data, *(job.data for job in jobs)]))
        return sorted(jobs, key=lambda job: order.index(job.data))

    def _all(self) -> Iterator[Job]:
        for peer in self.peer:
            for data in peer.data or self.data:
                yield Job(
                    kind="peer", name=peer.name, recipe=peer.augment or "", settings=flat(peer.set), data=data,
                    change=changes(peer.change), tool=peer.tool or peer.name, also=peer.also,
                    pairs=peer.pairs, binarise=peer.binarise if peer.augment else None,
                )  # fmt: skip
        for run in self.run:
            for data in run.data or self.data:
                for seed in run.seeds or self.seeds:
                    yield Job(
                        kind="recipe", name=run.name, recipe=run.recipe, settings=flat(run.set), data=data, seed=seed,
                        change=changes(run.change), ensemble=run.ensemble, also=run.also,
                        budget=run.budget,
                    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run: everything that decides its result, except the code and the machine."""

    kind: str  # recipe or peer
    name: str
    recipe: str  # of a peer: the augmentation of its data, or nothing
    settings: dict[str, Any]
    data: str
    change: Words = ()
    seed: int = 0
    ensemble: int = 1
    budget: float | None = None  # seconds of `auto`
    also: Words = ()  # variants of the test points that are measured too
    tool: str | None = None  # of a peer: its name in the harness
    binarise: float | None = None
    pairs: bool | None = None  # of a peer: neighbouring words as one, beside the words

    def __str__(self) -> str:
        change = "".join(f", {change}" for change in self.change)
        return f"{self.name} on {Path(self.data).name}{change}" + (f", seed {self.seed}" if self.kind != "peer" else "")

    def described(self) -> dict[str, Any]:
        """Return the fields of a line that describe its job; the data set by name, not by path."""
        facts = dataclasses.asdict(self) | {"data": Path(self.data).name, "change": list(self.change)}
        del facts["also"]  # its columns tell
        return {"run": facts.pop("name"), **facts}

    @property
    def key(self) -> str:
        """The key of this job, unique in the suite."""
        return key_of(self.described())

    def is_answered_by(self, line: Mapping[str, Any]) -> bool:
        """Return whether the line of another suite, which may call the run otherwise, has what this job would find."""
        same = key_of(self.described() | {"run": ""}) == key_of({**line, "run": ""})
        return same and "error" not in line and all(column in line for way in self.also for column in columns(way))


def key_of(line: Mapping[str, Any]) -> str:
    """Make the key of the job that a line belongs to.

    >>> job = Job(kind="recipe", name="a", recipe="knn", settings={}, data="d")
    >>> key_of({**job.described(), "P@1": 60.0}) == job.key
    True
    """
    names = ("run", "kind", "recipe", "settings", "data", "change", "seed", "ensemble", "tool", "binarise", "budget")
    later = {name: line[name] for name in ("pairs",) if line.get(name) is not None}  # lines of before have none
    return json.dumps([*(line.get(name) for name in names), *([later] if later else [])], sort_keys=True)


def grouped(jobs: Iterable[Job], key: Callable[[Job], object]) -> list[list[Job]]:
    """Put jobs with the same key together, in the order in which they come."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault(key(job), []).append(job)
    return list(groups.values())


def read_suite(path: str | Path) -> Suite:
    """Read a suite file and check all of it."""
    path = Path(path)
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("not found", file=path, remedy="give a suite file, like those in results/suites") from None
    except (ValueError, RecursionError) as reason:  # no TOML, no UTF-8, a number too long, too deep
        raise DataError(f"not TOML ({one_line(reason)})", file=path, remedy="mend the line") from None
    for table, cls in (("run", Run), ("peer", Peer), ("claim", Claim)):
        entries = config.get(table, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise RecipeError(f"{path.name}: {table} is not a list of tables; write [[{table}]]")
        config[table] = tuple(
            _parse(cls, entry, f"{path.name}: {table} {number}") for number, entry in enumerate(entries, 1)
        )
    if "name" in config:
        raise RecipeError(f"{path.name}: has no setting 'name'; a suite is called what its file is called, write title")
    suite = _parse(Suite, {"name": path.stem} | config, path.name)
    _check(suite)
    return suite


def recipe_for(job: Job) -> Recipe:
    """Return the recipe of a job; for a peer, one that has the augmentation of its data."""
    recipe = find_recipe(job.recipe if job.kind == "recipe" else f"knn+{job.recipe}")
    before = "" if job.kind == "recipe" else "augment.0."
    recipe = overridden(recipe, ((before + path, value) for path, value in job.settings.items()))
    recipe = recipe if job.ensemble == 1 else recipe.override("ensemble", job.ensemble)
    return recipe.override("seed", job.seed)


def auto_for(job: Job) -> Auto:
    """Return what a job of `auto` asks for."""
    more = [("ensemble", job.ensemble)] if job.ensemble > 1 else []
    return Auto.of(job.budget, [*job.settings.items(), *more, ("seed", job.seed)])


def training_of(job: Job) -> str:
    """Return the key of what a job trains: jobs that share it serve the same weights, each in its own way.

    A recipe that chooses something by what it serves, or puts a stage on top of that, has a training of its own.
    """
    if job.kind != "recipe" or job.recipe == Auto.name:
        return job.key
    recipe = recipe_for(job)
    if recipe.ensemble > 1 or recipe.undecided() != When.NEVER or any(stage.reads_served for stage in recipe.stages):
        return job.key
    objectives = tuple(replaced(objective, "served", None) for objective in recipe.objectives)
    return json.dumps([replaced(recipe, "objectives", objectives).dump(), job.data, job.change], sort_keys=True)


def recipe_for_all(jobs: Sequence[Job]) -> Recipe:
    """Return the recipe whose training has all that these jobs serve of one training."""
    first, *others = (recipe_for(job) for job in jobs)
    objectives = tuple(
        replaced(same[0], "served", max(objective.share for objective in same)) if others else same[0]
        for same in zip(first.objectives, *(other.objectives for other in others), strict=True)
    )
    return replaced(first, "objectives", objectives)


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Write nested settings as dotted paths; a table with "part" is a whole part.

    >>> flat({"training": {"epochs": 15}, "loss": {"part": "decoupled", "directions": "both"}})
    {'training.epochs': 15, 'loss': {'part': 'decoupled', 'directions': 'both'}}
    """
    out: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping) and "part" not in value
        out |= flat(value, f"{before}{name}.") if nested else {f"{before}{name}": value}
    return out


def changes(names: str | Words) -> Words:
    """Sort changes into the order in which they are applied, and refuse unknown ones.

    >>> changes(("permute-label-texts:0.3", "validation"))
    ('validation', 'permute-label-texts:0.3')
    """
    words = (names,) if isinstance(names, str) else names
    for word in words:
        name, colon, share = word.partition(":")
        if name not in CHANGES:
            raise RecipeError(f"there is no change {name!r}; {nearest(name, CHANGES)}")
        if name == "first-words" and not (share.isdecimal() and int(share)):
            raise RecipeError(f"change {word!r}: say how many words of a text are read, first-words:32")
        if colon and name != "first-words" and (name != "permute-label-texts" or not _is_share(share)):
            raise RecipeError(f"change {word!r}: only permute-label-texts takes a share, more than 0 and at most 1")
    return tuple(sorted(words, key=lambda word: CHANGES.index(word.partition(":")[0])))


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def _parse(cls: type[Table], entry: Mapping[str, Any], where: str) -> Table:
    """Validate a table of the file; an error is one line that names the key."""
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in entry:
        if name not in known:
            raise RecipeError(f"{where}: has no setting {name!r}; {nearest(name, known)}")
    try:
        return cls(**entry)
    except pydantic.ValidationError as reason:
        first = reason.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        if first["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
            raise RecipeError(f"{where}: has no {place}; add a line: {place} = …") from None
        raise RecipeError(f"{where}: {place} = {first['input']!r}: {first['msg']}") from None


def _check(suite: Suite) -> None:
    """Check what spans several keys: columns, recipes, settings, peers, names."""
    all_ways = {way for run in suite.run for way in run.also} | {way for peer in suite.peer for way in peer.also}
    for way in all_ways:
        check_way(way)
    ways = [column for way in all_ways for column in columns(way)]
    for column in suite.columns:
        if column not in (valid := (*METRICS, SUM, *BINS, *COSTS, *ways)):
            raise RecipeError(f"{suite.name}: there is no column {column!r}; {nearest(column, valid)}")
    names = {peer.name for peer in suite.peer} | {run.name for run in suite.run}
    if suite.ratio_to is not None and suite.ratio_to not in names:
        raise RecipeError(f"{suite.name}: ratio_to = {suite.ratio_to!r}; {nearest(suite.ratio_to, names)}")
    _check_claims(suite, names)
    for peer in suite.peer:
        if ":" not in (tool := peer.tool or peer.name):
            raise RecipeError(f"{suite.name}: peer {tool!r} has no variant; write it like omikuji:bonsai")
        if peer.augment is not None and peer.augment not in augmentations():
            raise RecipeError(f"{suite.name}: augment {peer.augment!r}; {nearest(peer.augment, augmentations())}")
        if peer.set and peer.augment is None:
            raise RecipeError(f"{suite.name}: peer {peer.name!r} has settings but nothing to augment with; add augment")
    jobs = suite.jobs()
    if not jobs:
        raise RecipeError(f"{suite.name}: there is nothing to run; give data, and at least one [[run]] or [[peer]]")
    seen: dict[tuple[Any, ...], str] = {}
    for job in jobs:
        _check_recipe(job, suite.name)
        row = (job.kind, job.name, Path(job.data).name, job.change, job.seed)
        if row in seen:
            raise RecipeError(f"{suite.name}: {job} stands there twice; give one of them another name")
        seen[row] = job.key


def _check_recipe(job: Job, suite: str) -> None:
    """Check that a recipe takes the settings of a job."""
    if job.recipe == Auto.name:
        portfolio(auto_for(job), label_texts=True)
    elif job.budget is not None:
        raise RecipeError(f"{suite}: {job} has a budget, which is for auto")
    elif job.kind == "recipe" or job.recipe:
        recipe_for(job)


def _check_claims(suite: Suite, names: Iterable[str]) -> None:
    """Check that claims are about runs and metrics that there are."""
    for claim in suite.claim:
        for run in (claim.higher, claim.lower):
            if run not in names:
                raise RecipeError(f"{suite.name}: a claim about {run!r}; {nearest(run, names)}")
        if claim.metric not in (valid := (*METRICS, SUM, *BINS, *COSTS)):
            raise RecipeError(f"{suite.name}: a claim about {claim.metric!r}; {nearest(claim.metric, valid)}")
