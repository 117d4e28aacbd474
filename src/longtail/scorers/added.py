"""NEW LABEL TEXTS → SCORES: labels that came after training, scored beside those that were trained.

By vectors a new label is what the encoder makes of its text, as far as it knows the words; where the encoder has never
learnt from label texts, that and the mean of trained labels with similar texts. By words it is a label text, and a
training point that has the label: what self-annotation gives to trained labels. Words that the model never saw count as
the rarest ones, so that a label with a new name is found by it. Held-out labels say what such a score is worth among
those of trained labels (`longtail.scales`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.tokens import Words, terms
from longtail.errors import ModelError
from longtail.parts import Near, Proposals, Query, Scorer
from longtail.scorers.fused import FusedScorer
from longtail.search.inverted import Inverted
from longtail.types import Floats, rows_of

NEAREST = 10  # trained labels that a new one is the mean of
UNKNOWN = 0.5  # weight of similarity through words that vectors do not know


@dataclass(frozen=True)
class Scale:
    """From the scores of new labels to those of trained ones: a straight line, up to the highest that was seen.

    >>> Scale(slope=0.5, shift=0.25, top=1.0)(np.float32([0.5, 3])).tolist()
    [0.5, 1.0]
    """

    slope: float = 1.0
    shift: float = 0.0
    top: float | None = None

    def __post_init__(self) -> None:
        numbers = [self.slope, self.shift, *([] if self.top is None else [self.top])]
        if not np.isfinite(numbers).all() or self.slope <= 0:
            raise ModelError("the scale of new labels is damaged; train again")

    def __call__(self, scores: Floats) -> Floats:
        """Put scores on the scale of trained labels."""
        line = np.float32(self.slope) * scores + np.float32(self.shift)
        return np.asarray(line if self.top is None else np.minimum(line, np.float32(self.top)), np.float32)


@dataclass(frozen=True, eq=False)
class Additions:
    """New labels: their vectors, and for each word the labels that have it."""

    words: Words  # of the model
    lists: dict[str, tuple[NDArray[np.int64], Floats]]  # labels and weights
    vectors: Floats | None  # (A, D)
    bias: float
    count: int
    scale: Scale

    @classmethod
    def of(
        cls, texts: Sequence[str], words: Words, scorer: Scorer | None, near: Near | None = None,
        scale: Scale = Scale(),  # noqa: B008 (frozen)
    ) -> Additions:  # fmt: skip
        """Encode and weigh label texts; `near` finds trained labels with similar texts."""
        lists: dict[str, list[tuple[int, float]]] = {}
        for label, text in enumerate(texts):
            for word, weight in _weights(text, words).items():
                lists.setdefault(word, []).append((label, weight))
        arrays = {
            word: (np.array([label for label, _ in own]), np.array([weight for _, weight in own], np.float32))
            for word, own in lists.items()
        }
        vectors, bias = None, 0.0
        if scorer is not None:
            vectors, bias = scorer.rows_for(texts, near), float(np.median(scorer.store.bias))
        return cls(words, arrays, vectors, bias, len(texts), scale)

    def scores(
        self, query: Query, fused: FusedScorer, proposed: Sequence[Proposals], best: float
    ) -> tuple[NDArray[Any], Floats]:
        """Score the new labels of the only text beside the trained ones: their places (A,), and scores.

        `proposed` is what each voice proposed, `best` the best score of a trained label.
        """
        similar, unseen = self.similarities(query.texts[0])
        scores, known = np.zeros(self.count, np.float32), False
        if fused.vectors is not None and self.vectors is not None:
            known = fused.vectors.knows(query)
            scores += fused.vectors.score_rows(query, self.vectors, self.bias, best)
            scores += np.float32(UNKNOWN) * unseen
        for place, (voice, weight) in enumerate(fused.voices):
            scores += weight * voice.added(similar, proposed[place] if proposed else None)
        labels, scores = np.arange(self.count), self.scale(scores)
        return (labels, scores) if known else (labels[similar > 0], scores[similar > 0])

    def similarities(self, text: str) -> tuple[Floats, Floats]:
        """Compare a text with all new labels by words, (A,): altogether, and through words unknown to the model."""
        all_words, new_words = np.zeros(self.count, np.float32), np.zeros(self.count, np.float32)
        for word, weight in _weights(text, self.words).items():
            if word in self.lists:
                labels, own = self.lists[word]
                all_words[labels] += np.float32(weight) * own
                if word not in self.words.places:
                    new_words[labels] += np.float32(weight) * own
        return all_words, new_words


def similar_labels(words: Words, names: Inverted, texts: Sequence[str]) -> sp.csr_array:
    """Find the trained labels whose texts share the most with new ones: similarities (A, L)."""
    found, similarities = names.nearest_batch(0, words.bag(texts), NEAREST)
    return rows_of(found, similarities, names.groups[0].shape[0])


def _weights(text: str, words: Words) -> dict[str, float]:
    """Weigh all words of a text, to length one; unknown words weigh as much as the rarest."""
    counts, rarest = Counter(terms(text)), float(words.idf.max(initial=1.0))
    weights = {}
    for word, count in counts.items():
        place = words.places.get(word)
        weights[word] = (1 + math.log(count)) * (rarest if place is None else float(words.idf[place]))
    length = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
    return {word: weight / length for word, weight in weights.items()}
