"""POINTS → LOSS: the halves of parts that are trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from longtail.labels.tree import Clusters
from longtail.parts.serving import Arrays, FrozenHead, FrozenTower, Retriever, Scorer
from longtail.parts.training import Batch, Candidates, Factors, Fit, Inputs, Place, Points, States, Step
from longtail.shards import Group, Shard
from longtail.types import Floats

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

TextsAs = Literal["tower", "head", "words"]  # up to the head, through it as points go, or as sums of word vectors


class Table(Protocol):
    """Rows of which a step reads and changes only those that it uses, wherever they are kept."""

    group: Group  # among whom gradients are added up
    labels: int | None  # whose rows processes share; None: each has all rows

    @property
    def values(self) -> Tensor:
        """All rows; while labels are trained, those that this process owns."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows, wherever they are."""

    def take(self, values: Tensor) -> None:
        """Start from other values of all rows."""

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Take rows for one step; several gathers of a step add up."""

    def step(self, learning_rate: float, number: int) -> None:
        """Apply the gradients of the rows that were gathered; `number` counts the steps from one."""

    def reduce(self) -> None:
        """Add up the gradients of all processes, where each has but a part."""

    def gradients(self) -> list[Tensor]:
        """Return the gradients of this step, as they are kept."""

    def finish(self) -> None:
        """Forget what only training needs."""

    def kept(self, values: Tensor) -> NDArray[Any] | Shard:
        """Return values of its rows for a checkpoint."""

    def own(self, values: NDArray[Any]) -> Tensor:
        """Take the values of its rows from those of a checkpoint."""

    def arrays(self, name: str) -> Mapping[str, NDArray[Any] | Shard]:
        """Name values and optimiser state for a checkpoint."""

    def restore(self, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        """Take values and state from a checkpoint."""


class Noise(Protocol):
    """Where dropout comes from."""

    def drop(
        self, values: Tensor, share: float, draw: np.random.Generator, own: tuple[NDArray[np.int64], int] | None = None
    ) -> Tensor:
        """Zero a share of the entries and scale the others up; `own`: the values are these rows of so many."""


class Network(Protocol):
    """What is being trained."""

    fit: Fit
    points: Points
    device: torch.device
    frozen: bool  # whether the tower stays as it is
    given: Clusters | None  # of the labels, where those are learnt and no sampler makes them
    noise: Noise
    half: torch.dtype | None  # what is multiplied, where that is quick, if not in full precision

    @property
    def tower(self) -> Tower:
        """The encoder."""

    @property
    def terms(self) -> Sequence[Any]:
        """The objectives, made ready."""

    def table(self, values: Any, *, frozen: bool = False, of_labels: bool = False) -> Table:
        """Make a table whose rows are trained as the settings say; processes share out those of labels."""

    def vectors(self, inputs: Inputs) -> Floats:
        """Encode texts outside of training."""

    def over(self, name: str) -> Any:
        """Return the objective over something else than labels."""

    def saliency(self, batch: Batch, draw: np.random.Generator) -> Floats:
        """Return how much the loss of a batch depends on each word: (B, T), the most of each text is one."""

    def scorer(self) -> Scorer:
        """Return what was learnt so far, as it would be served."""


class Tower(Protocol):
    """An encoder while it is trained."""

    tables: dict[str, Table]

    @property
    def module(self) -> nn.Module:
        """The small parameters that every step changes."""

    def __call__(self, inputs: Any, step: Step | None) -> States:
        """Encode a batch; no step: outside of training."""

    def embed(self, inputs: Any) -> Tensor:
        """Look up the words of a batch, before anything is done with them."""

    def bags(self, names: Any, partition: Clusters | None = None) -> Inputs:
        """Weigh the words of label texts, or of clusters of labels, for `sums`; for encoders with a table of words."""

    def sums(self, bags: Any) -> Tensor:
        """Sum the vectors of the words of bags: (B, D)."""

    def expect(self, *inputs: Any) -> None:
        """Make ready for what this step will encode, to read shared rows once; it may do nothing."""

    def take_over(self, other: Any) -> None:
        """Start from the weights of another tower of the same kind."""

    def freeze(self, tokenizer: Any) -> FrozenTower:
        """Give the half that is served."""


class BuiltHead(Protocol):
    """A head while it is trained: a torch module."""

    def __call__(self, vectors: Tensor, step: Step) -> Tensor:
        """Pass vectors (B, D) through."""

    def freeze(self) -> FrozenHead:
        """Give the half that is served."""


class Remembers:
    """What changes between epochs; its state is kept in checkpoints."""

    def on_epoch(self, epoch: int, network: Network) -> None:
        """Mine or cluster again, before an epoch."""

    def state(self) -> Arrays:
        """Name what the next step depends on."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take the state from a checkpoint."""


class BuiltOrder(Remembers, ABC):
    """An order of points made ready."""

    @abstractmethod
    def rows(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """Order the points of an epoch, given its chance."""


class BuiltSampler(Remembers, ABC):
    """A sampler made ready."""

    partition: Clusters | None = None  # of the labels, which an objective over clusters learns

    @abstractmethod
    def propose(self, batch: Batch, states: Callable[[], States], step: Step) -> Candidates:
        """Choose the labels of a batch; `states` encodes it when it is asked for, which may be never."""

    def freeze(self, network: Network) -> Retriever | None:
        """Give the half that is served."""
        return None


class Names(Protocol):
    """The texts of labels, or of those that this process owns."""

    def __len__(self) -> int: ...

    def __call__(self, some: slice) -> Floats:
        """Encode some of them."""


class BuiltClassifier(Protocol):
    """A classifier while it is trained."""

    tables: dict[str, Table]

    @property
    def module(self) -> nn.Module | None:
        """The small parameters that every step changes."""

    @property
    def texts_as(self) -> TextsAs:
        """How label texts are encoded."""

    def texts(self, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the labels whose texts are to be encoded; None: no texts."""

    def __call__(self, states: States, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Score a batch against labels: (B, K)."""

    def factors(self, states: States, labels: NDArray[np.int64], texts: States | None, step: Step) -> Factors:
        """Return what scores are the products of; for classifiers that have factors."""

    def freeze(self, tower: FrozenTower, head: FrozenHead | None, names: Names | None) -> Scorer:
        """Give the half that is served; `names` encodes the texts of some labels."""


class Prepared(Protocol):
    """An augmentation made ready for one training set."""

    @property
    def acts_on(self) -> tuple[Place, ...]:
        """The places at which it is called."""

    def apply(self, place: Place, value: Any, step: Step) -> Any:
        """Change what is at a place: a batch, its candidates, embeddings (B, …), states, contexts and so on."""
