"""QUERY → SCORES: the halves of parts that are served, and the query that they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.tokens import Words
from longtail.types import Floats, Ints, LabelMatrix

if TYPE_CHECKING:
    from longtail.parts.training import Inputs

Arrays: TypeAlias = dict[str, NDArray[Any]]
Near: TypeAlias = Callable[[Sequence[str]], sp.csr_array]  # label texts to similarities with trained ones, (A, L)


class Earlier(NamedTuple):
    """What a model has learnt before, for a training that continues it."""

    arrays: Mapping[str, NDArray[Any]]
    tokenizer: Any  # of its encoder


def below(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


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
        """Return the words of the only text, ascending, and their weights."""
        terms: tuple[Ints, Floats] = self.once(words, "terms", lambda: words.query(self.texts[0]))
        return terms

    def lists(self, words: Words) -> tuple[NDArray[Any], Ints, Floats]:
        """Return where the words of each text begin, the words and their weights; one text takes the quick way."""
        if len(self) == 1:
            own, weights = self.terms(words)
            return np.array([0, len(own)]), own, weights
        bags = self.bag(words)
        return bags.indptr, bags.indices, bags.data

    def blocks(self, size: int) -> Iterator[slice]:
        """Cut the texts into blocks."""
        for start in range(0, len(self), size):
            yield slice(start, min(start + size, len(self)))


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


class TokenTower(FrozenTower, Protocol):
    """An encoder that has a state for each word too, as it is served."""

    def inputs(self, query: Query) -> Any:
        """Turn texts into numbers."""

    def tokens(self, inputs: Any) -> tuple[Floats, NDArray[np.bool_]]:
        """Return a state for each word, (N, T, D), and which words there are."""

    def pieces(self, query: Query) -> list[str]:
        """Return the words of the only text as they are read."""


class FrozenHead(Protocol):
    """A head as it is served."""

    def __call__(self, vectors: Floats) -> Floats:
        """Pass vectors (N, D), or one (D,), through."""

    def operations(self) -> int:
        """Count the operations for one vector."""

    def arrays(self, name: str) -> Arrays:
        """Name the arrays for a model file."""


class Retriever(Protocol):
    """Proposes labels for a query and has a say in their scores; it is as long as there are labels."""

    def __len__(self) -> int: ...

    def propose(self, query: Query, tower: FrozenTower) -> sp.csr_array:
        """List candidates of texts (N, L), columns ascending; entries are scores of its own."""

    def beyond(self, query: Query, tower: FrozenTower, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
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

    def metrics(self, query: Query, tower: FrozenTower, targets: LabelMatrix) -> dict[str, float]:
        """Measure the proposals for validation points."""

    def operations(self, labels: int, dim: int) -> tuple[int, int]:
        """Count the operations of one proposal, and the labels that are scored then."""

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""


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

    def knows(self, query: Query) -> bool:
        """Whether the encoder knows anything of the only text."""

    def encoded_one(self, query: Query) -> Floats:
        """Encode the only text, ready for the product with label vectors: (D,), zero where no word is known."""

    def rows_for(self, texts: Sequence[str], near: Near | None = None) -> Floats:
        """Make vectors of labels that came after training from their texts: (A, D).

        `near` finds trained labels with similar texts, for those scorers whose encoder has never seen a label's text.
        """

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


class Proposals(NamedTuple):
    """The labels that a voice proposes for one text, and what their parts were divided by, where it divides."""

    labels: NDArray[np.int64]
    scores: Floats
    similarity: float = 0.0  # of the nearest label text
    votes: float = 0.0  # of the label with most


class VoiceScorer(Protocol):
    """Finds and scores the labels of texts by their words; what it does not propose has the score zero."""

    words: Words

    def __len__(self) -> int:
        """How many labels there are."""

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text: (N, k) labels, -1 where there are fewer, and scores."""

    def scores(self, query: Query, k: int) -> sp.csr_array:
        """Score many texts: (N, L) with the candidates for the k best labels of each as stored entries."""

    def candidates(self, query: Query, k: int, also: NDArray[Any] | None = None) -> Proposals:
        """Score the candidates for the k best labels of the only text, in no order, and the labels `also` anyway."""

    def unbounded(self, query: Query, label: int, whole: Proposals) -> float:
        """Score a label of the only text where no score is the largest: on the scale of another text, or beyond it.

        `whole` is what the voice proposed for that other text.
        """

    def added(self, similar: Floats, proposed: Proposals | None) -> Floats:
        """Score labels that came after training, by the similarity of their texts to the only text.

        `proposed` is what the voice proposed for it.
        """

    def save(self, folder: Path) -> None:
        """Write into a model folder."""


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
