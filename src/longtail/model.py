"""PARTS → SCORES: a fitted recipe that predicts, and the folder that it is kept in.

A model folder holds config.json (recipe, sizes, a checksum of every file), labels.parquet, the arrays of its parts,
metrics.json and README.md (a model card). Nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from longtail.data.dataset import Labels, Split
from longtail.data.tokens import Words
from longtail.errors import DataError, ModelError, RecipeError
from longtail.files import (
    matrix_arrays,
    matrix_of,
    read_arrays,
    read_json,
    read_texts,
    whole_folder,
    write_arrays,
    write_json,
    write_texts,
)
from longtail.labels.journal import FILE
from longtail.labels.matching import same_labels
from longtail.parts import Scorer, Tokenizer, VoiceScorer, below
from longtail.predictions import Predictor
from longtail.probabilities import Probabilities
from longtail.recipe import Recipe, recipe_of
from longtail.scorers.ensemble import EnsembleScorer
from longtail.scorers.fused import FusedScorer
from longtail.scorers.lexical import LexicalScorer
from longtail.types import LabelMatrix, Texts, TopK

SCHEMA = 4
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, eq=False)
class Examples:
    """The original training points, kept so that predictions can be explained and searches measured."""

    texts: Texts  # (N,)
    targets: LabelMatrix  # (N, L)

    def save(self, folder: Path) -> None:
        """Write points.arrow and points.safetensors."""
        write_texts(folder / "points.arrow", {"text": self.texts})
        write_arrays(folder / "points.safetensors", matrix_arrays("targets", self.targets))

    @classmethod
    def load(cls, folder: Path) -> Examples | None:
        """Open what `save` wrote, if it is there."""
        if not (folder / "points.arrow").exists():
            return None
        texts = read_texts(folder / "points.arrow")["text"]
        targets = matrix_of(read_arrays(folder / "points.safetensors"), "targets")
        if len(texts) != targets.shape[0]:
            raise ModelError(f"{folder}: there are {len(texts)} points and {targets.shape[0]} targets of them")
        return cls(texts, targets)


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
    metrics: dict[str, Any] = field(default_factory=dict)
    examples: Examples | None = None
    probabilities: Probabilities | None = None  # of scores; None where no points were held out
    columns: tuple[str, ...] = ()  # of the table that the training texts came from

    def __repr__(self) -> str:
        return f"Model({self.recipe.name}: {len(self.labels):,} labels, {self.points:,} points of {self.dataset})"

    def predict(self, texts: Iterable[str], k: int = 5, *, exclude: LabelMatrix | None = None) -> TopK:
        """Find the k best labels of each text, leaving out the pairs in `exclude` (N, L)."""
        queries = strings(texts)
        if k < 1:
            raise DataError(f"k is {k}", remedy="ask for at least one label")
        if exclude is not None and exclude.shape != (len(queries), len(self.labels)):
            raise DataError(f"exclude is {exclude.shape}", remedy=f"give ({len(queries)}, {len(self.labels)})")
        spare = 0 if exclude is None or exclude.nnz == 0 else int(np.diff(exclude.indptr).max())
        topk = self.predictor.in_order(queries, min(k + spare, len(self.labels)))
        topk = topk if exclude is None else topk.without(exclude, min(k, len(self.labels)))
        return replace(topk, names=self.labels.texts)

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

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model folder, whole or not at all."""
        with whole_folder(path, force=force) as folder:
            columns = {"frequency": pa.array(self.frequencies)}
            for name, texts in (("text", self.labels.texts), ("id", self.labels.ids)):
                if texts is not None:
                    columns[name] = texts.array
            pq.write_table(pa.table(columns), folder / "labels.parquet")
            self.words.save(folder)
            tokenizer = None if self.tokenizer is self.words else self.tokenizer
            for part in (*self.voices, tokenizer, self.examples, self.probabilities):
                if part is not None:
                    part.save(folder)
            if self.vectors is not None:
                write_arrays(folder / WEIGHTS, self.vectors.arrays())
            write_json(folder / "metrics.json", self.metrics)
            (folder / "README.md").write_text(self.card(), encoding="utf-8")
            config = {"schema": SCHEMA, "recipe": self.recipe.dump(), "labels": len(self.labels), "points": self.points}
            config |= {
                "dataset": self.dataset,
                "files": {file.name: checksum(file) for file in sorted(folder.iterdir())},
            }
            config |= {"columns": list(self.columns)} if self.columns else {}
            write_config(folder, config)
            before = Path(path)
            if (before / FILE).is_file() and _same(before / "labels.parquet", folder / "labels.parquet"):
                shutil.copy2(before / FILE, folder / FILE)  # labels that were added and removed stay so

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> Model:
        """Open a model folder after checking that every file is the one that was written.

        Without `verify` the large files are not read whole: their headers, sizes and bounds are checked all the same.
        """
        folder = Path(path)
        config = read_config(folder)
        if verify:
            verify_files(folder, config["files"])
        try:
            return cls._opened(folder, config)
        except RecipeError as reason:
            raise ModelError(f"{folder}: a recipe that this version does not know ({reason}); train again") from None
        except (KeyError, TypeError, ValueError, AttributeError, OSError, pa.ArrowException) as reason:
            raise ModelError(f"{folder}: damaged ({reason}); train again") from None

    @classmethod
    def _opened(cls, folder: Path, config: Mapping[str, Any]) -> Model:
        """Put the parts of a folder together."""
        table = pq.ParquetFile(folder / "labels.parquet").read()  # `read_table` would import pandas where there is one
        columns = {name: Texts(table[name]) for name in ("text", "id") if name in table.column_names}
        labels = Labels(int(config["labels"]), columns.get("text"), columns.get("id"))
        recipe = recipe_of(config["recipe"])
        words, vectors, tokenizer = Words.load(folder), None, None
        voices = tuple(voice.load(folder, words) for voice in recipe.voices)
        if recipe.encoder is not None:
            tokenizer = recipe.encoder.load_tokenizer(folder, words)
            vectors = open_scorer(recipe, read_arrays(folder / WEIGHTS), tokenizer)
        examples, frequencies = Examples.load(folder), _counts(table["frequency"])
        counts = {len(labels), len(frequencies)} | {len(texts) for texts in columns.values()}
        counts |= {len(scorer) for scorer in (*voices, vectors) if scorer is not None}
        counts |= {examples.targets.shape[1]} if examples else set()
        if len(counts) > 1:
            raise ModelError(f"{folder}: its files disagree on the number of labels; train again")
        metrics = read_json(folder / "metrics.json")
        points, dataset = int(config["points"]), str(config["dataset"])
        return cls(
            recipe, labels, frequencies, points, dataset, words, voices, vectors, tokenizer, metrics,
            examples, Probabilities.load(folder), tuple(map(str, config.get("columns", ()))),
        )  # fmt: skip

    def card(self) -> str:
        """Write the model card."""
        lines = [f"# {self.recipe.name} on {self.dataset}", ""]
        lines += [f"A longtail model: {len(self.labels):,} labels, fitted on {self.points:,} points.", ""]
        if self.metrics:
            lines += ["| metric | value |", "|---|---|"]
            lines += [f"| {name} | {value} |" for name, value in self.metrics.items() if isinstance(value, int | float)]
            lines += [""]
        lines += [self.tokenizer.credits, ""] if self.tokenizer is not None and self.tokenizer.credits else []
        return "\n".join([*lines, "Use it: `longtail predict <this folder> texts.txt`.", ""])


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


