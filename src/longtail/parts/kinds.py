"""What each kind of part must do: records of settings that build, freeze and open what they describe."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.errors import ModelError, RecipeError
from longtail.labels.tree import LABELS_EACH
from longtail.parts.serving import Arrays, Earlier, FrozenHead, FrozenTower, Retriever, Scorer
from longtail.parts.trained import BuiltClassifier, BuiltHead, BuiltOrder, BuiltSampler, Network, Prepared, Tower
from longtail.parts.training import Factors, Fit, Inputs, Place, Points, Tokenizer
from longtail.records import Cost, Part, Sizes, record
from longtail.types import LabelMatrix, Progress, Texts

if TYPE_CHECKING:
    from torch import Tensor


class Run(TypedDict, total=False):
    """What one fit is told: its seed, a folder in which it can be continued, and whom it tells how far it is."""

    seed: int
    scratch: Path | None
    progress: Progress | None


class Encoder(Part):
    """Texts to vectors; brings its own tokenizer."""

    min_batch: ClassVar[int] = 1  # points that a batch must have
    sums_words: ClassVar[bool] = False  # whether vectors are sums of the table "words", so that rows can start there
    has_words: ClassVar[bool] = False  # whether there is a table "words" that texts of labels can be sums of
    frame: ClassVar[int] = 0  # tokens of its own before and behind every text

    @property
    @abstractmethod
    def width(self) -> int:
        """The dimension of the vectors."""

    @property
    def has_tokens(self) -> bool:
        """Whether there is a state for each word, for classifiers that look at words."""
        return False

    @property
    def own_rate(self) -> float | None:
        """The learning rate of its layers, where it is not that of all layers."""
        return None

    def tokenizer(self, texts: Texts, names: Texts | None, words: Words) -> Tokenizer:
        """Fit a tokenizer to points and label texts; `words` is the vocabulary that the whole model shares."""
        return words

    def load_tokenizer(self, folder: Path, words: Words) -> Tokenizer:
        """Open the tokenizer of a model folder."""
        return words

    @abstractmethod
    def inputs(self, tokenizer: Any, texts: Sequence[str]) -> Inputs:
        """Turn texts into numbers."""

    def start(self, tokenizer: Any, inputs: Sequence[Inputs], seed: int) -> Arrays:
        """Compute what weights start from, where that is costly: word vectors."""
        return {}

    def continued(self, start: Arrays, tokenizer: Any, earlier: Earlier) -> Arrays:
        """Start from what an earlier model has learnt, as far as it fits: the vectors of words that it knows."""
        before = earlier.arrays.get("words")
        if not self.has_words or before is None or before.shape[1:] != start["words"].shape[1:]:
            return start
        places = {word: place for place, word in enumerate(earlier.tokenizer.vocabulary)}
        known = np.fromiter((places.get(word, -1) for word in tokenizer.vocabulary), np.int64, len(start["words"]))
        return start | {"words": np.where(known[:, None] < 0, start["words"], before[known])}

    @abstractmethod
    def build(self, start: Arrays, network: Network) -> Tower:
        """Make the half that is trained."""

    @abstractmethod
    def open(self, arrays: Mapping[str, NDArray[Any]], tokenizer: Any) -> FrozenTower:
        """Make the half that is served, from what `FrozenTower.arrays` gave."""


class Head(Part):
    """Vectors to vectors, between the encoder and the label rows of one objective."""

    def out_width(self, width: int) -> int:
        """Return the dimension of what comes out, for vectors of that width."""
        return width

    @abstractmethod
    def build(self, width: int, network: Network) -> BuiltHead:
        """Make the half that is trained."""

    @abstractmethod
    def open(self, arrays: Mapping[str, NDArray[Any]], name: str, width: int) -> FrozenHead:
        """Make the half that is served, for vectors of that width, from what `FrozenHead.arrays` gave."""


class Sampler(Part):
    """Which labels a batch is scored against."""

    scores_probabilities: ClassVar[bool] = False  # whether served scores are logarithms of probabilities
    has_levels: ClassVar[bool] = False  # whether it needs the levels of a tree, which a stage trains

    def count(self, sizes: Sizes) -> float:
        """Count the labels of a step."""
        return sizes.labels

    @abstractmethod
    def build(self, network: Network) -> BuiltSampler:
        """Make ready for the points of a network."""

    def open(self, arrays: Mapping[str, NDArray[Any]], width: int, over: Objective | None = None) -> Retriever | None:
        """Make the half that is served; None: queries are scored against all labels.

        `over` is the recipe's objective over clusters.
        """
        return None


class Classifier(Part):
    """Vectors and labels to scores."""

    has_factors: ClassVar[bool] = False  # whether scores are products, whose factors it gives
    can_split: ClassVar[bool] = True  # whether processes may share its labels, each of which scores its own
    mixes_labels: ClassVar[bool] = False  # whether the vector of a label is made of other labels too
    hands_down: ClassVar[bool] = False  # whether its layers start from those that score something else

    @property
    def reads_labels(self) -> bool:
        """Whether label texts are encoded in a step."""
        return False

    def in_width(self, encoder: Any) -> int | None:
        """Return the dimension that the vectors of points must have; None: any."""
        return None

    @abstractmethod
    def build(self, points: Points, width: int, network: Network, head: BuiltHead | None = None) -> BuiltClassifier:
        """Make the half that is trained, for the labels (or clusters) of points and vectors of that width.

        `head` is what these vectors have passed, if anything.
        """

    @abstractmethod
    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, head: FrozenHead | None, width: int
    ) -> Scorer:
        """Make the half that is served, from what `Scorer.arrays` gave."""


class Loss(Part):
    """Scores and targets to a number."""

    needs_cosines: ClassVar[bool] = False  # whether scores must be cosines as they are
    needs_rows: ClassVar[bool] = False  # whether it takes vectors and label vectors alone, and no scores
    # whether losses over the labels of each process add up to that over all, with what `shards.split` tells; else each
    # process gets the scores of all
    adds_up: ClassVar[bool] = False

    @property
    def by_rows(self) -> bool:
        """Whether it takes vectors and label vectors where all points share candidates: scores are never whole."""
        return self.needs_rows

    @abstractmethod
    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss of logits (B, K); `mask` is False where a pair must not be learnt from."""

    def of_rows(self, factors: Factors, targets: LabelMatrix, excluded: LabelMatrix, weights: Tensor) -> Tensor:
        """Compute the loss of what scores are products of; for losses `by_rows`."""
        raise RecipeError(f"{self.part} is a loss of scores, not of what they are the products of")


