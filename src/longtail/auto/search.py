"""DATA + BUDGET → RECIPE: short trials on held-out training points, of which the better half goes on to more points.

A trial fits a candidate to a small data set: some of the training points and the labels that these have. What a whole
fit will take is reckoned from the trial, by what the estimates of the two say of each other. A trial or a fit that
would not end in time is not begun. Finished trials are kept in the scratch folder, and a stopped search reuses them.

References: Jamieson and Talwalkar (2016), successive halving.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from longtail.auto.portfolio import BAR, Auto, Candidate
from longtail.comparison import gains
from longtail.data.dataset import Split
from longtail.errors import LongtailError, ResourceError
from longtail.files import read_json, write_json
from longtail.labels.matching import narrowed
from longtail.labels.propensity import Propensity, frequencies
from longtail.model import Model
from longtail.recipe import Recipe, recipe_of
from longtail.records import Sizes
from longtail.types import Progress, counted

PLANNED, TRIALS = 1 / 3, 0.6  # of the time: for the trials that are planned, and for all of them at most
SAFE = 1.2  # what a fit is reckoned to take beside what its trial says
DOUBT = 2.0  # an estimate without a trial may be so many times too high
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of the training points, in the first round of trials
SMALL = 1000  # points of a trial, at least
WARM = 50  # points of a fit before the first trial of a kind
FEW = 100  # points of a data set in which nothing can be compared
HELD_OUT, ENOUGH, MOST = 0.1, 30, 3000  # share of the points that decide, and how many at least and at most
EPOCHS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # shares of the epochs that a fit is shortened to, so as to end in time
WRITTEN = 1e8  # bytes of a model folder that are written in a second

Fitting = Callable[[Recipe, Split, Progress], Model]


@dataclass(frozen=True)
class Trial:
    """What a fit to some of the points was worth on held-out ones."""

    name: str
    share: float
    points: int
    seconds: float
    precision: float = 0.0  # P@1, in percent
    propensity: float = 0.0  # PSP@5, in percent
    values: tuple[float, ...] = ()  # what each held-out point adds to the sum of the two
    failed: str = ""
    fitting: float = 0.0  # seconds of the fit alone, without those of measuring
    budget: float = 0.0  # with another one it may not fail

    @property
    def quality(self) -> float:
        """P@1 + PSP@5."""
        return self.precision + self.propensity

    def behind(self, other: Trial) -> bool:
        """Return whether it is worse than another by more than a standard error of the difference."""
        loss = np.array(other.values) - np.array(self.values)
        return bool(loss.mean() > loss.std() / np.sqrt(len(loss)))


@dataclass(frozen=True)
class Choice:
    """The recipe to fit, and what is kept with the model: everything that was tried, and why it is this one."""

    recipe: Recipe
    record: Mapping[str, Any]


@dataclass(eq=False)
class Search:
    """Trials of candidates on some data, within a budget; `fit` makes a model and `clock` tells the seconds."""

    auto: Auto
    train: Split
    sizes: Sizes  # of `train`
    candidates: Sequence[Candidate]
    fit: Fitting
    left_out: dict[str, str] = field(default_factory=dict)
    scratch: Path | None = None
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.began = self.clock() - self.auto.spent
        self.until = self.auto.spent + TRIALS * (self.auto.budget - self.auto.spent)  # the end of all trials
        self.trials: list[Trial] = []
        self.warm = {"lexical"}
        self.bar = next((one for one in self.candidates if one.name == BAR), None)
        self.sample, self.sizes_at = cache(self._sample), cache(self._sizes_at)
        self.tests = len(self.train) >= FEW  # whether anything can be compared
        if self.tests:
            share = max(HELD_OUT, min(0.3, ENOUGH / len(self.train)))
            self.kept, self.held_out = self.train.divide(share, seed=self.auto.seed, most=MOST, leave=True)
            self.order = np.random.default_rng([self.auto.seed, 3]).permutation(len(self.kept))

    @property
    def elapsed(self) -> float:
        """Seconds since the search began."""
        return self.clock() - self.began

    def run(self) -> Choice:
        """Try, halve and choose; a choice that was made before the search was stopped stays."""
        key = json.dumps([self.auto.dump(), self.train.fingerprint])
        file = None if self.scratch is None else self.scratch / "auto.json"
        if file is not None and file.exists() and (before := read_json(file)).get("key") == key:
            return Choice(recipe_of(before["recipe"]), before["record"])
        few = f"{counted(len(self.train), 'point')} are too few to compare recipes by trials"
        choice = self._searched() if self.tests else self._untested(few, 1.0)
        self._keep(file, {"key": key, "recipe": choice.recipe.dump(), "record": choice.record})
        return choice

    def _keep(self, file: Path | None, value: Mapping[str, Any]) -> None:
        """Write a file of the scratch folder, where there is one."""
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, value)

    def plan(self) -> tuple[float, list[Candidate]]:
        """Return the share of the points in the first trials, and what is tried with it, in the order of the portfolio.

        The share is the largest one with which the first and half of the others can be tried in time: what is best on
        few points need not be the best on many.
        """
        if not self.tests:
            return 1.0, []
        left = self.auto.budget - self.elapsed
        room, limit = (1 - PLANNED) * left, PLANNED * left
        hopeful: list[Candidate] = []
        sure: list[str] = []  # whose fits end in time: their trials come first, then the cheapest
        for one in self.candidates:
            least = self.reckoned(one, fewer_epochs(one.recipe, EPOCHS[-1]), self.sizes)
            if least > DOUBT * room and one is not self.bar:
                self.left_out[one.name] = f"a fit would take about {least:.0f} s, and {room:.0f} s are left for it"
            else:
                hopeful.append(one)
                sure += [one.name] if self.reckoned(one, one.recipe, self.sizes) <= room else []
        shares = [share for share in SHARES if share == 1 or share * len(self.kept) >= SMALL]
        for share in shares:
            rounds = 1 + min(round(math.log2(1 / share)), math.ceil(math.log2(max(1, len(hopeful)))))
            tried = self._affordable(hopeful, sure, share, limit / (rounds if share != shares[-1] else 1))
            if not hopeful or (hopeful[0] in tried and 2 * len(tried) >= len(hopeful)):
                break
        self.left_out |= {one.name: "there is no time for a trial" for one in hopeful if one not in tried}
        return share, tried

    def _affordable(
        self, hopeful: Sequence[Candidate], sure: Sequence[str], share: float, limit: float
    ) -> list[Candidate]:
        """List those that can be tried within a limit: first those whose fits end in time, then the cheapest."""
        tried = [one for one in hopeful if one is self.bar]
        cost = {one.name: 0.0 if one.name in sure else self.reckoned_trial(one, share) for one in hopeful}
        for one in sorted(hopeful, key=lambda one: cost[one.name]):
            if one not in tried and sum(self.reckoned_trial(other, share) for other in (*tried, one)) <= limit:
                tried.append(one)
        return [one for one in hopeful if one in tried]

    def _searched(self) -> Choice:
        """Run the rounds, and choose among what the last whole one tried."""
        share, alive = self._planned()
        if self.bar is not None and self._no_time(self.bar, share):
            return self._untested("the budget is too small for trials")
        names, last = [one.name for one in self.candidates], list[Trial]()
        while alive:
            tried = self._round(alive, share, first=not last)
            if any(one.failed for one in tried) and last:
                break  # the round before has all of them
            ended = sorted((one for one in tried if not one.failed), key=lambda one: names.index(one.name))
            last = sorted(ended, key=lambda one: -one.quality)
            half = [one.name for one in last[: math.ceil(len(last) / 2)]]
            better = [one for one in alive if one.name in half and self.ending(one) is not None]
            alive = [one for one in alive if one in better or one is self.bar]
            share *= 2
            alive = self._going_on(alive, better, last[0].name, share) if better and share <= 1 else []
        return self._chosen(last) if last else self._untested("the budget is too small: no trial ended in time")

    def _planned(self) -> tuple[float, list[Candidate]]:
        """Plan the first round, once: a stopped search goes on with the same one, and finds its trials again."""
        file = None if self.scratch is None else self.scratch / "trials" / "plan.json"
        if file is not None and file.exists() and (before := read_json(file)).get("auto") == self.auto.dump():
            self.left_out.update(before["left_out"])
            return before["share"], [one for one in self.candidates if one.name in before["names"]]
        share, tried = self.plan()
        plan = {"auto": self.auto.dump(), "names": [one.name for one in tried], "left_out": self.left_out}
        self._keep(file, {"share": share, **plan})
        return share, tried

    def _round(self, alive: Sequence[Candidate], share: float, *, first: bool) -> list[Trial]:
        """Try all of them on a share of the points: what trains comes last, in the order of the portfolio."""
        tried: list[Trial] = []
        quick = sorted((one for one in alive if not one.recipe.trains), key=lambda one: self.reckoned_trial(one, share))
        order = sorted([*quick, *(one for one in alive if one.recipe.trains)], key=lambda one: one is not self.bar)
        for one in order:
            if first and one is not self.bar and (missing := self._no_time(one, share, tried)):
                self.left_out[one.name] = f"after a trial there would be no time for {missing}"
                continue
            trial = self._trial(one, share)
            tried.append(trial)
            self.trials.append(trial)
        return tried

    def _no_time(self, one: Candidate, share: float, tried: Sequence[Trial] = ()) -> str:
        """Return what there is no time for after a trial: a fit of it, or of the best so far that ends in time now."""
        trial, by_name = self.reckoned_trial(one, share), {one.name: one for one in self.candidates}
        if self.elapsed + trial > self.until or self.ending(one, after=trial) is None:
            return "a fit"
        ended = [by_name[other.name] for other in sorted(tried, key=lambda other: -other.quality) if not other.failed]
        best = next((other for other in ended if self.ending(other) is not None), None)
        return "the best so far" if best is not None and self.ending(best, after=trial) is None else ""

    def _going_on(
        self, alive: Sequence[Candidate], better: Sequence[Candidate], best: str, share: float
    ) -> list[Candidate]:
        """List those that another round has time for: the best so far, and the cheapest of the others."""
        going = sorted(
            alive, key=lambda one: (one is not self.bar and one.name != best, self.reckoned_trial(one, share))
        )
        while len(going) > 1:
            if (half := [one for one in better if one in going]) and self._time_for(going, half, share):
                return [one for one in alive if one in going]
            going.pop()
        return []

    def _time_for(self, alive: Sequence[Candidate], better: Sequence[Candidate], share: float) -> bool:
        """Return whether another round leaves time for a whole fit of any of those that are better."""
        needed = sum(self.reckoned_trial(one, share) for one in alive)
        endings = [self.ending(one, after=needed) for one in better]
        return self.elapsed + needed <= self.until and all(end is not None and end[0] == 1 for end in endings)

    def _trial(self, one: Candidate, share: float) -> Trial:
        """Fit to a share of the points and measure on those held out, unless that was done before a stop."""
        recipe = for_share(one.recipe, share)
        identity = json.dumps([recipe.dump(), share, self.train.fingerprint])
        name = f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
        file = None if self.scratch is None else self.scratch / "trials" / name
        before = read_json(file) if file is not None and file.exists() else {}
        if "budget" in before and (not before["failed"] or before["budget"] == self.auto.budget):
            trial = Trial(
                **{name: before[name] for name in asdict(Trial("", 0, 0, 0))} | {"values": (*before["values"],)}
            )
            self.began -= trial.seconds
            return trial
        self._warm_up(recipe)
        began = self.clock()
        trial = replace(self._measured(one, recipe, share), seconds=round(self.clock() - began, 3))
        self._keep(file, asdict(trial))
        return trial

    def _warm_up(self, recipe: Recipe) -> None:
        """Load and compile what is needed once, by a fit to a few points: it says nothing of the pace of a trial."""
        kinds = {voice.part for voice in recipe.voices} | ({"training"} if recipe.trains else set())
        if kinds <= self.warm:
            return
        self.warm |= kinds
        few = narrowed(self.kept.take(np.sort(self.order[:WARM])), self.held_out)[0]
        with suppress(LongtailError):  # the trial says what is wrong
            self.fit(fewer_epochs(recipe, 0.01), few, lambda *_: None)

    def _measured(self, one: Candidate, recipe: Recipe, share: float) -> Trial:
        """Fit and measure; what cannot be fitted, or not in time, has failed."""
        train, held_out = self.sample(share)
        trial = Trial(one.name, share, len(train), 0.0, budget=self.auto.budget)

        def told(what: str, done: int, total: int) -> None:
            if self.elapsed > self.until and one is not self.bar:
                raise ResourceError("stopped: it takes longer than there is time for trials")
            if self.progress:
                self.progress(f"trying {one.name} on {len(train):,} points, {what}", done, total)

        began = self.clock()
        try:
            model = self.fit(recipe, train, told)
            trial = replace(trial, fitting=round(self.clock() - began, 3))
            top = model.predict_split(held_out, 5)
        except LongtailError as reason:
            return replace(trial, failed=str(reason))
        inverse = Propensity.of(train.dataset).inverse(frequencies(train.original.targets), len(train))
        first, five = (gains(top, held_out.targets, inverse, k) for k in (1, 5))
        scored = five.gains * len(held_out) / max(float(five.best.sum()), 1e-12)
        values = tuple(np.round(100 * (first.hits + scored), 3).tolist())
        precision, propensity = (round(100 * float(each.mean()), 4) for each in (first.hits, scored))
        return replace(trial, values=values, precision=precision, propensity=propensity)

    def _sample(self, share: float) -> tuple[Split, Split]:
        """Take a share of the points, the same ones first for every share, and the labels that they have."""
        if share == 1:
            return self.kept, self.held_out
        some = self.kept.take(np.sort(self.order[: round(share * len(self.kept))]))
        small, held_out = narrowed(some, self.held_out)
        return (small, held_out) if len(held_out) >= ENOUGH else (some, self.held_out)

    def _sizes_at(self, share: float) -> Sizes:
        """Return what the cost of a trial grows with."""
        train, part = self.sample(share)[0], share * len(self.kept) / len(self.train)
        vocabulary = round(self.sizes.vocabulary * part**0.6)  # Heaps' law
        return replace(
            self.sizes, points=len(train), labels=len(train.labels), pairs=train.targets.nnz, vocabulary=vocabulary
        )

    def reckoned(self, one: Candidate, recipe: Recipe, sizes: Sizes, *, measured: bool = False) -> float:
        """Reckon the seconds of a fit from the candidate's last trial; before it from the trials of those like it.

        The quickest says nothing of others: a trial takes some time whatever it does.
        """
        ended = [trial for trial in self.trials if not trial.failed and (trial.name != BAR or one is self.bar)]
        own = [trial for trial in ended if trial.name == one.name][-1:]
        alike = [trial for trial in ended if self._recipe(trial).trains == one.recipe.trains]
        taken = own or alike or ended
        estimated = sum(self._estimated(trial) for trial in taken)
        took = sum(trial.seconds if measured else trial.fitting for trial in taken)
        pace = took / estimated if taken else 1.0
        return SAFE * pace * seconds_of(recipe, sizes)

    def _recipe(self, trial: Trial) -> Recipe:
        """Return the recipe of a trial."""
        return next(one.recipe for one in self.candidates if one.name == trial.name)

    def _estimated(self, trial: Trial) -> float:
        """Return the seconds that were estimated for a trial."""
        return seconds_of(for_share(self._recipe(trial), trial.share), self.sizes_at(trial.share))

    def reckoned_trial(self, one: Candidate, share: float) -> float:
        """Reckon the seconds of a trial."""
        return self.reckoned(one, for_share(one.recipe, share), self.sizes_at(share), measured=True)

    def ending(self, one: Candidate, *, after: float = 0.0) -> tuple[float, float] | None:
        """Return the share of the epochs with which a fit ends in time, and its seconds; None where it does not.

        The fit begins so many seconds `after` now, and then the model has to be written.
        """
        saving = 1 + one.recipe.total_cost(one.recipe.sizes(self.sizes)).disk / WRITTEN
        left = self.auto.budget - self.elapsed - after - saving
        for share in EPOCHS:
            seconds = self.reckoned(one, fewer_epochs(one.recipe, share), self.sizes)
            if seconds <= left:
                return share, seconds
        return None

    def _chosen(self, tried: Sequence[Trial]) -> Choice:
        """Choose the best that ends in time; of those that are not certainly worse, the first of the portfolio."""
        ending = {one.name: self.ending(one) for one in self.candidates}
        fitting = [trial for trial in tried if ending[trial.name] is not None]
        bar = next((trial.quality for trial in fitting if trial.name == BAR), -math.inf)
        if not fitting:
            return self._untested("the budget is too small for a fit of what was tried")
        best = max(fitting, key=lambda trial: trial.quality)
        close = [trial for trial in fitting if trial.quality >= bar and not trial.behind(best)]
        order = [one.name for one in self.candidates]
        taken = min(close, key=lambda trial: order.index(trial.name))
        share, seconds = ending[taken.name] or (1.0, 0.0)
        candidate = self.candidates[order.index(taken.name)]
        return self._recorded(candidate, self._reason(taken, best, tried, ending), share, seconds)

    def _reason(self, taken: Trial, best: Trial, tried: Sequence[Trial], ending: Mapping[str, Any]) -> str:
        """Say why it is this one."""
        figure = f"{taken.quality:.1f} on {counted(len(taken.values), 'held-out point')}"
        others = [f"{BAR} {one.quality:.1f}" for one in tried if one.name == BAR and taken.name != BAR]
        words = [f"{taken.name} has the best P@1 + PSP@5 of what can be fitted in time: {figure}"]
        if taken is not best:
            words = [f"{taken.name} has a P@1 + PSP@5 of {figure}, within chance of {best.name}, {best.quality:.1f}"]
            words[0] += ", and is the better one on most data"
        words[0] += f" ({', '.join(others)})" if others else ""
        late = [one for one in tried if ending[one.name] is None and one.quality > best.quality]
        words += [f"{one.name} has {one.quality:.1f}, but its fit would not end in time" for one in late]
        if (share := ending[taken.name][0]) < 1:
            words.append(f"it is fitted with {share:.0%} of its epochs, so as to end in time")
        return "; ".join(words)

    def _untested(self, reason: str, share: float = EPOCHS[-1]) -> Choice:
        """Take what is always there: `knn`, or the cheapest with a share of its epochs."""
        cheapest = min(self.candidates, key=lambda one: seconds_of(one.recipe, self.sizes))
        one = self.bar or cheapest
        return self._recorded(one, f"{reason}; {one.name} takes the least time", share if one.recipe.trains else 1.0)

    def _recorded(self, one: Candidate, why: str, share: float = 1.0, seconds: float | None = None) -> Choice:
        """Write down everything that led to a choice, in plain values."""
        whole = seconds_of(one.recipe, self.sizes) if seconds is None else seconds
        by_name = {candidate.name: candidate for candidate in self.candidates}
        lines = [
            {
                "name": trial.name, "share": trial.share, "points": trial.points, "seconds": round(trial.seconds, 2),
                "fit_seconds": round(self.reckoned(by_name[trial.name], by_name[trial.name].recipe, self.sizes), 2),
                "P@1": trial.precision, "PSP@5": trial.propensity, "failed": trial.failed,
            }
            for trial in self.trials
        ]  # fmt: skip
        record = {
            "budget": self.auto.budget, "held_out": len(self.held_out) if self.tests else 0, "trials": lines,
            "left_out": self.left_out, "chosen": one.name, "why": why, "epochs": share,
            "trial_seconds": round(self.elapsed, 2), "fit_seconds": round(whole, 2),
        }  # fmt: skip
        return Choice(fewer_epochs(one.recipe, share), record)


def fewer_epochs(recipe: Recipe, share: float) -> Recipe:
    """Train for a share of the epochs."""
    return recipe if share == 1 else replace(recipe, stages=tuple(stage.shortened(share) for stage in recipe.stages))


def for_share(recipe: Recipe, share: float) -> Recipe:
    """Train on a share of the points."""
    return recipe if share == 1 else replace(recipe, stages=tuple(stage.for_share(share) for stage in recipe.stages))


def seconds_of(recipe: Recipe, sizes: Sizes) -> float:
    """Estimate the seconds of a fit, without those of importing libraries."""
    return max(recipe.total_cost(recipe.sizes(sizes)).seconds, 1e-3)