def strings(texts: Iterable[str]) -> list[str]:
    """List texts to predict for; refuse one text alone, and what is no text."""
    if isinstance(texts, str):
        raise DataError("predict got one text", remedy="give a list of texts: predict([text])")
    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise DataError(f"text {place} is of type {type(text).__name__}", remedy="give strings")
    return listed


def read_config(folder: Path) -> dict[str, Any]:
    """Read the settings of a model folder and check their seal, their version and the names of the files."""
    config = read_json(folder / "config.json")
    if config.get("schema") != SCHEMA:
        raise ModelError(
            f"{folder}: written by another version of longtail (schema {config.get('schema')!r}, this one reads "
            f"{SCHEMA}); train again"
        )
    if config.get("checksum") != _seal({name: value for name, value in config.items() if name != "checksum"}):
        raise ModelError(f"{folder / 'config.json'}: changed since it was written; train again or copy it again")
    files = config.get("files")
    if not isinstance(files, dict) or any(Path(name).name != name for name in files):
        raise ModelError(f"{folder / 'config.json'}: names files outside of the folder; do not use this model")
    for name in files:
        if (folder / name).exists() and not (folder / name).is_file():
            raise ModelError(f"{folder / name}: not a file; do not use this model")
    return config


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the settings of a model folder with their seal, whole or not at all."""
    config = {name: value for name, value in config.items() if name != "checksum"}
    write_json(folder / "config.json", config | {"checksum": _seal(config)})


def verify_files(folder: Path, files: Mapping[str, str]) -> None:
    """Read files whole and compare their checksums."""
    for name, expected in files.items():
        remedy = f"make it again: longtail index {folder}" if name.startswith("index_") else "copy the folder again"
        try:
            sound = checksum(folder / name) == expected
        except OSError as reason:
            raise ModelError(f"{folder / name}: cannot be read ({reason.strerror}); {remedy}") from None
        if not sound:
            raise ModelError(f"{folder / name}: changed since it was written; {remedy}")


def _counts(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Read whole numbers; `to_numpy` would import pandas where there is one."""
    if column.type != pa.int64() or column.null_count:
        raise ModelError(f"labels.parquet: frequencies are {column.type}, not whole numbers; train again")
    parts = [np.frombuffer(part.buffers()[1], np.int64)[part.offset :][: len(part)] for part in column.chunks]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _seal(config: dict[str, Any]) -> str:
    """Hash the settings that a folder was written with."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def checksum(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
