"""VECTOR × LABEL ROWS → SCORES: one free row per label, optionally on top of the vector of the label's own text.

Rows start from the label's text, from the mean of its points, from both, from chance or from nothing. With `text` the
vector of a label is its row plus what the shared encoder makes of its text ("sum": up to its head, "head": through it),
so that a label that no point has still has a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.errors import RecipeError
from longtail.parts import Classifier, FrozenHead, FrozenTower, Network, States, Step, Table
from longtail.records import Cost, Sizes, record
from longtail.scorers.vectors import Projection, VectorScorer
from longtail.search.exact import unit
from longtail.stores.memory import MemoryStore
from longtail.types import Floats

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK = 4096  # label texts that are encoded at once


@record
class Rows(Classifier):
    """Settings of the label rows."""

    part: ClassVar[str] = "rows"
    renamed: ClassVar[Mapping[str, str]] = {"start": "init"}
    init: Literal["nothing", "random", "text", "points", "both"] = "points"
    text: Literal["sum", "head"] | None = "head"
    bias: bool = False
    bias_init: Literal["zero", "prior"] = "zero"  # prior: at the logarithm of how rare a label is
    cosine: bool = True
    scale: float = Field(default=20.0, gt=0)  # of cosines to logits; learnt
    dropout: float = Field(default=0.0, ge=0, lt=1)  # before the rows

    def check(self, recipe: Any) -> None:
        """Ask for an encoder in whose space rows can start."""
        if self.init not in ("random", "nothing") and not recipe.encoder.sums_words:
            raise RecipeError(
                f"{recipe.name}: label rows of this encoder start at random: --set classifier.init=random"
            )

    def cost(self, sizes: Sizes) -> Cost:
        """Count the rows with two moments, a copy to serve and one to save."""
        table = 4.0 * sizes.labels * sizes.width
        return Cost(memory=5 * table, disk=table)

    @property
    def texts_through_head(self) -> bool:
        """Whether the vector of a label text passes the head."""
        return self.text != "sum"

    def build(self, labels: int, width: int, network: Network) -> BuiltRows:
        """Make the tables."""
        return BuiltRows(self, labels, width, network)

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, head: FrozenHead | None, width: int
    ) -> VectorScorer:
        """Put the rows of a model file together."""
        project = Projection(head, self.cosine)
        return VectorScorer.of_arrays(arrays, tower, project, width, texts_through_head=self.texts_through_head)


class BuiltRows:
    """Label rows while they are trained."""

    def __init__(self, settings: Rows, labels: int, width: int, network: Network) -> None:
        import torch  # noqa: PLC0415
        from torch import nn  # noqa: PLC0415

        self.settings = settings
        self.rows = network.table(_start(settings, labels, width, network))
        self.tables: dict[str, Table] = {"rows": self.rows}
        self.module: nn.Module | None = None
        if settings.cosine:
            self.module = nn.Module()
            self.module.log_scale = nn.Parameter(torch.tensor([math.log(settings.scale)]))
        if settings.bias:
            each = network.points.targets.nnz / max(len(network.points.inputs), 1)
            prior = -math.log(max(labels, 2) / max(each, 1)) if settings.bias_init == "prior" else 0.0
            self.tables["bias"] = network.table(np.full(labels, prior, np.float32))

    @property
    def texts_through_head(self) -> bool:
        """Whether label texts pass the head as points do."""
        return self.settings.texts_through_head

    def texts(self, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the labels whose texts are to be encoded."""
        return labels if self.settings.text else None

    def _scale(self) -> Tensor:
        """Return what cosines are multiplied with."""
        scale: Tensor = self.module.log_scale.exp()  # type: ignore[union-attr, operator]
        return scale

    def __call__(self, states: States, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Score a batch against labels: (B, K)."""
        from torch.nn import functional  # noqa: PLC0415

        vectors, rows = states.pooled, self.rows.gather(labels)
        if texts is not None:
            rows = rows + texts.pooled
        if self.settings.cosine:
            vectors, rows = functional.normalize(vectors), functional.normalize(rows)
            vectors = vectors * self._scale()
        scores = step.drop(vectors, self.settings.dropout) @ rows.T
        return scores + self.tables["bias"].gather(labels) if "bias" in self.tables else scores

    def freeze(
        self, tower: FrozenTower, head: FrozenHead | None, names: Callable[[slice], Floats] | None
    ) -> VectorScorer:
        """Add up rows and label texts, once for all."""
        rows: Floats = self.rows.values.cpu().numpy().copy()
        if self.settings.text and names is not None:
            for start in range(0, len(rows), CHUNK):
                some = slice(start, min(start + CHUNK, len(rows)))
                rows[some] += names(some)
        bias = np.zeros(len(rows), np.float32)
        if "bias" in self.tables:
            scale = float(self._scale()) if self.settings.cosine else 1.0
            bias = np.asarray(self.tables["bias"].values.cpu().numpy() / scale, np.float32)
        store = MemoryStore.of(unit(rows) if self.settings.cosine else rows, bias)
        return VectorScorer(tower, Projection(head, self.settings.cosine), store, self.texts_through_head)


def _start(settings: Rows, labels: int, width: int, network: Network) -> Floats:
    """Start label rows from their texts, the mean of their points, both or nothing."""
    if settings.init == "random":
        limit = math.sqrt(6 / (labels + width))
        return np.random.default_rng([network.fit.seed, 5]).uniform(-limit, limit, (labels, width)).astype(np.float32)
    rows, points = np.zeros((labels, width), np.float32), network.points
    if settings.init == "nothing":
        return rows
    words: Floats = network.tower.tables["words"].values.cpu().numpy()
    if settings.init in ("points", "both"):
        means = sp.csr_array(points.targets.T) @ points.inputs.bags(len(words))  # (L, V): the words of its points
        rows += unit(np.asarray(means @ words, np.float32))
    if points.names is not None and settings.init in ("text", "both"):
        rows += unit(np.asarray(points.names.bags(len(words)) @ words, np.float32))
    return rows / np.float32(2) if settings.init == "both" or settings.text else rows
