"""What each kind of part must do; nothing concrete. The core knows these kinds and no part by its name.

A part is a frozen record of settings that builds what it describes: `build` makes the half that is trained (torch is
imported there), `freeze` turns that into the half that is served, `open` reads the served half from a model folder.

Encoder      → Tower → FrozenTower           texts to vectors
Head         → BuiltHead → FrozenHead        vectors to vectors, before the label rows
Sampler      → BuiltSampler → Retriever      which labels a batch, or a query, is scored against
Classifier   → BuiltClassifier → Scorer      vectors and labels to scores
Loss                                         scores and targets to a number
Objective                                    one of each: what a step minimises the weighted sum of
BatchOrder                                   which points stand side by side in a batch
Stage                                        one run of the loop, or what comes between two
Augmentation → Prepared                      more points, or other ones, at the places that it names
Voice        → Scorer                        scores that need no training
LabelStore                                   label vectors, wherever they are kept
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.errors import RecipeError
from longtail.labels.tree import LABELS_EACH, Clusters
from longtail.records import Cost, Part, Sizes, record
from longtail.types import Floats, Ints, LabelMatrix, Progress, Texts, without

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Arrays: TypeAlias = dict[str, NDArray[Any]]
Place = Literal["dataset", "words", "batch", "embeddings", "states", "contexts"]
TextsAs = Literal["tower", "head", "words"]  # up to the head, through it as points go, or as sums of word vectors
DRAWN = "drawn"  # where a step remembers the labels that its points were drawn for
Replace = Callable[[NDArray[Any]], NDArray[Any]]


def below(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


# Texts as numbers


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

    def __len__(self) -> int: ...

    def save(self, folder: Path) -> None:
        """Write into a model folder."""


# A training


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

    def apply(self, place: Place, value: Any) -> Any:
        """Let the augmentations that act on a place change what is there: the only way in which they are called."""
        for part in self.augmentations:
            if place in part.acts_on:
                value = part.apply(place, value, self)
        return value

    def drop(self, values: Tensor, share: float) -> Tensor:
        """Apply dropout."""
        return self.network.noise.drop(values, share, self.draw)

    def plain(self) -> Step:
        """Return the same step without augmentations: label texts are encoded as they are."""
        return replace(self, augmentations=())


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

    @property
    def seed(self) -> int:
        """The seed of all chance."""
        return int(self.recipe.seed)

    @cached_property
    def start(self) -> Arrays:
        """What the weights of towers start from, computed once for all stages."""
        names = [] if self.points.names is None else [self.points.names]
        encoder: Encoder = self.recipe.encoder
        return encoder.start(self.tokenizer, [self.points.inputs, *names], self.seed)

    def changed(self, **changes: Any) -> Fit:
        """Change some fields and keep what was computed."""
        fit = replace(self, **changes)
        if "start" in self.__dict__:
            fit.__dict__["start"] = self.start
        return fit


class Table(Protocol):
    """Rows of which a step reads and changes only those that it uses, wherever they are kept."""

    @property
    def values(self) -> Tensor:
        """All rows."""

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Take rows for one step; several gathers of a step add up."""

    def step(self, learning_rate: float, number: int) -> None:
        """Apply the gradients of the rows that were gathered; `number` counts the steps from one."""

    def arrays(self, name: str) -> Arrays:
        """Name values and optimiser state for a checkpoint."""

    def restore(self, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        """Take values and state from a checkpoint."""


class Noise(Protocol):
    """Where dropout comes from."""

    def drop(self, values: Tensor, share: float, draw: np.random.Generator) -> Tensor:
        """Zero a share of the entries and scale the others up."""


class Network(Protocol):
    """What is being trained."""

    fit: Fit
    points: Points
    device: torch.device
    frozen: bool  # whether the tower stays as it is
    noise: Noise

    @property
    def tower(self) -> Tower:
        """The encoder."""

    @property
    def terms(self) -> Sequence[Any]:
        """The objectives, made ready."""

    def table(self, values: Any, *, frozen: bool = False) -> Table:
        """Make a table whose rows are trained as the settings say."""

    def vectors(self, inputs: Inputs) -> Floats:
        """Encode texts outside of training."""

    def over(self, name: str) -> Any:
        """Return the objective over something else than labels."""

    def scorer(self) -> Scorer:
        """Return what was learnt so far, as it would be served."""


# The kinds of parts


class Encoder(Part):
    """Texts to vectors; brings its own tokenizer."""

    min_batch: ClassVar[int] = 1  # points that a batch must have
    sums_words: ClassVar[bool] = False  # whether vectors are sums of the table "words", so that rows can start there
    has_words: ClassVar[bool] = False  # whether there is a table "words" that texts of labels can be sums of

    @property
    def width(self) -> int:
        """The dimension of the vectors."""
        raise NotImplementedError

    def tokenizer(self, texts: Texts, names: Texts | None, words: Words) -> Tokenizer:
        """Fit a tokenizer to points and label texts; `words` is the vocabulary that the whole model shares."""
        return words

    def load_tokenizer(self, folder: Path, words: Words) -> Tokenizer:
        """Open the tokenizer of a model folder."""
        return words

    def inputs(self, tokenizer: Any, texts: Sequence[str]) -> Inputs:
        """Turn texts into numbers."""
        raise NotImplementedError

    def start(self, tokenizer: Any, inputs: Sequence[Inputs], seed: int) -> Arrays:
        """Compute what weights start from, where that is costly: word vectors."""
        return {}

    def build(self, start: Arrays, network: Network) -> Tower:
        """Make the half that is trained."""
        raise NotImplementedError

    def open(self, arrays: Mapping[str, NDArray[Any]], tokenizer: Any) -> FrozenTower:
        """Make the half that is served, from what `FrozenTower.arrays` gave."""
        raise NotImplementedError


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


class FrozenTower(Protocol):
    """An encoder as it is served."""

    needs_torch: ClassVar[bool]  # torch has threads of its own

    def encode(self, query: Query) -> Floats:
        """Encode texts: (N, D), zero where nothing is known of one."""

    def encode_inputs(self, inputs: Any) -> Floats:
        """Encode texts that are numbers already: (N, D)."""

    def encode_one(self, query: Query) -> Floats:
        """Encode the only text of a query, the quick way: (D,)."""

    def sums(self, query: Query) -> Floats:
        """Sum the vectors of the words of texts: (N, D); for encoders with a table of words."""

    def operations(self) -> int:
        """Count the operations for one text."""

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""


class Head(Part):
    """Vectors to vectors, between the encoder and the label rows of one objective."""

    def out_width(self, width: int) -> int:
        """Return the dimension of what comes out, for vectors of that width."""
        return width

    def build(self, width: int, network: Network) -> BuiltHead:
        """Make the half that is trained."""
        raise NotImplementedError

    def open(self, arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> FrozenHead:
        """Make the half that is served, for vectors of that width, from what `FrozenHead.arrays` gave."""
        raise NotImplementedError


class BuiltHead(Protocol):
    """A head while it is trained: a torch module."""

    def __call__(self, vectors: Tensor, step: Step) -> Tensor:
        """Pass vectors (B, D) through."""

    def freeze(self) -> FrozenHead:
        """Give the half that is served."""


class FrozenHead(Protocol):
    """A head as it is served."""

    def __call__(self, vectors: Floats) -> Floats:
        """Pass vectors (N, D), or one (D,), through."""

    def operations(self) -> int:
        """Count the operations for one vector."""

    def arrays(self, name: str) -> Arrays:
        """Name the arrays for a model file."""


class Sampler(Part):
    """Which labels a batch is scored against."""

    scores_probabilities: ClassVar[bool] = False  # whether served scores are logarithms of probabilities

    def build(self, network: Network) -> BuiltSampler:
        """Make ready for the points of a network."""
        raise NotImplementedError

    def open(self, arrays: Mapping[str, NDArray[Any]], width: int, over: Objective | None = None) -> Retriever | None:
        """Make the half that is served; None: queries are scored against all labels.

        `over` is the recipe's objective over clusters.
        """
        return None


class BuiltSampler:
    """A sampler made ready; its state is kept in checkpoints."""

    partition: Clusters | None = None  # of the labels, which an objective over clusters learns

    def propose(self, batch: Batch, states: Callable[[], States], step: Step) -> Candidates:
        """Choose the labels of a batch; `states` encodes it when it is asked for, which may be never."""
        raise NotImplementedError

    def on_epoch(self, epoch: int, network: Network) -> None:
        """Mine or cluster again, before an epoch."""

    def state(self) -> Arrays:
        """Name what the next step depends on."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take the state from a checkpoint."""

    def freeze(self, network: Network) -> Retriever | None:
        """Give the half that is served."""
        return None


class Retriever(Protocol):
    """Proposes labels for a query and has a say in their scores."""

    def propose(self, vectors: Floats) -> sp.csr_array:
        """List candidates of encoded texts (N, L), columns ascending; entries are scores of its own."""

    def beyond(self, vectors: Floats, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Return its own scores of pairs that it does not propose: text rows[i] with labels[i]."""

    def combine(
        self, by_rows: Floats, own: Floats, starts: NDArray[Any], proposed: NDArray[np.bool_], *, cosine: bool = False
    ) -> Floats:
        """Combine the scores of label rows, which may be cosines, with its own; the pairs of text i begin at starts[i].

        `proposed` is False for pairs that it was asked about beyond its proposals.
        """

    def additive(self, scores: Floats) -> Floats:
        """Turn combined scores into what the members of an ensemble add up."""

    def score_new(self, products: Floats, cosines: Floats, best: float) -> Floats:
        """Score labels that came after training; the best trained label of the text has the score `best`."""

    def choose(self, scorer: Any, quality: Callable[[Any], float]) -> Retriever:
        """Settle what validation points decide; `quality` measures a scorer on them."""

    def metrics(self, vectors: Floats, targets: LabelMatrix) -> dict[str, float]:
        """Measure the proposals for encoded validation points."""

    def operations(self, labels: int, dim: int) -> tuple[int, int]:
        """Count the operations of one proposal, and the labels that are scored then."""

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""


class Classifier(Part):
    """Vectors and labels to scores."""

    def in_width(self, encoder: Any) -> int | None:
        """Return the dimension that the vectors of points must have; None: any."""
        return None

    def build(self, points: Points, width: int, network: Network) -> BuiltClassifier:
        """Make the half that is trained, for the labels (or clusters) of points and vectors of that width."""
        raise NotImplementedError

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, head: FrozenHead | None, width: int
    ) -> Scorer:
        """Make the half that is served, from what `Scorer.arrays` gave."""
        raise NotImplementedError


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

    def freeze(self, tower: FrozenTower, head: FrozenHead | None, names: Callable[[slice], Floats] | None) -> Scorer:
        """Give the half that is served; `names` encodes the texts of some labels."""


class Loss(Part):
    """Scores and targets to a number."""

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss of logits (B, K); `mask` is False where a pair must not be learnt from."""
        raise NotImplementedError


@record
class Objective(Part):
    """One term of what a step minimises: `weight` times the loss of its scores.

    `over="clusters"` learns the clusters of another objective's sampler instead of labels. For the share `detach` of
    the steps its gradient does not reach the encoder.
    """

    part: ClassVar[str] = "objective"
    head: Head | None = None
    sampler: Sampler
    classifier: Classifier
    loss: Loss
    weight: float = Field(default=1.0, gt=0)
    over: Literal["labels", "clusters"] = "labels"
    detach: float = Field(default=0.0, ge=0, le=1)

    def check(self, recipe: Any) -> None:
        """Ask for a head that gives what the classifier takes."""
        super().check(recipe)
        width, needed = recipe.encoder.width, self.classifier.in_width(recipe.encoder)
        width = width if self.head is None else self.head.out_width(width)
        if needed not in (None, width):
            raise RecipeError(
                f"{recipe.name}: {self.classifier.part} takes vectors of {needed} dimensions and gets {width}: "
                "use a head that gives so many, such as convolved"
            )

    def total_cost(self, sizes: Sizes) -> Cost:
        """Add up the cost of its parts; clusters are fewer than labels, and a head may change the width."""
        if self.over == "clusters":
            sizes = replace(sizes, labels=-(-sizes.labels // LABELS_EACH))
        if self.head is not None:
            sizes = replace(sizes, width=self.head.out_width(sizes.width))
        return super().total_cost(sizes)

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, width: int, *,
        over: Objective | None = None, led: bool = True,
    ) -> Scorer:  # fmt: skip
        """Make what is served of this objective; `over` is the recipe's objective over clusters."""
        head = None if self.head is None else self.head.open(arrays, "head", width)
        scorer = self.classifier.open(arrays, tower, head, width if self.head is None else self.head.out_width(width))
        retriever = self.sampler.open(arrays, width, over) if led else None
        return scorer if retriever is None else scorer.led(retriever)


class BatchOrder(Part):
    """Which points stand side by side in a batch."""

    def build(self, fit: Fit) -> Callable[[np.random.Generator], NDArray[np.int64]]:
        """Make ready; what it returns orders the points of an epoch, given its chance."""
        raise NotImplementedError


class Stage(Part):
    """One run of the loop, or what comes between two."""

    place: ClassVar[int] = 1  # where it stands among others when it is added by name

    def prepare(self, fit: Fit, run: Callable[[Fit], Any]) -> Fit:
        """Settle what all stages share, before the first; `run` makes a scorer by short runs of all of them."""
        return fit

    def run(self, fit: Fit) -> Fit:
        """Do it, and return what the next stage starts from."""
        raise NotImplementedError

    def steps(self, points: int) -> tuple[int, float]:
        """Return the points of a step, and how often the stage looks at every point, for the estimate."""
        return 0, 0.0

    def shortened(self, share: float) -> Self:
        """Return the same stage with a share of its steps, to choose by."""
        return self

    def refits(self, points: int) -> bool:
        """Return whether so few points are trained on again, all of them, once everything is chosen."""
        return False

    def open(self, arrays: Mapping[str, NDArray[Any]], scorer: Scorer, opened: Callable[..., Scorer]) -> Scorer:
        """Add to the served model what the stage made.

        `opened(arrays, led=False)` opens the first objective, without what its sampler proposes.
        """
        return scorer


class Augmentation(Part):
    """Makes or changes training points at the places that it names."""

    acts_on: ClassVar[tuple[Place, ...]]

    def fit(self, train: Split, *, seed: int) -> Self:
        """Return the same settings with what the training points settle, so that it is kept with the model."""
        return self

    def augment(self, train: Split, *, seed: int) -> Split:
        """Return more or other training points, before training (place "dataset")."""
        return train

    def prepare(self, fit: Fit) -> Prepared:
        """Compute once what all steps need (all other places)."""
        raise NotImplementedError


class Prepared(Protocol):
    """An augmentation made ready for one training set."""

    @property
    def acts_on(self) -> tuple[Place, ...]:
        """The places at which it is called."""

    def apply(self, place: Place, value: Any, step: Step) -> Any:
        """Change what is at a place: a batch, embeddings (B, …), states or contexts."""


class Voice(Part):
    """Scores that are looked up rather than trained."""

    def choose(self, train: Split, validation: Split | None, words: Words) -> tuple[Self, Any]:
        """Settle what is not set; returns the settings, and a scorer of `train` where validation points were used."""
        raise NotImplementedError

    def fit(self, train: Split, words: Words) -> Any:
        """Make the scorer; every setting must be chosen."""
        raise NotImplementedError

    def load(self, folder: Path, words: Words) -> Any:
        """Open the scorer of a model folder."""
        raise NotImplementedError


# Serving


class Query:
    """Texts to be labelled. Tokens and vectors are computed when they are first asked for, once for all who ask."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts if isinstance(texts, list) else list(texts)
        self.inputs: Any = None  # where the texts are numbers already
        self._cache: dict[tuple[int, str], tuple[Any, Any]] = {}

    @classmethod
    def of_inputs(cls, inputs: Inputs) -> Query:
        """Ask for texts that are numbers already."""
        query = cls([])
        query.inputs = inputs
        return query

    def __len__(self) -> int:
        return len(self.texts) if self.inputs is None else len(self.inputs)

    def once(self, owner: Any, what: str, compute: Callable[[], Any]) -> Any:
        """Compute something for an owner, or return what was computed before."""
        key = id(owner), what
        if key not in self._cache:
            self._cache[key] = owner, compute()  # the owner is held, so that its id stays its own
        return self._cache[key][1]

    def bag(self, words: Words) -> sp.csr_array:
        """Return the bags of the texts: (N, V)."""
        bags: sp.csr_array = self.once(words, "bag", lambda: words.bag(self.texts))
        return bags

    def terms(self, words: Words) -> tuple[Ints, Floats]:
        """Return the words of the only text, and their weights."""
        terms: tuple[Ints, Floats] = self.once(words, "terms", lambda: words.query(self.texts[0]))
        return terms

    def blocks(self, size: int) -> Iterator[slice]:
        """Cut the texts into blocks."""
        for start in range(0, len(self), size):
            yield slice(start, min(start + size, len(self)))


class Scorer(Protocol):
    """Finds and scores the labels of texts by vectors; needs no torch unless its encoder does."""

    @property
    def store(self) -> LabelStore:
        """The label vectors."""

    @property
    def retriever(self) -> Retriever | None:
        """What proposes labels, where not all are searched."""

    @property
    def searchable(self) -> bool:
        """Whether labels are found by a search in the store."""

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""

    def __len__(self) -> int:
        """How many labels there are."""

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text: (N, k) labels, -1 where there are fewer, and scores."""

    def pairs(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""

    def top_one(self, query: Query, n: int) -> tuple[NDArray[Any], Floats]:
        """Find the n best labels of the only text, best first, the quick way."""

    def score_one(self, query: Query, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for the only text."""

    def encoded_one(self, query: Query) -> Floats:
        """Encode the only text, ready for the product with label vectors: (D,), zero where no word is known."""

    def rows_for(self, texts: Sequence[str]) -> Floats:
        """Make vectors of labels that came after training from their texts: (A, D)."""

    def score_rows(self, query: Query, rows: Floats, bias: float, best: float) -> Floats:
        """Score such vectors for the only text, of which the best trained label has the score `best`."""

    def led(self, retriever: Retriever) -> Scorer:
        """Return the same scorer that scores what a retriever proposes."""

    def with_store(self, store: LabelStore) -> Scorer:
        """Return the same scorer with label vectors that are kept elsewhere."""

    def additive(self, scores: Floats) -> Floats:
        """Turn scores into what the members of an ensemble add up."""

    def join(self, others: Sequence[Any], weights: Sequence[float]) -> Scorer:
        """Return a scorer whose scores are the weighted sums of these."""

    def operations(self) -> int:
        """Count the operations of one prediction."""

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""


class LabelStore(Protocol):
    """Label vectors (L, D) with a bias each, wherever they are kept, and the search in them."""

    def __len__(self) -> int: ...

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""

    @property
    def bias(self) -> Floats:
        """What is added to the product with each label, (L,)."""

    def search(self, queries: Floats, k: int) -> tuple[Ints, Floats]:
        """Find the k largest scores of each query (N, D): (N, k) labels, -1 where there are fewer, and scores."""

    def search_one(self, query: Floats, k: int) -> tuple[NDArray[Any], Floats]:
        """Find the k largest scores of one query (D,), best first."""

    def score(self, query: Floats, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for one query."""

    def pairs(self, queries: Floats, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: query rows[i] with labels[i]; rows ascend."""

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side."""

    def take(self, labels: NDArray[Any] | slice) -> Floats:
        """Return vectors as float32."""
