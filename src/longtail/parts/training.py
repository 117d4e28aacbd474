"""The nouns of a training: its points, a batch of them, what a tower makes of it, one step, and what stages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.labels.tree import Clusters
from longtail.parts.serving import Arrays, Earlier, Scorer
from longtail.records import StageDone
from longtail.types import Floats, LabelMatrix, Progress, Texts, without

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from longtail.parts.kinds import Encoder
    from longtail.parts.trained import Network, Prepared

Place = Literal["dataset", "words", "batch", "candidates", "embeddings", "layers", "states", "contexts", "hidden"]
Replace = Callable[[NDArray[Any]], NDArray[Any]]
DRAWN = "drawn"  # where a step remembers the labels that its points were drawn for
# Where it keeps, while labels are scored, what the scores should be and which of them there are: (B, K) each.
TARGETS = "targets"
OWN = "own"  # where it keeps, while labels are scored, which of them this process owns, and how many there are


class Inputs(Protocol):
    """Rows of texts that were turned into word numbers."""

    def __len__(self) -> int: ...

    def take(self, rows: NDArray[np.int64]) -> Self:
        """Select rows."""

    def words(self) -> NDArray[Any]:
        """All word numbers that occur, with repetition."""

    def bags(self, width: int) -> sp.csr_array:
        """Count the words of each row, or weigh them: (N, width)."""

    def followed(self, others: Self, rows: NDArray[np.int64]) -> Self:
        """Append row rows[i] of `others` to row i; -1 leaves it as it is."""

    def replaced(self, replace: Replace) -> Self:
        """Exchange words for others."""


class Tokenizer(Protocol):
    """A vocabulary that a model folder keeps."""

    @property
    def vocabulary(self) -> Texts:
        """The words."""

    @property
    def credits(self) -> str:
        """Whom the model card must name; nobody where it is empty."""

    def __len__(self) -> int: ...

    def save(self, folder: Path) -> None:
        """Write into a model folder."""


@dataclass(frozen=True, eq=False)
class Points:
    """The training points as numbers, and the texts of the labels."""

    inputs: Inputs
    targets: LabelMatrix  # (N, L), soft values allowed
    excluded: LabelMatrix  # (N, L) pairs that must not be learnt from
    weights: Floats  # (N,)
    names: Inputs | None = None  # (L,)
    partition: Clusters | None = None  # where targets are those of clusters

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """Select a batch."""
        return Batch(rows, self.inputs.take(rows), self.targets[rows], self.excluded[rows], self.weights[rows])

    def clustered(self, partition: Clusters) -> Points:
        """Learn clusters of labels instead of labels; a cluster with a positive is one."""
        targets = partition.targets(self.targets)
        excluded = without(partition.targets(self.excluded), targets)
        return replace(self, targets=targets, excluded=excluded, partition=partition, names=None)


@dataclass(frozen=True, eq=False)
class Batch:
    """The points of one step."""

    rows: NDArray[np.int64]  # (B,) places among the training points
    inputs: Inputs
    targets: LabelMatrix  # (B, L)
    excluded: LabelMatrix  # (B, L)
    weights: Floats  # (B,)

    def clustered(self, partition: Clusters) -> Batch:
        """Learn clusters of labels instead of labels; a cluster with a positive is one."""
        targets = partition.targets(self.targets)
        return replace(self, targets=targets, excluded=without(partition.targets(self.excluded), targets))


@dataclass(frozen=True, eq=False)
class States:
    """What a tower makes of texts: one vector each, and one for each token where the recipe asks for them."""

    pooled: Tensor  # (B, D)
    tokens: Tensor | None = None  # (B, T, D)
    mask: Tensor | None = None  # (B, T) True where there is a token

    def detach(self) -> States:
        """Cut the way back to the tower."""
        tokens = None if self.tokens is None else self.tokens.detach()
        return States(self.pooled.detach(), tokens, self.mask)


@dataclass(frozen=True, eq=False)
class Contexts:
    """What the labels of a step see of its texts; augmentations act on it.

    The context of a label is the sum of states by the weights of its words. Contexts of one text are mixed by mixing
    their weights; those of different texts by `share` and `partners`.
    """

    labels: NDArray[np.int64]  # (K,)
    weights: Tensor  # (B, K, T)
    states: Tensor  # (B, T, D)
    share: Tensor | None = None  # (B,) what stays of a text's own contexts
    partners: Tensor | None = None  # (B,) places in the batch

    def vectors(self, rows: Tensor, places: Tensor) -> Tensor:
        """Return the contexts of texts `rows` and of labels at `places` (P, M): (P, M, D)."""
        return self.weights[rows[:, None], places] @ self.states[rows]

    def through(self, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """Pass all contexts through a linear layer: (B, K, M)."""
        out = self.weights @ layer(self.states)
        if self.share is None or self.partners is None:
            return out
        share = self.share[:, None, None]
        return share * out + (1 - share) * out[self.partners]


@dataclass(frozen=True, eq=False)
class Factors:
    """What scores are the products of, plus a bias."""

    vectors: Tensor  # (B, D)
    rows: Tensor  # (K, D)
    bias: Tensor | None = None  # (K,)
    half: dtype | None = None  # what is multiplied, if it is not as precise as what is added up


@dataclass(frozen=True, eq=False)
class Candidates:
    """The labels that a batch is scored against, ascending, and which of them each point sees (all where None)."""

    labels: NDArray[np.int64]  # (K,)
    mask: Tensor | None = None  # (B, K)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a training; all chance in it comes from `draw`."""

    draw: np.random.Generator
    progress: float  # share of the steps that is done
    network: Network
    augmentations: Sequence[Prepared] = ()
    memory: dict[Any, Any] = field(default_factory=dict)  # what one place leaves for a later one, by whoever left it
    own: tuple[NDArray[np.int64], int] | None = None  # which rows of what is dropped from are here, and of how many

    def apply(self, place: Place, value: Any) -> Any:
        """Let the augmentations that act on a place change what is there: the only way in which they are called."""
        for part in self.augmentations:
            if place in part.acts_on:
                value = part.apply(place, value, self)
        return value

    def drop(self, values: Tensor, share: float) -> Tensor:
        """Apply dropout."""
        return self.network.noise.drop(values, share, self.draw, self.own)

    def plain(self) -> Step:
        """Return the same step without augmentations: label texts are encoded as they are."""
        return replace(self, augmentations=())

    def of_labels(self) -> Step:
        """Return the same step for rows of labels, of which this process has those that it owns."""
        return replace(self, own=self.memory.get(OWN))


