"""TEXT → LABELS BY WORDS: TF-IDF similarity to label texts and to training points, fused. Nothing is trained.

score(label) = share · sim(query, label text) / best + (1 − share) · votes(label) / best, where the votes of the nearest
training points are their similarity to the power `power`, spread over their labels. What is `None` in the settings is
chosen on a validation part of the training points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.arrays import matrix_arrays, matrix_of
from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.errors import DataError, RecipeError
from longtail.files import read_arrays, write_arrays
from longtail.machine import COMPILER, compiles
from longtail.parts import Proposals, Query, Run, Voice
from longtail.records import Cost, Sizes, When, record
from longtail.search.inverted import Inverted, entries_of
from longtail.types import Floats, Ints, LabelMatrix, best_of, contains, rows_of

NEIGHBOURS, POWERS, SHARES = (5, 10, 20, 40), (1.0, 2.0, 4.0, 8.0), tuple(np.linspace(0, 1, 21).round(2).tolist())
MIDDLE = 0.4  # the share at which neighbours and power are compared
LABELS, POINTS = 0, 1  # the groups of the index
CANDIDATES = 100  # label texts considered for each of them
OVERHEAD = 0.5  # seconds of a fit of whatever size
NOTHING = np.zeros(0, np.int64)


@record
class Lexical(Voice):
    """Settings of the lexical scores; None means: choose on validation."""

    part: ClassVar[str] = "lexical"
    usual: ClassVar[float] = 0.25
    quick: ClassVar[bool] = True
    neighbours: int | None = Field(default=None, ge=1, le=1000)  # training points that vote
    # to which similarities are raised: larger, and the nearest count more
    power: float | None = Field(default=None, gt=0)
    share: float | None = Field(default=None, ge=0, le=1)  # of label texts beside training points
    pairs: bool | None = False  # pieces of names and pairs of words count too

    def fit(self, train: Split, words: Words, **run: Unpack[Run]) -> LexicalScorer:
        """Index the label texts and the training points; every setting must be chosen."""
        if not self.settled:
            raise RecipeError("lexical: neighbours, power, share and pairs are not all chosen; call choose first")
        names, texts = train.labels.texts, train.need_texts("knn")
        words = words.paired if self.pairs else words
        if names is None and self.share:
            raise DataError("the labels have no texts", remedy="set lexical.share=0 to use training points only")
        labels = words.bag(names or [""] * len(train.labels))
        return LexicalScorer(words, Inverted.build(labels, words.bag(texts)), train.targets, self)

    def load(self, folder: Path, words: Words) -> LexicalScorer:
        """Open the scorer of a model folder."""
        return LexicalScorer.load(folder, words, self)

    @property
    def settled(self) -> bool:
        """Whether every setting is chosen."""
        return None not in (self.neighbours, self.power, self.share, self.pairs)

    def undecided(self) -> When:
        """Return when validation points settle a setting."""
        return When.NEVER if self.settled else When.AFTER

    def cost(self, sizes: Sizes) -> Cost:
        """Count the entries of bags, twice, and the time that cutting, counting and the choice of settings take."""
        texts = sizes.points + sizes.labels
        index = 24 * sizes.words * texts + 16 * texts + 8 * sizes.pairs
        pairs = 2.5 if self.pairs is not False else 1.0  # pieces and pairs of words have an index of their own
        compiler, seconds = COMPILER if compiles() else 0, OVERHEAD + pairs * sizes.words * texts * 1.4e-6
        return Cost(memory=2 * pairs * index + compiler, disk=pairs * index, seconds=seconds)

    def choose(
        self, train: Split, validation: Split | None, words: Words, **run: Unpack[Run]
    ) -> tuple[Self, LexicalScorer | None]:
        """Choose on validation points what is not set; `train` must not know them, nor what was counted on them.

        Returns the settings, and the scorer of `train` with them; without validation points, usual settings alone.
        """
        if validation is None:
            usual: dict[str, Any] = {
                "neighbours": 10,
                "power": 2.0,
                "share": 0.4 if train.labels.texts else 0.0,
                "pairs": False,
            }
            return replace(self, **{name: usual[name] for name, value in self.fields().items() if value is None}), None
        scorer = self._chosen(train, validation, words)
        return replace(self, **scorer.settings.fields()), scorer

    def _chosen(self, train: Split, validation: Split, words: Words) -> LexicalScorer:
        """Make the scorer with the settings that validation points choose."""
        if self.settled:
            return self.fit(train, words)
        first = replace(self, neighbours=self.neighbours or 1, power=self.power or 1, share=self.share or 0)
        named = train.labels.texts is not None
        trials = []
        for pairs in (False, True) if self.pairs is None else (self.pairs,):
            trial = replace(first, pairs=pairs).fit(train, words)
            value, chosen = _choose(trial, validation, replace(self, pairs=pairs), has_names=named)
            trials.append((value, replace(trial, settings=chosen)))
        return max(trials, key=lambda choice: choice[0])[1]  # the first of equals: without pairs


@dataclass(frozen=True, eq=False)
class LexicalScorer:
    """An inverted index of label texts and training points, with the targets of the latter."""

    words: Words
    near: Inverted  # LABELS (L, V) and POINTS (N, V)
    targets: LabelMatrix  # (N, L)
    settings: Lexical

    def __len__(self) -> int:
        return int(self.targets.shape[1])

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Score the k best labels of each text; a single text takes the quick way."""
        if len(query) == 1:
            candidates = self.candidates(query, k)
            order = np.lexsort((candidates.labels, -candidates.scores))[:k]
            row, values = np.full((1, k), -1, np.int32), np.full((1, k), -np.inf, np.float32)
            row[0, : len(order)], values[0, : len(order)] = candidates.labels[order], candidates.scores[order]
            return row, values
        best = best_of(self.scores(query, k), k)
        return best.labels, best.scores

    def candidates(self, query: Query, k: int, also: NDArray[Any] | None = None) -> Proposals:
        """Score the candidates for the k best labels of the only text, in no order, and the labels `also` anyway."""
        words, weights = query.terms(self.words)
        share, own, similar = np.float32(self.settings.share or 0), NOTHING, np.zeros(0, np.float32)
        if share:
            own, similar = self.near.nearest(LABELS, words, weights, k)
        voted, votes = self._votes(*self.near.nearest(POINTS, words, weights, self.settings.neighbours or 1))
        most = float(votes.max()) if len(votes) else 0.0
        if also is not None:
            some, votes_of = np.union1d(voted, also), votes
            votes = np.zeros(len(some), np.float32)
            votes[np.searchsorted(some, voted)] = votes_of
            voted = some
        matched = self.near.similarity(LABELS, words, weights, voted) if len(own) else None
        scores = (1 - share) / np.float32(most) * votes if most else votes
        if matched is None:
            return Proposals(voted, scores, 0.0, most)
        scores = scores + (share / similar[0]) * matched
        fresh = np.ones(len(own), np.bool_)
        if len(voted):
            fresh = voted[np.minimum(np.searchsorted(voted, own), len(voted) - 1)] != own
        if fresh.any():
            voted = np.concatenate([voted, own[fresh]])
            scores = np.concatenate([scores, (share / similar[0]) * similar[fresh]])
        return Proposals(voted, scores, float(similar[0]), most)

    def unbounded(self, query: Query, label: int, whole: Proposals) -> float:
        """Score a label of the only text, divided by the best of the whole text that it is a part of."""
        words, weights = query.terms(self.words)
        share, similar = float(self.settings.share or 0), 0.0
        if share:
            similar = float(self.near.similarity(LABELS, words, weights, np.array([label]))[0])
        voted, votes = self._votes(*self.near.nearest(POINTS, words, weights, self.settings.neighbours or 1))
        own = float(votes[voted == label].sum())
        return share * similar / (whole.similarity or 1) + (1 - share) * own / (whole.votes or 1)

    def _votes(self, near: NDArray[Any], similarity: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Add up what the nearest points say for their labels: (labels ascending, votes)."""
        worth = similarity ** np.float32(self.settings.power or 1)
        if compiles():
            from longtail.search.postings import votes  # noqa: PLC0415  (numba is an extra)

            targets = self.targets
            _, voted, sums = votes(near[None], worth[None], targets.indptr, targets.indices, targets.data)
            return voted, sums
        entries, sizes = entries_of(self.targets, near)
        labels = self.targets.indices[entries]
        values = np.repeat(worth, sizes) * self.targets.data[entries]
        order = labels.argsort(kind="stable")
        labels = labels[order]
        if len(labels) == 0:
            return labels.astype(np.int64), values
        changes = np.flatnonzero(labels[1:] != labels[:-1]) + 1
        first = np.concatenate([[0], changes])
        return labels[first].astype(np.int64), np.add.reduceat(values[order], first)

    def scores(self, query: Query, k: int) -> sp.csr_array:
        """Score many texts: (N, L) with the candidates of each as stored entries."""
        bags = query.bag(self.words)
        near, similarity = self.near.nearest_batch(POINTS, bags, self.settings.neighbours or 1)
        votes = normalised(self.votes(near, similarity, self.settings.power or 1))
        share = np.float32(self.settings.share or 0)
        if share == 0:
            return votes
        own, similar = self.near.nearest_batch(LABELS, bags, k)
        rows = np.repeat(np.arange(len(query)), np.diff(votes.indptr))
        matched = self.near.pairs(LABELS, bags, rows, votes.indices)
        sims = sp.csr_array((matched, votes.indices, votes.indptr), shape=votes.shape)
        merged = sims.maximum(rows_of(own, similar, votes.shape[1]))
        return sp.csr_array(share * normalised(merged) + (1 - share) * votes)

    def votes(self, near: NDArray[Any], similarity: NDArray[Any], power: float) -> sp.csr_array:
        """Add up the votes of many points' neighbours: (N, L)."""
        shape, worth = (len(near), self.targets.shape[1]), similarity ** np.float32(power)
        if compiles():
            from longtail.search.postings import votes  # noqa: PLC0415  (numba is an extra)

            ends, voted, sums = votes(near, worth, self.targets.indptr, self.targets.indices, self.targets.data)
            return sp.csr_array((sums, voted, ends), shape=shape)
        weights = rows_of(near, worth, self.targets.shape[0])
        return sp.csr_array(weights @ self.targets)

    def added(self, similar: Floats, proposed: Proposals | None) -> Floats:
        """Score labels that came after training as a label text, and as a point that has the label."""
        similarity, most = (0.0, 0.0) if proposed is None else (proposed.similarity, proposed.votes)
        share, votes = np.float32(self.settings.share or 0), similar ** (self.settings.power or 1)
        near = similar / max(similarity, float(similar.max(initial=0)), 1e-12)
        near_points = votes / max(most, float(votes.max(initial=0)), 1e-12)
        return np.asarray(share * near + (1 - share) * near_points, np.float32)

    def save(self, folder: Path) -> None:
        """Write the index into a model folder; words that are not its own are written by their owner."""
        if self.words.pairs:
            self.words.save(folder)
        write_arrays(folder / "lexical.safetensors", matrix_arrays("targets", self.targets) | self.near.arrays())

    @classmethod
    def load(cls, folder: Path, words: Words, settings: Lexical) -> LexicalScorer:
        """Open what `save` wrote."""
        arrays = read_arrays(folder / "lexical.safetensors")
        words = words.paired if settings.pairs else words
        targets = matrix_of(arrays, "targets", low=0)
        near = Inverted.of_arrays(arrays, (targets.shape[1], targets.shape[0]), len(words))
        return cls(words, near, targets, settings)


def normalised(scores: sp.csr_array) -> sp.csr_array:
    """Divide each row by its largest entry."""
    best = scores.max(axis=1).toarray().ravel() if scores.nnz else np.zeros(scores.shape[0])
    data = scores.data / np.repeat(np.where(best > 0, best, 1), np.diff(scores.indptr))
    return sp.csr_array((data.astype(np.float32), scores.indices, scores.indptr), shape=scores.shape)


def _choose(trial: LexicalScorer, validation: Split, settings: Lexical, *, has_names: bool) -> tuple[float, Lexical]:
    """Choose neighbours and power at a middling share, then the share; returns how good the choice is too."""
    bags = trial.words.bag(validation.need_texts("knn"))
    most = max(NEIGHBOURS) if settings.neighbours is None else settings.neighbours
    near, similarity = trial.near.nearest_batch(POINTS, bags, most)
    own, similar = trial.near.nearest_batch(LABELS, bags, CANDIDATES)
    sims = normalised(rows_of(own, similar, validation.targets.shape[1]))
    sizes = np.maximum(np.diff(validation.targets.indptr), 1)

    def value(trying: Lexical) -> float:
        """Add P@1 and recall@5: the best first answer, and as much of the tail as five answers can hold."""
        some = trying.neighbours or 1
        votes = normalised(trial.votes(near[:, :some], similarity[:, :some], trying.power or 1))
        share = np.float32(trying.share or 0)
        top = best_of(sp.csr_array(share * sims + (1 - share) * votes), 10).without(validation.excluded, 5)
        hits = contains(validation.targets, top.labels)
        return float(hits[:, 0].mean() + (hits.sum(axis=1) / sizes).mean())

    first = settings.share if settings.share is not None else MIDDLE if has_names else 0.0
    trials = [
        replace(settings, neighbours=neighbours, power=power, share=first)
        for neighbours in (NEIGHBOURS if settings.neighbours is None else (settings.neighbours,))
        for power in (POWERS if settings.power is None else (settings.power,))
    ]
    best = max(trials, key=value)
    if settings.share is not None or not has_names:
        return value(best), best
    return max(((value(choice), choice) for choice in (replace(best, share=s) for s in SHARES)), key=lambda c: c[0])
