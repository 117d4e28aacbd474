"""ONE FREE VECTOR FOR EACH LABEL, optionally on top of the vector of the label's own text.

Rows start from the label's text, from the mean of its points, from both, from chance or from nothing. With `text` the
vector of a label is its row plus what the shared encoder makes of its text ("sum": up to its head, "head": through it),
so that a label that no point has still has a vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.classifiers.products import CHUNK, BuiltProducts, Products
from longtail.classifiers.texts import label_sums, label_vectors
from longtail.errors import RecipeError
from longtail.parts import BuiltHead, FrozenHead, FrozenTower, Names, Network, Points, States, Step, TextsAs
from longtail.records import Cost, Sizes, record
from longtail.scorers.vectors import Projection, VectorScorer
from longtail.search.exact import unit
from longtail.types import Floats

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 2**16  # labels whose rows are started at once


@record
class Rows(Products):
    """Settings of the label rows.

    With `init` "label_text" they start from the sums of word vectors, with "graph_text" from those of neighbours too,
    with "vectors" from what encoder and head make of texts, with "graph_vectors" from what the encoder alone makes of
    those of neighbours.
    """

    part: ClassVar[str] = "rows"
    renamed: ClassVar[Mapping[str, str]] = {"start": "init"}
    # where rows start from
    init: Literal[
        "nothing", "random", "text", "points", "both", "label_text", "graph_text", "vectors", "graph_vectors"
    ] = "points"
    # how the label's text is added to its row: up to the head, through it, or not
    text: Literal["sum", "head"] | None = "head"
    text_weight: float = Field(default=1.0, gt=0)  # of what is made of a label's text, beside its row

    def check(self, recipe: Any) -> None:
        """Ask for an encoder in whose space rows can start."""
        if self.init in ("text", "points", "both") and not recipe.encoder.sums_words:
            raise RecipeError(
                f"{recipe.name}: label rows of this encoder start at random: --set classifier.init=random"
            )
        super().check(recipe)

    @property
    def reads_labels(self) -> bool:
        """Whether label texts are part of label vectors."""
        return self.text is not None

    def in_width(self, encoder: Any) -> int | None:
        """Return the dimension of words or of the encoder, where rows start there or label texts are added to them."""
        if self.text == "sum" or self.init == "graph_vectors":
            return int(encoder.width)
        return None if self.init in ("nothing", "random", "vectors") else int(encoder.dim)

    def cost(self, sizes: Sizes) -> Cost:
        """Count the rows with their moments, which processes share out, a copy to serve and one to save."""
        table = 4.0 * sizes.labels * sizes.width
        return Cost(memory=(2 + (1 + sizes.moments) / sizes.processes) * table, disk=table)

    def build(self, points: Points, width: int, network: Network, head: BuiltHead | None = None) -> BuiltRows:
        """Make the tables."""
        return BuiltRows(self, points, width, network, head)

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, head: FrozenHead | None, width: int
    ) -> VectorScorer:
        """Put the rows of a model file together."""
        project = Projection(head, self.served_cosine)
        return VectorScorer.of_arrays(
            arrays, tower, project, width, texts_through_head=self.text != "sum", reads_labels=self.reads_labels
        )


class BuiltRows(BuiltProducts):
    """Label rows while they are trained."""

    settings: Rows

    def __init__(
        self, settings: Rows, points: Points, width: int, network: Network, head: BuiltHead | None = None
    ) -> None:
        start = _start(settings, points, width, network)
        start = start if head is None or settings.init != "vectors" else head.freeze()(start)
        rows = network.table(start, of_labels=True)
        super().__init__(settings, points, network)
        self.rows = rows
        self.tables = {"rows": rows} | self.tables

    @property
    def texts_as(self) -> TextsAs:
        """How label texts are encoded."""
        return "tower" if self.settings.text == "sum" else "head"

    def texts(self, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the labels whose texts are to be encoded."""
        return labels if self.settings.text else None

    def vectors(self, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Take rows, and add what is made of the texts."""
        rows = self.rows.gather(labels)
        return rows if texts is None else rows + self.settings.text_weight * texts.pooled

    def units(self, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Do both at once."""
        from longtail.classifiers.normalised import normalised_sum  # noqa: PLC0415  (torch)

        if texts is None:
            return super().units(labels, texts, step)
        return normalised_sum(self.rows.gather(labels), texts.pooled, self.settings.text_weight)

    def all_vectors(self, names: Names | None) -> Floats:
        """Add up rows and label texts."""
        rows: Floats = self.rows.values.cpu().numpy().copy()
        if self.settings.text and names is not None:
            for start in range(0, len(rows), CHUNK):
                some = slice(start, min(start + CHUNK, len(rows)))
                rows[some] += np.float32(self.settings.text_weight) * names(some)
        return rows


def _start(settings: Rows, points: Points, width: int, network: Network) -> Floats:
    """Start label rows from their texts, the mean of their points, both or nothing."""
    labels = points.targets.shape[1]
    if settings.init in ("label_text", "graph_text"):
        return label_sums(points, network, walked=settings.init == "graph_text")
    if settings.init in ("vectors", "graph_vectors"):
        return label_vectors(points, network, walked=settings.init == "graph_vectors")
    if settings.init == "random":
        limit = math.sqrt(6 / (labels + width))
        return np.random.default_rng([network.fit.seed, 5]).uniform(-limit, limit, (labels, width)).astype(np.float32)
    rows = np.zeros((labels, width), np.float32)
    if settings.init == "nothing":
        return rows
    words: Floats = network.tower.tables["words"].values.cpu().numpy()
    if settings.init in ("points", "both"):
        means = sp.csr_array(points.targets.T) @ points.inputs.bags(len(words))  # (L, V): the words of its points
        _add_units(rows, means, words)
    if points.names is not None and settings.init in ("text", "both"):
        _add_units(rows, points.names.bags(len(words)), words)
    if settings.init == "both" or settings.text:
        rows /= np.float32(2)
    return rows


def _add_units(rows: Floats, bags: sp.csr_array, words: Floats) -> None:
    """Add the sums of words, of length one, to rows; many labels in blocks, so that no second table is held."""
    for start in range(0, len(rows), BLOCK):
        some = slice(start, start + BLOCK)
        rows[some] += unit(np.asarray(bags[some] @ words, np.float32))
