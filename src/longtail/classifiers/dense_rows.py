"""VECTOR × ROWS → SCORES, for so few labels that every step changes all rows: clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.classifiers.products import log_prior
from longtail.parts import (
    BuiltHead,
    Classifier,
    Factors,
    FrozenHead,
    FrozenTower,
    Network,
    Points,
    States,
    Step,
    Table,
    TextsAs,
)
from longtail.records import record
from longtail.scorers.vectors import Projection, VectorScorer
from longtail.stores.memory import MemoryStore
from longtail.types import Floats

if TYPE_CHECKING:
    from torch import Tensor


@record
class DenseRows(Classifier):
    """A linear layer with a bias; all its rows are trained in every step."""

    part: ClassVar[str] = "dense_rows"
    has_factors: ClassVar[bool] = True
    can_split: ClassVar[bool] = False
    bias_init: Literal["zero", "prior"] = "prior"  # where biases start; prior: at the logarithm of how rare one is
    dropout: float = Field(default=0.5, ge=0, lt=1)  # before the rows

    def build(self, points: Points, width: int, network: Network, head: BuiltHead | None = None) -> BuiltDenseRows:
        """Make the layer."""
        return BuiltDenseRows(self, points, width)

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, head: FrozenHead | None, width: int
    ) -> VectorScorer:
        """Put the rows of a model file together."""
        return VectorScorer.of_arrays(arrays, tower, Projection(head, False), width, reads_labels=False)


class BuiltDenseRows:
    """The layer while it is trained."""

    texts_as: ClassVar[TextsAs] = "tower"

    def __init__(self, settings: DenseRows, points: Points, width: int) -> None:
        from torch import nn  # noqa: PLC0415

        self.settings, self.tables = settings, dict[str, Table]()
        self.module = nn.Linear(width, points.targets.shape[1])
        nn.init.xavier_uniform_(self.module.weight)
        nn.init.constant_(self.module.bias, log_prior(points) if settings.bias_init == "prior" else 0.0)

    def texts(self, labels: NDArray[np.int64]) -> None:
        """Ask for no label texts."""

    def __call__(self, states: States, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Score a batch against labels: (B, K)."""
        scores: Tensor = self.module(step.drop(states.pooled, self.settings.dropout))
        return scores if len(labels) == scores.shape[1] else scores[:, labels]

    def factors(self, states: States, labels: NDArray[np.int64], texts: States | None, step: Step) -> Factors:
        """Return what scores are the products of."""
        weight: Tensor = self.module.weight
        bias: Tensor = self.module.bias
        if len(labels) < len(weight):
            weight, bias = weight[labels], bias[labels]
        return Factors(step.drop(states.pooled, self.settings.dropout), weight, bias)

    def freeze(
        self, tower: FrozenTower, head: FrozenHead | None, names: Callable[[slice], Floats] | None
    ) -> VectorScorer:
        """Give the rows as arrays."""
        weight, bias = (value.detach().cpu().numpy().copy() for value in self.module.parameters())
        return VectorScorer(tower, Projection(head, False), MemoryStore.of(weight, bias), reads_labels=False)
