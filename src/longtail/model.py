"""PARTS → SCORES: a fitted recipe that predicts, and the folder that it is kept in.

A model folder holds config.json (recipe, sizes, a checksum of every file), labels.parquet, the arrays of its parts,
metrics.json and README.md (a model card). Nothing in it is ever executed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from longtail.arrays import matrix_arrays, matrix_of
from longtail.card import shown, trial_rows, untried, write_card
from longtail.data.dataset import Labels, Split
from longtail.data.tokens import Words
from longtail.errors import BadArgument, DataError, ModelError, RecipeError, ResourceError, one_line
from longtail.explanations import Reasons
from longtail.files import (
    read_arrays,
    read_texts,
    write_arrays,
    write_json,
    write_texts,
)
from longtail.folder import (
    CARD,
    METRICS,
    SCHEMA,
    checksum,
    read_config,
    read_evaluations,
    verify_files,
    with_evaluation,
    without_texts,
    write_config,
)
from longtail.labels.journal import FILE
from longtail.labels.kept import FILE as LABELS
from longtail.labels.kept import load_labels, save_labels
from longtail.labels.matching import same_labels
from longtail.machine import commit, versions
from longtail.parts import Scorer, Tokenizer, VoiceScorer, below
from longtail.predictions import Groups, Predictor, Rules, finished, predict
from longtail.probabilities import LEAST as PREDICTIONS
from longtail.probabilities import Evidence, Probabilities
from longtail.recipe import Recipe, recipe_of
from longtail.records import StageDone
from longtail.scorers.added import Scale
from longtail.scorers.ensemble import EnsembleScorer
from longtail.scorers.fused import FusedScorer
from longtail.scorers.lexical import LexicalScorer
from longtail.signatures import Signature
from longtail.thresholds import LEAST as HITS
from longtail.thresholds import Decision, HeldOut
from longtail.types import LabelMatrix, Texts, TopK, counted
from longtail.whole import held, whole_folder

DAMAGE = (
    LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError, RuntimeError, pa.ArrowException,
)  # fmt: skip
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, eq=False)
class Examples:
    """The original training points, kept so that predictions can be explained and searches measured."""

    texts: Texts  # (N,)
    targets: LabelMatrix  # (N, L)
    excluded: LabelMatrix | None = None  # (N, L) pairs that were not learnt from

    def save(self, folder: Path) -> None:
        """Write points.arrow and points.safetensors."""
        write_texts(folder / "points.arrow", {"text": self.texts})
        arrays = matrix_arrays("targets", self.targets)
        if self.excluded is not None and self.excluded.nnz:
            arrays |= matrix_arrays("excluded", self.excluded)
        write_arrays(folder / "points.safetensors", arrays)

    @classmethod
    def load(cls, folder: Path) -> Examples | None:
        """Open what `save` wrote, if it is there."""
        if not (folder / "points.arrow").exists():
            return None
        texts = read_texts(folder / "points.arrow")["text"]
        arrays = read_arrays(folder / "points.safetensors")
        targets = matrix_of(arrays, "targets", len(texts), low=0)
        if "excluded.shape" not in arrays:
            return cls(texts, targets)
        return cls(texts, targets, matrix_of(arrays, "excluded", *targets.shape, low=0))


@dataclass(frozen=True, eq=False)
class Model:
    """A recipe with everything that was learnt for it."""

    recipe: Recipe
    labels: Labels
    frequencies: NDArray[np.int64]  # (L,) points of each label in the original training data
    points: int  # of the original training data
    dataset: str  # its name
    words: Words
    voices: tuple[VoiceScorer, ...] = ()  # scores by words
    vectors: Scorer | None = None  # scores by vectors
    tokenizer: Tokenizer | None = None  # of the encoder; `words` where it has none of its own
    evaluations: tuple[Mapping[str, Any], ...] = ()  # figures and where they come from, the oldest first
    examples: Examples | None = None
    probabilities: Probabilities | None = None  # of scores; None where too few points were held out
    held_out: HeldOut | None = None  # predictions that thresholds are tuned on
    scale: Scale = Scale()  # noqa: RUF009 (frozen)  of labels that come after training
    done: tuple[StageDone, ...] = ()  # by each stage of the training
    data: Mapping[str, Any] = field(default_factory=dict)  # what the card says of the training points
    licence: str = ""  # under which the model may be used, for its card
    columns: tuple[str, ...] = ()  # of the table that the training texts came from
    asked: Mapping[str, Any] = field(default_factory=dict)  # the recipe before anything was chosen, as `dump` gives it
    evidence: Evidence = Evidence()  # noqa: RUF009 (frozen)  what was held out in training
    trials: Mapping[str, Any] = field(default_factory=dict)  # what `auto` tried, and why it chose this recipe

    def __repr__(self) -> str:
        sizes = f"{counted(len(self.labels), 'label')}, {counted(self.points, 'point')}"
        return f"Model({self.recipe.name}: {sizes} of {self.dataset})"

    def predict(
        self,
        texts: Iterable[str],
        k: int = 5,
        *,
        threshold: float | str | None = None,
        allow: Sequence[int] | LabelMatrix | None = None,
        deny: Sequence[int] | LabelMatrix | None = None,
        exclude: LabelMatrix | None = None,
        groups: Groups | None = None,
        probabilities: bool = False,
    ) -> TopK:
        """Find the k best labels of each text; everything is as in `Index.predict`."""
        queries, count = strings(texts), len(self.labels)
        if k < 1:
            raise DataError(f"k is {k}", remedy="ask for at least one label")
        if exclude is not None and exclude.shape != (len(queries), count):
            raise DataError(f"exclude is {exclude.shape}", remedy=f"give ({len(queries)}, {count})")
        chosen = self.chosen(threshold, self.frequencies, probabilities=probabilities)
        if allow is None and deny is None and groups is None:  # equal bits whatever the number of threads
            spare = 0 if exclude is None else int(np.diff(exclude.indptr).max(initial=0))
            topk = self.predictor.in_order(queries, min(k + spare, count))
            topk = topk if exclude is None else topk.without(exclude, min(k, count))
        else:
            rules = Rules(allow, deny, exclude, groups).checked(len(queries), count)
            topk = predict(self.predictor, queries, min(k, count), rules)
        return finished(topk, self.labels.texts, **chosen)

    def chosen(
        self, threshold: float | str | None, frequencies: NDArray[Any], *, probabilities: bool
    ) -> dict[str, Any]:
        """Return what `predictions.finished` needs: the thresholds that are asked for, and probabilities."""
        if probabilities and self.probabilities is None:
            raise DataError(
                f"{self.recipe.name}: {self.evidence.lack('prediction', PREDICTIONS)}: scores are no probabilities",
                remedy=self.evidence.remedy,
            )
        chosen: dict[str, Any] = {"curve": self.probabilities if probabilities else None}
        if not isinstance(threshold, str):
            return chosen | {"threshold": threshold}
        decision = Decision.parse(threshold)
        if self.held_out is None:
            raise DataError(
                f"{self.recipe.name}: {self.evidence.lack('right prediction', HITS)}: no thresholds can be tuned",
                remedy=f"give a number, or {self.evidence.remedy}",
            )
        return chosen | {"limits": self.held_out.thresholds(decision, frequencies)}

    def explain(self, text: str, label: str | int) -> dict[str, Any]:
        """Return why a text gets a label, given as number, raw id or text, in plain values."""
        return self._reasons.explanation(text, label, self.predictor, self.labels).to_dict()

    @cached_property
    def _reasons(self) -> Reasons:
        """What predictions are explained by."""
        return Reasons(self)

    @property
    def scorer(self) -> FusedScorer:
        """What scores labels: vectors, voices, or both."""
        voices = zip(self.voices, self.recipe.weights, strict=True)
        return FusedScorer(self.vectors, tuple((voice, np.float32(weight)) for voice, weight in voices if weight))

    @property
    def lexical(self) -> LexicalScorer | None:
        """The voice that knows the training points by their words, where there is one."""
        return next((voice for voice in self.voices if isinstance(voice, LexicalScorer)), None)

    @cached_property
    def predictor(self) -> Predictor:
        """What ranks labels; a served model has the same, with other label vectors."""
        return Predictor(self.scorer, len(self.labels))

    def predict_split(self, split: Split, k: int = 5) -> TopK:
        """Predict the points of a split, whose labels begin with those of the model; excluded pairs are left out."""
        if not same_labels(split.labels, self.labels):
            same = len(split.labels) == len(self.labels)
            raise DataError(
                "the labels of the data are not those of the model: "
                + ("their texts differ" if same else f"{len(split.labels)} labels, the model {len(self.labels)}"),
                remedy="`evaluate` and `labels.matching.match_labels` find the same labels by name or raw id",
            )
        known = split.excluded if len(split.labels) == len(self.labels) else split.excluded[:, : len(self.labels)]
        return self.predict(split.need_texts("predict"), k, exclude=known)

    def save(
        self, path: str | Path, *, force: bool = False, log: Path | None = None, texts: bool = True
    ) -> None:  # fmt: skip
        """Write the model folder, whole or not at all, with the log of its training.

        Without `texts` no text of a point is kept: predictions are not explained by points near them, and training
        cannot go on from the folder. The words of the vocabulary stay, and `knn` keeps those of each point, unordered.
        """
        if not texts:
            figures = tuple(without_texts(one) for one in self.evaluations)
            replace(self, examples=None, evaluations=figures).save(path, force=force, log=log)
            return
        with (
            held(Path(path)),
            whole_folder(path, force=force) as folder,
        ):  # no label is added while its journal is copied
            save_labels(folder, self.labels, self.frequencies)
            self.words.save(folder)
            tokenizer = None if self.tokenizer is self.words else self.tokenizer
            for part in (*self.voices, tokenizer, self.examples, self.probabilities, self.held_out):
                if part is not None:
                    part.save(folder)
            if self.vectors is not None:
                write_arrays(folder / WEIGHTS, self.vectors.arrays())
            config = {"schema": SCHEMA, **self.facts(), "made": {"longtail": commit(), **versions()}}
            write_json(folder / METRICS, {"evaluations": self.evaluations})
            (folder / CARD).write_text(write_card(config, self.evaluations), encoding="utf-8")
            write_config(folder, config | {"files": {file.name: checksum(file) for file in sorted(folder.iterdir())}})
            before = Path(path)
            if (before / FILE).is_file() and _same(before / LABELS, folder / LABELS):
                shutil.copy2(before / FILE, folder / FILE)  # labels that were added and removed stay so
            if log is not None and log.is_file():
                shutil.copy(log, folder / "log.csv")

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True, trusted: Sequence[str | Path] | None = None) -> Model:
        """Open a model folder after checking that every file is the one that was written.

        Without `verify` the large files are not read whole: their headers, sizes and bounds are checked all the same.
        With `trusted` (public keys, or files of them) it must be signed by one of them.
        """
        folder = Path(path)
        config = read_config(folder)
        if trusted is not None:
            Signature(folder, trusted).check_model(config)
        if verify or trusted is not None:
            verify_files(folder, config["files"])
        return cls.opened(folder, config)

    @classmethod
    def opened(cls, folder: Path, config: Mapping[str, Any]) -> Model:
        """Open a folder with the settings that were read of it; what is wrong with it is a ModelError."""
        try:
            return cls._opened(folder, config)
        except RecipeError as reason:
            raise ModelError(f"{folder}: a recipe that this version does not know ({reason}); train again") from None
        except DAMAGE as reason:
            raise ModelError(f"{folder}: damaged ({one_line(reason)}); train again") from None
        except MemoryError:
            raise ResourceError(f"{folder}: there is not enough memory to open it") from None

    @classmethod
    def _opened(cls, folder: Path, config: Mapping[str, Any]) -> Model:
        """Put the parts of a folder together."""
        recipe, count = recipe_of(config["recipe"]), _count(config, "labels")
        words, vectors, tokenizer = Words.load(folder), None, None
        voices = tuple(voice.load(folder, words) for voice in recipe.voices)
        if recipe.encoder is not None:
            tokenizer = recipe.encoder.load_tokenizer(folder, words)
            vectors = open_scorer(recipe, read_arrays(folder / WEIGHTS), tokenizer)
        examples = Examples.load(folder)
        counts = {count} | {len(scorer) for scorer in (*voices, vectors) if scorer is not None}
        counts |= {examples.targets.shape[1]} if examples else set()
        if len(counts) > 1:
            raise ModelError(f"{folder}: its files disagree on the number of labels; train again")
        labels, frequencies = load_labels(folder, count)
        points, dataset = _count(config, "points"), str(config["dataset"])
        asked = config.get("asked", {})
        if type(asked) is not dict:
            raise ModelError("config.json: the recipe that was asked for is no object; train again")
        done = tuple(StageDone(**stage) for stage in config.get("done", ()))
        return cls(
            recipe, labels, frequencies, points, dataset, words, voices, vectors, tokenizer, read_evaluations(folder),
            examples, Probabilities.load(folder), HeldOut.load(folder, len(labels)), Scale(**config.get("scale", {})),
            done, config.get("data", {}), str(config.get("licence", "")), tuple(map(str, config.get("columns", ()))),
            asked, Evidence(**config.get("evidence", {})), _trials(config),
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Return what config.json and the model card say of the model, in plain values."""
        credits = "" if self.tokenizer is None else self.tokenizer.credits
        return {
            "recipe": self.recipe.dump(),
            "asked": self.asked,
            "labels": len(self.labels),
            "points": self.points,
            "dataset": self.dataset,
            "scale": asdict(self.scale),
            "done": [asdict(stage) for stage in self.done],
            "data": self.data,
            "columns": list(self.columns),
            "licence": self.licence,
            "credits": credits,
            "probabilities": self.probabilities is not None,
            "evidence": asdict(self.evidence),
            "examples": self.examples is not None,
            **({"trials": self.trials} if self.trials else {}),
        }

    def kept(self, evaluation: Mapping[str, Any]) -> Model:
        """Return the same model with the figures of an evaluation, as `Evaluation.to_dict` gives them."""
        return replace(self, evaluations=with_evaluation(self.evaluations, evaluation))

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The figures that stand for the model: the last ones on test points, or else the last ones."""
        return shown(self.evaluations)


def open_scorer(recipe: Recipe, arrays: Mapping[str, NDArray[Any]], tokenizer: Any) -> Scorer:
    """Put the scorer by vectors of a model file together, of all members of an ensemble."""
    first = _open_member(recipe, arrays, tokenizer)
    others = [_open_member(recipe, below(arrays, f"member{place}."), tokenizer) for place in range(1, recipe.ensemble)]
    return EnsembleScorer(first, tuple(others)) if others else first


def _open_member(recipe: Recipe, arrays: Mapping[str, NDArray[Any]], tokenizer: Any) -> Scorer:
    """Put one scorer together: each part opens what it wrote."""
    encoder = recipe.encoder
    if encoder is None:
        raise ModelError("the recipe has no encoder; train again")
    over = next((objective for objective in recipe.objectives if objective.over == "clusters"), None)
    objectives = [objective for objective in recipe.objectives if objective.over == "labels" and objective.share]

    def opened(some: Mapping[str, NDArray[Any]], *, place: int = 0, led: bool = True) -> Scorer:
        tower = encoder.open(some, tokenizer)
        own = below(some, f"objective{place}.") if place else some
        return objectives[place].open(own, tower, encoder.width, over=over, led=led)

    scorers = [opened(arrays, place=place) for place in range(len(objectives))]
    weights = [objective.share for objective in objectives]
    scorer = scorers[0] if len(scorers) == 1 else scorers[0].join(scorers[1:], weights)
    for stage in recipe.stages:
        scorer = stage.open(arrays, scorer, opened)
    return scorer


def _same(one: Path, other: Path) -> bool:
    """Return whether two files hold the same."""
    return one.is_file() and checksum(one) == checksum(other)


def need_model(given: object) -> None:
    """Refuse what is no model: the name of a folder, or an index."""
    if not isinstance(given, Model):
        how = "open its folder with lt.Model.load; of an index `index.model` is the model without labels added later"
        raise BadArgument(f"a model is needed, not {type(given).__name__}", remedy=how)


def strings(texts: Iterable[str]) -> list[str]:
    """List texts to predict for; refuse one text alone, and what is no text."""
    if isinstance(texts, str):
        raise DataError("predict got one text", remedy="give a list of texts: predict([text])")
    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise DataError(f"text {place} is of type {type(text).__name__}", remedy="give strings")
    return listed


def _trials(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read what `auto` tried; a record that cannot be shown is damage."""
    trials: Mapping[str, Any] = config.get("trials", {})
    if trials:
        trial_rows(trials), untried(trials)
    return trials


def _count(config: Mapping[str, Any], name: str) -> int:
    """Read a whole number of config.json."""
    value = config.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ModelError(f"config.json: {name} is {value!r}, not a whole number; train again")
    return value
