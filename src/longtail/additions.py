"""NEW LABEL TEXTS → SCORES: labels that came after training, scored beside those that were trained.

By vectors a new label is what the encoder makes of its text, as far as it knows the words. By words it is a label text,
and a training point that has the label: what self-annotation gives to trained labels. Words that the model never saw
count as the rarest ones, so that a label with a new name is found by it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.data.tokens import WORD, Words
from longtail.encoders.encoding import BagEncoding
from longtail.recipe import Recipe
from longtail.shortlists.exact import unit
from longtail.shortlists.search import Search
from longtail.types import Floats

UNKNOWN = 0.5  # weight of similarity through words that vectors do not know
SAMPLE = 1000  # trained labels that the length of new vectors is taken from


@dataclass(frozen=True, eq=False)
class Additions:
    """New labels: their vectors, and for each word the labels that have it."""

    words: Words  # of the model
    lists: dict[str, tuple[NDArray[np.int64], Floats]]  # labels and weights
    vectors: Floats | None  # (A, D)
    bias: float
    count: int

    @classmethod
    def of(cls, texts: Sequence[str], words: Words, search: Search | None, recipe: Recipe) -> Additions:
        """Encode and weigh label texts."""
        lists: dict[str, list[tuple[int, float]]] = {}
        for label, text in enumerate(texts):
            for word, weight in _weights(text, words).items():
                lists.setdefault(word, []).append((label, weight))
        arrays = {
            word: (np.array([label for label, _ in own]), np.array([weight for _, weight in own], np.float32))
            for word, own in lists.items()
        }
        vectors, bias = None, 0.0
        if search is not None:
            vectors, bias = _encoded(texts, search, recipe), float(np.median(search.vectors.bias))
        return cls(words, arrays, vectors, bias, len(texts))

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


def _weights(text: str, words: Words) -> dict[str, float]:
    """Weigh all words of a text, to length one; unknown words weigh as much as the rarest."""
    counts, rarest = Counter(WORD.findall(text.lower())), float(words.idf.max(initial=1.0))
    weights = {}
    for word, count in counts.items():
        place = words.places.get(word)
        weights[word] = (1 + math.log(count)) * (rarest if place is None else float(words.idf[place]))
    length = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
    return {word: weight / length for word, weight in weights.items()}


def _encoded(texts: Sequence[str], search: Search, recipe: Recipe) -> Floats:
    """Make the vectors of new labels, of the length that trained labels have."""
    index = search.vectors
    encoding: Any = index.encoding
    inputs = encoding.inputs(texts)
    head = index.head is not None and getattr(recipe.classifier, "text", None) != "sum"
    rows = index.head(encoding.encode(inputs)) if head and index.head else encoding.encode(inputs)
    rows = unit(rows)
    if not index.cosine:
        some = np.random.default_rng(0).permutation(len(search.labels))[:SAMPLE]
        rows = rows * np.float32(np.median(np.linalg.norm(search.labels.take(np.sort(some)), axis=1)))
    if isinstance(encoding, BagEncoding):
        rows = rows * (np.diff(inputs.matrix.indptr) > 0)[:, None]  # nothing is known: no vector
    return np.asarray(rows, np.float32)
