"""VECTOR × LABEL VECTORS → SCORES: what all classifiers share that score by products; each makes its label vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.errors import RecipeError
from longtail.parts import (
    Classifier,
    Factors,
    FrozenHead,
    FrozenTower,
    Names,
    Network,
    Points,
    States,
    Step,
    Table,
    TextsAs,
)
from longtail.records import record
from longtail.scorers.texts import TextRows
from longtail.scorers.vectors import Projection, VectorScorer
from longtail.search.exact import unit
from longtail.stores.memory import MemoryStore
from longtail.types import Floats

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK = 4096  # label texts that are encoded at once


@record
class Products(Classifier):
    """Settings of scores that are products: cosines times a learnt scale, or as they are, with a bias or without."""

    bias: bool = False  # whether each label has a bias
    bias_init: Literal["zero", "prior"] = "zero"  # where biases start; prior: at the logarithm of how rare a label is
    cosine: bool = True  # whether scores are cosines
    scale: float = Field(default=20.0, gt=0)  # of cosines to logits
    learn_scale: bool = True  # whether the scale of cosines is learnt
    dropout: float = Field(default=0.0, ge=0, lt=1)  # before the label vectors
    has_factors: ClassVar[bool] = True
    serve_cosine: bool = False  # whether cosines are served although products are trained

    def check(self, recipe: Any) -> None:
        """Refuse a bias where other scores are served than those that it was learnt for."""
        if self.bias and self.serve_cosine and not self.cosine:
            raise RecipeError(f"{recipe.name}: a bias of products does not fit cosines: {self.part}.bias=false")
        super().check(recipe)

    @property
    def reads_labels(self) -> bool:
        """Whether label vectors are made of label texts."""
        return True

    @property
    def served_cosine(self) -> bool:
        """Whether served scores are cosines."""
        return self.cosine or self.serve_cosine


class BuiltProducts(ABC):
    """Label vectors while they are trained; a subclass makes them."""

    def __init__(self, settings: Products, points: Points, network: Network) -> None:
        import torch  # noqa: PLC0415
        from torch import nn  # noqa: PLC0415

        self.settings, self.labels = settings, points.targets.shape[1]
        self.tables: dict[str, Table] = {}
        self.module: nn.Module = nn.Module()
        if settings.cosine:
            self.module.log_scale = nn.Parameter(torch.tensor([math.log(settings.scale)]), settings.learn_scale)
        if settings.bias:
            prior = log_prior(points) if settings.bias_init == "prior" else 0.0
            self.tables["bias"] = network.table(np.full(self.labels, prior, np.float32), of_labels=True)

    @property
    def texts_as(self) -> TextsAs:
        """How label texts are encoded."""
        return "words"

    def texts(self, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the labels whose texts are to be encoded, ascending."""
        return None

    @abstractmethod
    def vectors(self, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Make the vectors of labels for one step: (K, D)."""

    def units(self, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Make them with length one."""
        from longtail.classifiers.normalised import normalised  # noqa: PLC0415  (torch)

        return normalised(self.vectors(labels, texts, step))

    @abstractmethod
    def all_vectors(self, names: Names | None) -> Floats:
        """Make the vectors of all labels as they are served: (L, D)."""

    def text_rows(self) -> TextRows | None:
        """Return what makes vectors of new labels from sums of word vectors, where that is how vectors are made."""
        return None

    def _scale(self) -> Tensor:
        """Return what cosines are multiplied with."""
        scale: Tensor = self.module.log_scale.exp()  # type: ignore[operator]
        return scale

    def __call__(self, states: States, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Score a batch against labels: (B, K)."""
        factors = self.factors(states, labels, texts, step)
        scores = factors.vectors @ factors.rows.T
        return scores if factors.bias is None else scores + factors.bias

    def factors(self, states: States, labels: NDArray[np.int64], texts: States | None, step: Step) -> Factors:
        """Return what scores are the products of."""
        from longtail.classifiers.normalised import normalised  # noqa: PLC0415  (torch)

        vectors = states.pooled
        if self.settings.cosine:
            rows = self.units(labels, texts, step.of_labels())
            vectors = normalised(vectors) * self._scale()
        else:
            rows = self.vectors(labels, texts, step.of_labels())
        vectors = step.drop(vectors, self.settings.dropout)
        return Factors(vectors, rows, self.tables["bias"].gather(labels) if "bias" in self.tables else None)

    def freeze(self, tower: FrozenTower, head: FrozenHead | None, names: Names | None) -> VectorScorer:
        """Make all label vectors, once for all."""
        rows, cosine = self.all_vectors(names), self.settings.served_cosine
        bias = np.zeros(len(rows), np.float32)
        if "bias" in self.tables:
            scale = float(self._scale()) if self.settings.cosine else 1.0
            bias = np.asarray(self.tables["bias"].values.cpu().numpy() / scale, np.float32)
        store = MemoryStore.of(unit(rows) if cosine else rows, bias)
        project, through_head = Projection(head, cosine), self.texts_as == "head"
        return VectorScorer(
            tower, project, store, through_head, text_rows=self.text_rows(), reads_labels=self.settings.reads_labels
        )


def all_texts(names: Names) -> Floats:
    """Encode the texts of all labels in chunks: (L, D)."""
    starts = range(0, max(1, len(names)), CHUNK)
    return np.concatenate([names(slice(start, min(start + CHUNK, len(names)))) for start in starts])


def log_prior(points: Points) -> float:
    """Return the logarithm of how rare a label is among the points."""
    each = points.targets.nnz / max(len(points.inputs), 1)
    return -math.log(max(points.targets.shape[1], 2) / max(each, 1))