@record
class Objective(Part):
    """One term of what a step minimises: `weight` times the loss of its scores.

    `over="clusters"` learns the clusters of another objective's sampler instead of labels. For the share `detach` of
    the steps its gradient does not reach the encoder.
    """

    part: ClassVar[str] = "objective"
    head: Head | None = None  # the layer between encoder and label vectors
    sampler: Sampler  # the labels that a step scores
    classifier: Classifier  # how labels are scored
    loss: Loss  # what a step minimises
    weight: float = Field(default=1.0, ge=0)  # of its loss in the sum; 0: not trained
    over: Literal["labels", "clusters"] = "labels"  # what is learnt: labels, or clusters of them
    # share of the steps in which its gradient does not reach the encoder
    detach: float = Field(default=0.0, ge=0, le=1)
    served: float | None = Field(default=None, ge=0)  # weight of its scores when served; None: `weight`, 0: not at all

    @property
    def share(self) -> float:
        """The weight of its scores when served."""
        return self.weight if self.served is None else self.served

    def check(self, recipe: Any) -> None:
        """Ask for a head that gives what the classifier takes."""
        super().check(recipe)
        settings = self.classifier.fields()
        if self.loss.needs_cosines and not (settings.get("cosine") and settings.get("scale") == 1):
            raise RecipeError(
                f"{recipe.name}: {self.loss.part} needs cosines: classifier.cosine=true, classifier.scale=1"
            )
        if self.loss.needs_rows and not self.classifier.has_factors:
            raise RecipeError(
                f"{recipe.name}: {self.loss.part} needs a classifier that scores by products, such as rows"
            )
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
        within, width = sizes, sizes.width if self.head is None else self.head.out_width(sizes.width)
        return super().total_cost(replace(sizes, width=width)) + Cost(sent=self._sent(within, width))

    def _sent(self, sizes: Sizes, width: int) -> float:
        """Count what a process sends in a step, beside what the loss does: the gradient of points or of words."""
        if sizes.processes == 1 or self.over == "clusters" or not self.classifier.can_split:
            return 0.0
        if not self.classifier.reads_labels:
            return sizes.told * 4.0 * (sizes.batch_size * width)
        scored = self.sampler.count(sizes)
        words, own = (sizes.distinct(sizes.batch_size + texts) for texts in (scored, scored / sizes.processes))
        layers = sizes.width * width  # of the head
        return sizes.told * 4.0 * (words * sizes.width + layers) + (sizes.processes - 1) * 8.0 * own

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, width: int, *,
        over: Objective | None = None, led: bool = True,
    ) -> Scorer:  # fmt: skip
        """Make what is served of this objective; `over` is the recipe's objective over clusters."""
        head = None if self.head is None else self.head.open(arrays, "head", width)
        scorer = self.classifier.open(arrays, tower, head, width if self.head is None else self.head.out_width(width))
        retriever = self.sampler.open(arrays, width, over) if led else None
        if retriever is not None and len(retriever) != len(scorer):
            raise ModelError(f"{len(scorer)} labels are scored, {len(retriever)} can be proposed; train again")
        return scorer if retriever is None else scorer.led(retriever)