@dataclass(frozen=True, eq=False)
class Fit:
    """What the stages of a training share, and what they hand on."""

    recipe: Any  # Recipe
    train: Split
    validation: Split | None  # points that nothing is learnt from
    words: Words
    tokenizer: Tokenizer
    points: Points
    scratch: Path | None = None
    fingerprint: str = ""
    progress: Progress | None = None
    before: Network | None = None  # what the stages before have trained
    frozen: bool = False  # whether the tower stays as it is
    partition: Clusters | None = None  # of the labels, where a stage has made one
    graph: sp.csr_array | None = None  # of the labels, where a stage has pruned it
    scorer: Scorer | None = None  # what the stages so far have made
    done: list[StageDone] = field(default_factory=list)  # by the stages so far, which share the list
    earlier: Earlier | None = None  # a model that this training continues

    @property
    def seed(self) -> int:
        """The seed of all chance."""
        return int(self.recipe.seed)

    @cached_property
    def start(self) -> Arrays:
        """What the weights of towers start from, computed once for all stages."""
        names = [] if self.points.names is None else [self.points.names]
        encoder: Encoder = self.recipe.encoder
        start = encoder.start(self.tokenizer, [self.points.inputs, *names], self.seed)
        return start if self.earlier is None else encoder.continued(start, self.tokenizer, self.earlier)

    def changed(self, **changes: Any) -> Fit:
        """Change some fields and keep what was computed."""
        fit = replace(self, **changes)
        if "start" in self.__dict__:
            fit.__dict__["start"] = self.start
        return fit
