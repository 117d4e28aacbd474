"""PARTS → SCORES: a fitted recipe that predicts, and the folder that it is kept in.

A model folder holds config.json (recipe, sizes, a checksum of every file), labels.parquet, the arrays of its parts,
metrics.json and README.md (a model card). Nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from longtail.data.dataset import Labels, Split
from longtail.errors import DataError, ModelError
from longtail.files import read_json, whole_folder, write_json
from longtail.recipe import Recipe, recipe_of
from longtail.shortlists.lexical import Lexical, LexicalIndex
from longtail.types import LabelMatrix, Texts, TopK

SCHEMA = 1


@dataclass(frozen=True, eq=False)
class Model:
    """A recipe with everything that was learnt for it."""

    recipe: Recipe
    labels: Labels
    frequencies: NDArray[np.int64]  # (L,) points of each label in the original training data
    points: int  # of the original training data
    dataset: str  # its name
    lexical: LexicalIndex
    metrics: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Model({self.recipe.name}: {len(self.labels):,} labels, {self.points:,} points of {self.dataset})"

    def predict(self, texts: Iterable[str], k: int = 5, *, exclude: LabelMatrix | None = None) -> TopK:
        """Find the k best labels of each text, leaving out the pairs in `exclude` (N, L)."""
        if isinstance(texts, str):
            raise DataError("predict got one text", remedy="give a list of texts: predict([text])")
        asked = list(texts)
        if k < 1:
            raise DataError(f"k is {k}", remedy="ask for at least one label")
        spare = 0 if exclude is None or exclude.nnz == 0 else int(np.diff(exclude.indptr).max())
        top = self.lexical.top(asked, min(k + spare, len(self.labels)), self.labels.texts)
        if exclude is not None:
            if exclude.shape != (len(asked), len(self.labels)):
                raise DataError(f"exclude is {exclude.shape}", remedy=f"give ({len(asked)}, {len(self.labels)})")
            top = top.without(exclude, k)
        return top

    def predict_split(self, split: Split, k: int = 5) -> TopK:
        """Predict the points of a split; its excluded pairs are left out."""
        if len(split.labels) != len(self.labels):
            raise DataError(
                f"the data has {len(split.labels)} labels, the model {len(self.labels)}",
                remedy="evaluate on the data set that the model was trained for",
            )
        return self.predict(split.need_texts("predict"), k, exclude=split.excluded)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model folder, whole or not at all."""
        with whole_folder(path, force=force) as folder:
            columns = {"frequency": pa.array(self.frequencies)}
            for name, texts in (("text", self.labels.texts), ("id", self.labels.ids)):
                if texts is not None:
                    columns[name] = texts.array
            pq.write_table(pa.table(columns), folder / "labels.parquet")
            self.lexical.save(folder)
            write_json(folder / "metrics.json", self.metrics)
            (folder / "README.md").write_text(self.card(), encoding="utf-8")
            config = {"schema": SCHEMA, "recipe": self.recipe.dump(), "labels": len(self.labels), "points": self.points}
            sums = {file.name: _checksum(file) for file in sorted(folder.iterdir())}
            write_json(folder / "config.json", config | {"dataset": self.dataset, "files": sums})

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Open a model folder after checking that every file is the one that was written."""
        folder = Path(path)
        config = read_json(folder / "config.json")
        if config.get("schema") != SCHEMA:
            raise ModelError(f"{folder}: schema {config.get('schema')!r}, this version reads {SCHEMA}; train again")
        try:
            for name, expected in config["files"].items():
                if Path(name).name != name or _checksum(folder / name) != expected:
                    raise ModelError(f"{folder / name}: changed since it was written; train again or copy it again")
            table = pq.read_table(folder / "labels.parquet")
            held = {name: Texts(table[name]) for name in ("text", "id") if name in table.column_names}
            labels = Labels(int(config["labels"]), held.get("text"), held.get("id"))
            recipe = recipe_of(config["recipe"])
            if not isinstance(recipe.lexical, Lexical):
                raise ModelError(f"{folder}: the recipe has no lexical part; train again")
            lexical = LexicalIndex.load(folder, recipe.lexical)
            frequencies = table["frequency"].to_numpy()
            if not len(labels) == len(frequencies) == lexical.targets.shape[1] == lexical.near.groups[0].shape[0]:
                raise ModelError(f"{folder}: its files disagree on the number of labels; train again")
            metrics = read_json(folder / "metrics.json")
            return cls(recipe, labels, frequencies, int(config["points"]), str(config["dataset"]), lexical, metrics)
        except (KeyError, TypeError, ValueError, AttributeError, OSError, pa.ArrowException) as reason:
            raise ModelError(f"{folder}: damaged ({reason}); train again") from None

    def card(self) -> str:
        """Write the model card."""
        lines = [f"# {self.recipe.name} on {self.dataset}", ""]
        lines += [f"A longtail model: {len(self.labels):,} labels, fitted on {self.points:,} points.", ""]
        if self.metrics:
            lines += ["| metric | value |", "|---|---|"]
            lines += [f"| {name} | {value} |" for name, value in self.metrics.items() if isinstance(value, int | float)]
            lines += [""]
        return "\n".join([*lines, "Use it: `longtail predict <this folder> texts.txt`.", ""])


def _checksum(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