class BatchOrder(Part):
    """Which points stand side by side in a batch."""

    @abstractmethod
    def build(self, fit: Fit, batch_size: int) -> BuiltOrder:
        """Make ready for the points of a training."""


class Stage(Part):
    """One run of the loop, or what comes between two."""

    place: ClassVar[int] = 1  # where it stands among others when it is added by name
    reads_served: ClassVar[bool] = False  # whether it goes on from what the objectives serve

    def prepare(self, fit: Fit, run: Callable[[Fit], Any]) -> Fit:
        """Settle what all stages share, before the first; `run` makes a scorer by short runs of all of them."""
        return fit

    @abstractmethod
    def run(self, fit: Fit) -> Fit:
        """Do it, and return what the next stage starts from."""

    def runs(self, recipe: Any, labels: int) -> bool:
        """Return whether there is anything to do with so many labels, for the estimate."""
        return True

    def steps(self, points: int) -> tuple[int, float]:
        """Return the points of a step, and how often the stage looks at every point, for the estimate."""
        return 0, 0.0

    def moments(self) -> float:
        """Return how many numbers its optimizer keeps for each of a table, for the estimate."""
        return 0.0

    def shortened(self, share: float) -> Self:
        """Return the same stage with a share of its steps, to choose by."""
        return self

    def for_share(self, share: float) -> Self:
        """Return the same stage for a share of the points: as many epochs, and fewer steps at least."""
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
    can_act_once: ClassVar[bool] = False  # on all points instead, where nothing is trained in batches

    def fit(self, train: Split, *, seed: int) -> Self:
        """Return the same settings with what the training points settle, so that it is kept with the model."""
        return self

    def alternatives(self) -> tuple[Self, ...]:
        """Return what held-out points choose from, once `fit` has settled what it can; itself alone by default."""
        return (self,)

    def augment(self, train: Split, *, seed: int) -> Split:
        """Return more or other training points, before training (place "dataset")."""
        return train

    def augment_once(self, train: Split, *, seed: int) -> Split:
        """Do to all points, once, what is done to batches (`can_act_once`)."""
        return train

    def prepare(self, fit: Fit) -> Prepared | None:
        """Compute once what all steps need (all other places)."""
        return None

    def of_member(self, member: int) -> Self | None:
        """Return what it is for one member of an ensemble; None: nothing."""
        return self


class Voice(Part):
    """Scores by words: looked up, or learnt without steps."""

    usual: ClassVar[float] = 1.0  # the weight that suits most data sets, beside vectors
    quick: ClassVar[bool] = False  # whether it is always fitted again to all points once everything is chosen

    def brief(self) -> Self:
        """Return settings that take less time, to compare what it could be trained on."""
        return self

    @abstractmethod
    def choose(self, train: Split, validation: Split | None, words: Words, **run: Unpack[Run]) -> tuple[Self, Any]:
        """Settle what is not set; returns the settings, and a scorer of `train` where validation points were used."""

    @abstractmethod
    def fit(self, train: Split, words: Words, **run: Unpack[Run]) -> Any:
        """Make the scorer; every setting must be chosen."""

    @abstractmethod
    def load(self, folder: Path, words: Words) -> Any:
        """Open the scorer of a model folder."""
