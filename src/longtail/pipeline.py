"""RECIPE + DATA → MODEL → NUMBERS: walk a recipe from top to bottom."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from longtail.auto.portfolio import Auto, portfolio
from longtail.auto.search import Search
from longtail.card import FEW as RARE
from longtail.comparison import Comparison, Pair, intervals
from longtail.continuing import continued_points, earlier, points_for, seen
from longtail.data.dataset import Dataset, Split, from_rows, need_data
from longtail.data.tokens import Words
from longtail.errors import BadArgument, DataError, ResourceError
from longtail.estimates import estimate, gauge, need_memory
from longtail.evaluation import Evaluation
from longtail.explanations import draw_examples
from longtail.labels.matching import padded, same_labels
from longtail.labels.propensity import Propensity, frequencies
from longtail.machine import beside, halved
from longtail.metrics import evaluate as measure
from longtail.model import Examples, Model, need_model
from longtail.parts import Earlier, Query, Run, Scorer, VoiceScorer
from longtail.probabilities import Evidence, Reliability, fit_probabilities, reliability
from longtail.recipe import Recipe, find_recipe
from longtail.records import StageDone, When
from longtail.scales import fit_scale, highest
from longtail.scorers.added import Scale
from longtail.scorers.fused import Judge, choose_weights
from longtail.shards import world
from longtail.thresholds import HeldOut
from longtail.types import Progress, TopK, contains

log = logging.getLogger("longtail")
SEEN = 200  # training points that show how high scores are, where none are held out
Learnt: TypeAlias = tuple[Any, Any, tuple[StageDone, ...]]  # the scorer, the encoder's tokenizer, what stages did
NOTHING: Learnt = (None, None, ())
CALIBRATED = 10  # predictions of each validation point that probabilities are fitted to
VALIDATION, MAX_VALIDATION, MIN_POINTS = 0.1, 3000, 20  # points to choose by; too few points to hold any out


def fit(
    recipe: str | Recipe | Auto, train: Dataset | Split | Iterable[str], labels: Iterable[Any] | None = None, *,
    sep: str | None = None, scratch: str | Path | None = None, progress: Progress | None = None,
    continue_from: Model | None = None,
    budget: float | str | None = None,
) -> Model:  # fmt: skip
    """Fit a recipe, by name or value, to training points: a data set, a split, or texts and their labels by name.

    `scratch` is a folder for checkpoints: a run that was stopped continues there. `progress` is told how far it is.
    `continue_from` is a model whose points are replayed: what is given are new points, which may have new labels.
    The recipe "auto" is chosen by trials, within a `budget` of seconds (or "2m", "1h") for trials and fit together.

    >>> fit("knn", ["red cat", "old dog"], [["red", "cat"], ["dog"]]).predict(["my cat"], k=1)[0][0][:2]
    (0, 'cat')
    """
    scratch = None if scratch is None else Path(scratch)
    if isinstance(train, Path) or (isinstance(train, str) and labels is None):
        need_data(train)
    if isinstance(train, Dataset):
        train = train.train
    if not isinstance(train, Split):
        if labels is None:
            raise BadArgument("texts without labels", remedy="give the labels of each text: fit(recipe, texts, labels)")
        train = from_rows({"train": (train, labels)}, sep=sep).train
    elif labels is not None:
        raise BadArgument("labels beside a data set, which has its own", remedy="leave them out")
    if recipe == Auto.name:
        recipe = Auto.of(budget)
    elif budget is not None:
        raise BadArgument("a budget beside a recipe", remedy='leave it out, or let trials choose: fit("auto", …)')
    if isinstance(recipe, Auto):
        if continue_from is not None:
            raise BadArgument("auto begins anew", remedy="leave continue_from out, or name a recipe")
        return _fit_auto(recipe, train, scratch, progress)
    if continue_from is None:
        return _fit(find_recipe(recipe), train, scratch, progress)
    return _fit(find_recipe(recipe), continued_points(continue_from, train), scratch, progress, earlier(continue_from))


def _fit_auto(auto: Auto, train: Split, scratch: Path | None, progress: Progress | None) -> Model:
    """Choose a recipe by trials and fit it to all points."""
    began = time.monotonic() - auto.spent
    choice = search_for(auto, train, scratch, progress).run()
    model = _fit(choice.recipe, train, scratch, progress)
    return replace(model, trials={**choice.record, "seconds": round(time.monotonic() - began, 2)})


def search_for(
    auto: Auto, train: Split, scratch: Path | None = None, progress: Progress | None = None
) -> Search:  # fmt: skip
    """Prepare the trials of `auto`: what it may try here, without what the free memory cannot hold."""
    _need_points(train)
    sizes = gauge(train, auto.name)
    found, left_out = portfolio(auto, label_texts=train.labels.texts is not None)
    fitting = []
    for one in found:
        try:
            need_memory(estimate(one.recipe, sizes))
            fitting.append(one)
        except ResourceError as reason:
            left_out[one.name] = str(reason)
    if not fitting:
        raise ResourceError(f"auto has nothing that the free memory can hold: {next(iter(left_out.values()))}")
    return Search(
        auto, train, sizes, fitting, lambda recipe, some, told: _fit(recipe, some, None, told), left_out, scratch,
        progress,
    )  # fmt: skip


def _need_points(train: Split) -> None:
    """Refuse data without points or labels."""
    if len(train) == 0 or len(train.labels) == 0:
        raise DataError("there is nothing to learn from: no points or no labels", remedy="check the training file")


def _fit(
    recipe: Recipe, train: Split, scratch: Path | None, progress: Progress | None, before: Earlier | None = None
) -> Model:  # fmt: skip
    """Walk the recipe; weights start from those before, where no point that chooses was learnt from then."""
    _need_points(train)
    recipe.check()
    asked = recipe.dump()
    words = Words.fit(train.need_texts(recipe.name), train.labels.all_texts or [])
    settled, whole = _augmented(recipe, train)
    doubts = bool(recipe.voices) and any(len(part.alternatives()) > 1 for part in settled.augment)
    again = _refits(recipe, len(train), always=before is not None)
    kept, validation = _held_out(recipe, train, doubts, again=again)
    original = train.original
    counts = frequencies(original.targets)
    worth = Propensity.of(train.dataset).inverse(counts, len(original)).astype(np.float32)
    judge = None if validation is None else Judge(validation, worth)
    run: Run = {"seed": recipe.seed, "progress": progress, "scratch": scratch}
    if doubts and kept is not None and judge is not None:
        recipe = _tried(recipe, settled, kept, judge, words)
        settled, whole = _augmented(recipe, train)
    trial = None if kept is None else _augmented(recipe, kept)[1]  # it must not know the points held out
    refits = validation is not None and again
    some = whole if trial is None else trial
    told: dict[str, Any] = {"fingerprint": train.fingerprint, "progress": progress}
    (vectors, tokenizer, done), chosen = _beside(
        partial(
            _learnt, recipe, some, words, short=refits, validation=validation,
            scratch=scratch / "choice" if scratch and refits else scratch,
            earlier=before if validation is None else None, **told,
        ) if recipe.trains else None,
        [partial(voice.choose, some, validation, words, **run) for voice in recipe.voices], progress,
    )  # fmt: skip
    settled = replace(settled, voices=tuple(voice for voice, _ in chosen))
    voices = tuple(scorer for _, scorer in chosen if scorer is not None)
    if voices and judge is not None and recipe.blends and recipe.blend is None:
        usual = [voice.usual for voice in settled.voices]
        weights = choose_weights(vectors, voices, usual, judge)
        settled, voices, vectors = _heard(settled, voices, vectors, weights)
        tokenizer = None if vectors is None else tokenizer
    labels = replace(train.labels, features=None)
    model = Model(settled, labels, counts, len(original), train.dataset, words, voices, vectors, tokenizer)
    if validation is not None:
        model = _calibrated(model, validation)
    stay = validation is not None and vectors is not None and not refits  # what is costly is not done twice
    final = [
        partial(_kept, voices[place]) if stay and not voice.quick else partial(voice.fit, whole, words, **run)
        for place, voice in enumerate(settled.voices)
    ]

    once_more = partial(_learnt, recipe, whole, words, scratch=scratch, earlier=before, **told)
    learnt, ended = _beside(once_more if refits and settled.trains else None, final, progress)
    if learnt is not NOTHING:
        vectors, tokenizer, done = learnt
        model = replace(model, vectors=vectors, tokenizer=tokenizer)
    model = replace(model, voices=tuple(ended), done=done if settled.trains else ())
    if validation is None:  # then new labels are only kept from scoring more than any trained one
        scale = Scale(top=highest(model.predict_split(_some(original), 1)))
        model = replace(model, evidence=Evidence(0), scale=scale)
    words.forget()
    examples = None if original.texts is None else Examples(original.texts, original.targets, original.excluded)
    return replace(model, examples=examples, columns=original.columns, data=described(original), asked=asked)


def _learnt(recipe: Recipe, train: Split, words: Words, *, short: bool = False, **told: Any) -> Learnt:
    """Train the vectors of a recipe, or for a share of the steps."""
    from longtail.training.learn import learn, shortened  # noqa: PLC0415  (torch is imported by recipes that train)

    return learn(shortened(recipe) if short else recipe, train, words, **told)


def _kept(scorer: Any, **_: Any) -> Any:
    """Return what is there already."""
    return scorer


def _beside(
    vectors: Callable[[], Learnt] | None, voices: Sequence[Callable[..., Any]], progress: Progress | None
) -> tuple[Learnt, list[Any]]:  # fmt: skip
    """Train vectors and make voices: both at once, but one after the other where processes have to keep in step."""

    def told(name: str, done: int, total: int) -> None:
        if progress is not None and not halved():
            progress(name, done, total)

    def speak() -> list[Any]:
        return [voice(progress=told) for voice in voices]

    if vectors is None or not voices or not world().alone:
        spoken = speak()
        return NOTHING if vectors is None else vectors(), spoken
    return beside(vectors, speak)


def _calibrated(model: Model, validation: Split) -> Model:
    """Let held-out points say what scores are worth: as probabilities, for thresholds, and of labels to come."""
    top = model.predict_split(validation, CALIBRATED)
    return replace(
        model,
        probabilities=fit_probabilities(top, validation.targets),
        held_out=HeldOut.of(top, validation.targets),
        evidence=Evidence.of(top, validation.targets),
        scale=fit_scale(model.scorer, model.words, validation, top),
    )


def _some(train: Split) -> Split:
    """Draw some training points."""
    return train.take(np.random.default_rng(0).permutation(len(train))[:SEEN])


def described(train: Split) -> dict[str, Any]:
    """Return what a model card says of training points."""
    counts = frequencies(train.targets)
    return {
        "fingerprint": train.fingerprint,
        "labels_each": round(train.targets.nnz / max(1, len(train)), 4),
        "points_each": float(np.median(counts)),
        "rare": round(float((counts <= RARE).mean()), 4),
        "texts": train.labels.texts is not None,
    }


def _held_out(
    recipe: Recipe, train: Split, doubts: bool, *, again: bool
) -> tuple[Split | None, Split | None]:  # fmt: skip
    """Hold some points out where something has to be chosen: what is left, and those that decide."""
    if (recipe.undecided() == When.NEVER and not doubts) or len(train) < MIN_POINTS:
        return None, None
    share = VALIDATION
    if recipe.trains:  # weights cannot learn from what is held out, unless they are trained again on all points
        share *= 2 if again else 0.5
    return train.divide(share, seed=recipe.seed, most=MAX_VALIDATION, leave=True)


def _tried(recipe: Recipe, settled: Recipe, kept: Split, judge: Judge, words: Words) -> Recipe:
    """Choose among the alternatives of augmentations by what one voice makes of them on validation points."""
    voice, query = recipe.voices[-1].brief(), Query(judge.validation.need_texts("a trial"))
    for place, part in enumerate(settled.augment):
        found = []
        for other in part.alternatives() if len(part.alternatives()) > 1 else ():
            trial = replace(recipe, augment=(*recipe.augment[:place], other, *recipe.augment[place + 1 :]))
            _, scorer = voice.choose(_augmented(trial, kept)[1], judge.validation, words, seed=recipe.seed)
            found.append((float(judge(TopK(*scorer.top(query, 10))).mean()), trial))
        recipe = max(found, key=lambda one: one[0])[1] if found else recipe
    return recipe


def _heard(
    recipe: Recipe, voices: tuple[VoiceScorer, ...], vectors: Scorer | None, weights: tuple[float, ...]
) -> tuple[Recipe, tuple[VoiceScorer, ...], Scorer | None]:
    """Leave out what has no weight, vectors and their training included."""
    if vectors is not None:
        weight, *weights_left = weights
        if not weight:
            recipe, vectors = replace(recipe, encoder=None, objectives=(), stages=()), None
        weights = tuple(weights_left)
    kept = [place for place, weight in enumerate(weights) if weight]
    recipe = replace(
        recipe,
        voices=tuple(recipe.voices[place] for place in kept),
        blend=tuple(weights[place] for place in kept),
    )
    return recipe, tuple(voices[place] for place in kept), vectors


def _refits(recipe: Recipe, points: int, *, always: bool) -> bool:
    """Return whether a small data set, or any, is trained on again, all of it, once everything is chosen."""
    after = recipe.undecided() == When.AFTER and recipe.blend is None and recipe.trains
    return after and (always or any(stage.refits(points) for stage in recipe.stages))


def _augmented(recipe: Recipe, train: Split) -> tuple[Recipe, Split]:
    """Let the augmentations settle what they learn from the points, and make theirs."""
    parts = []
    for part in recipe.augment:
        settled = part.fit(train, seed=recipe.seed)
        once = settled.can_act_once and not recipe.trains
        train = (settled.augment_once if once else settled.augment)(train, seed=recipe.seed)
        parts.append(settled)
    return replace(recipe, augment=tuple(parts)), train


def evaluate(
    model: Model, data: Dataset | Split, *, ks: Sequence[int] = (1, 3, 5), bins: int = 3,
    propensity: Propensity | None = None,
) -> Evaluation:  # fmt: skip
    """Predict a split, of a data set its test points or its only split, and measure.

    P, nDCG, recall, PSP, PSnDCG, coverage, and each bin's share; with intervals, and how far probabilities come true.
    Labels are matched with those of the model by name or raw id; what the model does not know counts as missed.
    """
    need_model(model)
    return _evaluated(model, points_for(model, data), ks, bins, propensity)[1]


def _evaluated(
    model: Model, split: Split, ks: Sequence[int] = (1, 3, 5), bins: int = 3, propensity: Propensity | None = None,
    like: Model | None = None,
) -> tuple[TopK, Evaluation]:  # fmt: skip
    """Predict a split whose labels are matched and measure, by the frequencies of `like`; predictions and metrics."""
    like = like or model
    top, counts = model.predict_split(split, max(ks)), padded(like.frequencies, split.labels)
    propensity = propensity or Propensity.of(like.dataset)
    measured = measure(
        top, split.targets, train_frequencies=counts, train_points=like.points,
        propensity=propensity, ks=ks, bin_count=bins,
    )  # fmt: skip
    inverse, rows = propensity.inverse(counts, like.points), list[Reliability]()
    if model.probabilities is not None:
        mask = top.labels >= 0
        rows = reliability(model.probabilities(top.scores[mask]), contains(split.targets, top.labels)[mask])
    return top, replace(
        measured, trained=int(seen(model, split).sum()),
        dataset=split.dataset, split=split.name, fingerprint=split.fingerprint,
        intervals=intervals(top, split.targets, inverse, ks), reliability=tuple(rows),
        examples=draw_examples(split.texts, split.targets, len(model.labels)),
    )  # fmt: skip


def compare(models: Mapping[str, Model], data: Dataset | Split) -> Comparison:
    """Evaluate models of the same labels on the same points, and find what differs from the first one.

    Points are as in `evaluate`. A model that continues the first one may have more labels.
    """
    if not isinstance(models, Mapping) or not models:
        raise BadArgument("there are no models to compare", remedy="give them by name: {'a': model}")
    first, base = next(iter(models.items()))
    for name, model in models.items():
        need_model(model)
        if not same_labels(model.labels, base.labels):
            raise DataError(f"the labels of {name} are not those of {first}", remedy="train both on the same data")
    split = points_for(max(models.values(), key=lambda model: len(model.labels)), data, models.values())
    found = {name: _evaluated(model, split, like=base) for name, model in models.items()}
    (_, (top, _)), *others = found.items()
    inverse = Propensity.of(base.dataset).inverse(padded(base.frequencies, split.labels), base.points)
    pairs = {name: Pair.of(first, name, top, other, split, inverse) for name, (other, _) in others}
    return Comparison({name: result for name, (_, result) in found.items()}, tuple(pairs.values()))
