"""TEXT + LABEL → REASONS: the words that carried a prediction, what is near the text, and what is known of the label.

A word's share is what the score loses without it, scored anew: that works for every recipe. Words alone score by the
best label of each text, which is no measure then: see `Predictor.parts_of`. A word with a subject that adds to the
score carries its phrase, the function words before it, and none of these gets more than the phrase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from longtail.data.dataset import Labels
from longtail.data.tokens import Words
from longtail.data.unspaced import PIECE
from longtail.labels.lookup import find_label
from longtail.labels.propensity import bins
from longtail.parts import Query, Scorer
from longtail.predictions import Predictor
from longtail.probabilities import Probabilities
from longtail.scorers.lexical import LABELS, POINTS, LexicalScorer
from longtail.search.inverted import Inverted
from longtail.types import LabelMatrix, Texts

BINS = ("head", "torso", "tail")
MOST_WORDS = 50  # of a long text that are tried
NEAR = 5  # points, label texts
NEIGHBOURS = 10
LOOKED = 2000  # points of a label that are compared with a text
RANKED = 100  # labels among which an explained label is looked for
CHECKED = 20  # points by which an index is known to hold the training texts
DRAWN, LENGTH = 8, 100  # points to try a model with, and their characters at most

Score = Callable[[str], float]


@dataclass(frozen=True)
class Word:
    """A word of the text, and what the score loses without it, or how much a label looks at it."""

    word: str
    score: float


@dataclass(frozen=True)
class Point:
    """A training text, how near it is by words, and whether it has the label."""

    text: str
    similarity: float
    has: bool


@dataclass(frozen=True)
class Neighbour:
    """Another label: near the text by its own, or the share of the label's points that have it too."""

    id: int
    text: str
    score: float


@dataclass(frozen=True)
class Explanation:
    """Why a text gets a label."""

    text: str
    label: int
    label_text: str
    score: float
    probability: float | None
    rank: int | None  # 1 is the best; None where it is not among the first hundred
    frequency: int
    bin: str  # head, torso or tail
    words: tuple[Word, ...]
    points: tuple[Point, ...]
    label_texts: tuple[Neighbour, ...]
    neighbours: tuple[Neighbour, ...]
    looked: tuple[Word, ...] = ()  # the words as they are read, with how much the label looks at each

    def to_dict(self) -> dict[str, Any]:
        """Turn into plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


class Explained(Protocol):
    """What a model must have to explain its predictions."""

    @property
    def labels(self) -> Labels:
        """Its labels."""

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """Training points of each label."""

    @property
    def words(self) -> Words:
        """Its words."""

    @property
    def vectors(self) -> Scorer | None:
        """What scores by vectors."""

    @property
    def lexical(self) -> LexicalScorer | None:
        """What scores by the words of training points."""

    @property
    def examples(self) -> Any:
        """Its training points, texts and targets."""

    @property
    def probabilities(self) -> Probabilities | None:
        """What turns scores into probabilities."""


class Reasons:
    """What a model knows about its points and labels, looked up when it is asked for."""

    def __init__(self, model: Explained) -> None:
        self.model = model

    def explanation(
        self, text: str, asked: str | int, predictor: Predictor, labels: Labels, removed: Set[int] = frozenset()
    ) -> Explanation:
        """Return why a text gets a label: one of `labels`, new ones included, as a predictor scores it."""
        label = find_label(labels, asked)
        model, value = self.model, predictor.score(text, label)
        found, _ = predictor.one(text, min(RANKED, len(labels)))
        ranks = [place for place in found.tolist() if place not in removed]
        return Explanation(
            text=text,
            label=label,
            label_text=name_of(labels, label),
            score=round(value, 6),
            probability=None if model.probabilities is None else float(model.probabilities(np.array([value]))[0]),
            rank=ranks.index(label) + 1 if label in ranks else None,
            frequency=int(model.frequencies[label]) if label < len(model.frequencies) else 0,
            bin=self.bin(label),
            words=carried(text, predictor.parts_of(text, label), model.words.function),
            points=self.near_points(text, label),
            label_texts=self.near_labels(text, labels),
            neighbours=self.neighbours(label, labels),
            looked=looked_at(model, text, label),
        )

    @cached_property
    def near(self) -> Inverted | None:
        """Label texts and training points by their words: that of the model if it holds the same points."""
        model, examples = self.model, self.model.examples
        if examples is None:
            inverted: Inverted | None = model.lexical.near if model.lexical else None
            return inverted
        if model.lexical is not None and model.lexical.targets.shape[0] >= len(examples.texts):
            known = model.lexical.near.groups[POINTS][:CHECKED]
            bags = model.lexical.words.bag(examples.texts[:CHECKED])
            if known.shape == bags.shape and abs(known - bags).max() < 1e-5:
                same: Inverted = model.lexical.near
                return same
        names = model.words.bag(model.labels.texts or [""] * len(model.labels))
        return Inverted.build(names, model.words.bag(examples.texts))

    @property
    def words(self) -> Words:
        """The words by which `near` compares."""
        lexical = self.model.lexical
        return lexical.words if lexical is not None and self.near is lexical.near else self.model.words

    @cached_property
    def points_of(self) -> Any:
        """The points of each label, (L, N)."""
        return None if self.model.examples is None else self.model.examples.targets.T.tocsr()

    @cached_property
    def bins(self) -> NDArray[np.int32]:
        """Head 0, torso 1, tail 2, of each trained label."""
        return bins(self.model.frequencies, len(BINS))

    def bin(self, label: int) -> str:
        """Name the bin of a label; new labels are of the tail."""
        return BINS[int(self.bins[label])] if label < len(self.bins) else BINS[-1]

    def examples(self, label: int) -> NDArray[np.int64]:
        """List the training points of a label."""
        if self.points_of is None or label >= self.points_of.shape[0]:
            return np.zeros(0, np.int64)
        own = slice(self.points_of.indptr[label], self.points_of.indptr[label + 1])
        return np.asarray(self.points_of.indices[own][:LOOKED], np.int64)

    def neighbours(self, label: int, labels: Labels, most: int = NEIGHBOURS) -> tuple[Neighbour, ...]:
        """Find the labels that share most points with a label; a new label has none."""
        points, examples = self.examples(label), self.model.examples
        if examples is None or len(points) == 0:
            return ()
        shared = np.asarray((examples.targets[points] > 0).sum(axis=0)).ravel()
        shared[label] = 0
        best = np.argsort(-shared, kind="stable")[:most]
        return tuple(
            Neighbour(int(other), name_of(labels, int(other)), round(float(shared[other] / len(points)), 4))
            for other in best
            if shared[other] > 0
        )

    def near_points(self, text: str, label: int) -> tuple[Point, ...]:
        """Find the training points nearest to a text by words: any, and those that have the label."""
        examples = self.model.examples
        if examples is None:
            return ()
        found: dict[int, float] = {}
        words, weights = self.words.query(text)
        own = self.examples(label)
        if self.near is not None:
            rows, similar = self.near.nearest(POINTS, words, weights, 4 * NEAR)
            found |= dict(zip(rows.tolist(), similar.tolist(), strict=True))
            mine = self.near.similarity(POINTS, words, weights, own)
            best = np.argsort(-mine, kind="stable")[:NEAR]
            found |= {int(own[place]): float(mine[place]) for place in best if mine[place] > 0}
        real = {row: value for row, value in found.items() if row < len(examples.texts)}  # not those of augmentations
        carriers = set(own.tolist())
        order = sorted(real, key=lambda row: (row not in carriers, -real[row]))
        kept = [row for row in order if row in carriers][:NEAR]
        kept += [row for row in order if row not in carriers][: max(2, NEAR - len(kept))]
        return tuple(Point(examples.texts[row], round(real[row], 4), row in carriers) for row in kept)

    def to_try(self, metrics: Mapping[str, Any], removed: Set[int]) -> list[dict[str, Any]]:
        """List a few texts to try: points that the metrics were measured on, else training points; with labels."""
        kept, held_out = metrics.get("examples"), metrics.get("split") != "train"
        if not isinstance(kept, list):
            trained, held_out = self.model.examples, False
            kept = [] if trained is None else draw_examples(trained.texts, trained.targets, len(self.model.labels))
        found = []
        for one in kept:  # of a file, in which anything may stand
            text, own = (one.get("text"), one.get("labels")) if isinstance(one, dict) else (None, None)
            if isinstance(text, str) and isinstance(own, list):
                known = [x for x in own if type(x) is int and 0 <= x < len(self.model.labels) and x not in removed]
                labels = [{"id": label, "text": name_of(self.model.labels, label)} for label in known]
                found.append({"text": text, "labels": labels, "held_out": held_out})
        return found

    def near_labels(self, text: str, labels: Labels) -> tuple[Neighbour, ...]:
        """Find the label texts nearest to a text by words."""
        if self.near is None or labels.texts is None:
            return ()
        rows, similar = self.near.nearest(LABELS, *self.words.query(text), NEAR)
        return tuple(
            Neighbour(row, name_of(labels, row), round(value, 4))
            for row, value in zip(rows.tolist(), similar.tolist(), strict=True)
        )


def draw_examples(texts: Texts | None, targets: LabelMatrix, labels: int) -> tuple[dict[str, Any], ...]:
    """Draw a few short points with some of the first `labels` labels: whether they are predicted well or not."""
    found: list[dict[str, Any]] = []
    if texts is None:
        return ()
    for row in np.random.default_rng(7).permutation(len(texts))[: 20 * DRAWN].tolist():
        own, text = [label for label in targets[[row]].indices.tolist() if label < labels], texts[row].strip()
        if own and 0 < len(text) <= LENGTH and len(found) < DRAWN:
            found.append({"text": text, "labels": own})
    return tuple(found)


def carried(text: str, score: Score, function: Set[str] = frozenset()) -> tuple[Word, ...]:
    """Leave out one word after the other, content words with their function words: what is lost, largest first.

    >>> carried("Red cat, red dog", lambda text: float("dog" in text) + 0.5 * ("red" in text.lower()))
    (Word(word='dog', score=1.0), Word(word='red', score=0.5), Word(word='cat', score=0.0))
    >>> carried("the red dog", lambda text: 2.0 * ("the" in text) - ("red" in text) + ("dog" in text), {"the"})
    (Word(word='dog', score=3.0), Word(word='the', score=2.0), Word(word='red', score=-1.0))
    """
    lower, whole = text.lower(), score(text)
    places: dict[str, list[int]] = {}  # of each word among the words
    spans = [match.span() for match in PIECE.finditer(lower)]
    for place, (start, end) in enumerate(spans):
        places.setdefault(lower[start:end], []).append(place)
    words = list(places)[:MOST_WORDS]

    def loss(left_out: list[int]) -> float:
        rest = list(lower)
        for start, end in (spans[place] for place in left_out):
            rest[start:end] = " " * (end - start)
        return whole - score("".join(rest))

    losses = {word: loss(places[word]) for word in words}
    content = {place: word for word in words if word not in function and losses[word] > 0 for place in places[word]}
    most: dict[str, float] = {}  # of the phrases that a function word stands in
    plain = {place for word in words if word in function for place in places[word]}
    for word, phrase in _phrases(content, plain).items():
        losses[word] = loss([*places[word], *phrase])
        for place in phrase:
            own = lower[slice(*spans[place])]
            most[own] = max(most.get(own, losses[word]), losses[word])
    shares = {word: round(min(losses[word], most.get(word, losses[word])), 6) for word in words}
    return tuple(Word(word, shares[word]) for word in sorted(words, key=lambda word: (-shares[word], word in function)))


def _phrases(content: Mapping[int, str], function: Set[int]) -> dict[str, list[int]]:
    """Give each function word, by its place, to the content word that follows, or to the last one: {word: places}."""
    phrases: dict[str, list[int]] = {}
    for place in sorted(function):
        following = min((other for other in content if other > place), default=max(content, default=-1))
        if following >= 0:
            phrases.setdefault(content[following], []).append(place)
    return phrases


def name_of(labels: Labels, label: int) -> str:
    """Return the text of a label, or its number where labels have no texts."""
    return str(label) if labels.texts is None else labels.texts[label]


def looked_at(model: Explained, text: str, label: int) -> tuple[Word, ...]:
    """Return the words of a text as they are read, with how much a label looks at each; only attention knows that."""
    scorer: Any = model.vectors
    while hasattr(scorer, "first"):
        scorer = scorer.first
    if not hasattr(scorer, "looks") or label >= len(scorer):
        return ()
    pieces, weights = scorer.looks(Query([text]), np.array([label]))
    return tuple(Word(piece, round(float(weight), 4)) for piece, weight in zip(pieces, weights[0], strict=True))
