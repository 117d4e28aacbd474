"""TEXT → WORDS → TF-IDF BAGS, fit once and quick for a single query.

A word is a run of letters, digits or underscores, lower-cased. With `pairs`, the pieces of names (getElementById) are
words too, and so are any two that follow each other. Weights are (1 + ln tf) · idf with the smooth
idf = 1 + ln((1 + n) / (1 + df)), and every bag has length one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.files import read_arrays, read_texts, write_arrays, write_texts
from longtail.types import Floats, Ints, Texts

MEMO = 1_000_000  # texts whose bags are kept at most
WORD = re.compile(r"\w+")
PIECE = re.compile(r"[^\W\d_]+|\d+")
HUMP = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][^\W\d_A-Z])")


def terms(text: str, *, pairs: bool = False) -> list[str]:
    """Cut a text into words; with `pairs`, into pieces of words, the words that have several, and pairs of pieces.

    >>> terms("offsetTop of Node", pairs=True)
    ['offsettop', 'offset', 'top', 'of', 'node', 'offset top', 'top of', 'of node']
    """
    if not pairs:
        return WORD.findall(text.lower())
    pieces: list[str] = []
    found: list[str] = []
    for word in WORD.findall(text):
        parts = _pieces(word)
        if len(parts) != 1:
            found.append(word.lower())
        pieces += parts
    return found + pieces + [f"{one} {two}" for one, two in pairwise(pieces)]


@lru_cache(2**16)
def _pieces(word: str) -> list[str]:
    """Cut a name into its pieces; texts have the same words again and again."""
    return [hump.lower() for piece in PIECE.findall(word) for hump in HUMP.split(piece)]


class Memo:
    """The bags of texts that a vocabulary was fitted to, so that no text is cut into words twice."""

    def __init__(self, places: dict[str, int], bags: sp.csr_array) -> None:
        self.places, self.bags = places, bags  # where the bag of a text stands

    def bag(self, texts: list[str], compute: Callable[[Iterable[str]], sp.csr_array]) -> sp.csr_array:
        """Look bags up, and compute those of other texts."""
        rows = np.fromiter((self.places.get(text, -1) for text in texts), np.int64, len(texts))
        missing = np.flatnonzero(rows < 0)
        if len(missing) == 0:
            return self.bags[rows]
        fresh, known = compute([texts[place] for place in missing]), np.flatnonzero(rows >= 0)
        if len(known) == 0:
            return fresh
        back = np.argsort(np.concatenate([known, missing]))  # to the order of the texts
        return sp.csr_array(sp.vstack([self.bags[rows[known]], fresh], format="csr")[back])

    def query(self, text: str) -> tuple[Ints, Floats] | None:
        """Look up the words of one text, and their weights; None if it is not known."""
        row = self.places.get(text)
        if row is None:
            return None
        own = slice(self.bags.indptr[row], self.bags.indptr[row + 1])
        return self.bags.indices[own], self.bags.data[own]


@dataclass(frozen=True, eq=False)
class Words:
    """A vocabulary with its idf weights.

    >>> words = Words.fit(["red cat", "red dog"])
    >>> words.vocabulary.tolist()
    ['cat', 'dog', 'red']
    >>> words.bag(["Cat!", "unseen"]).toarray().tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    vocabulary: Texts  # (V,) sorted
    credits: ClassVar[str] = ""  # it is made of the training data
    idf: Floats  # (V,)
    pairs: bool = False
    memo: list[Memo] = field(default_factory=list, repr=False)  # one at most, while a model is fitted

    def __len__(self) -> int:
        return len(self.vocabulary)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each word stands in the vocabulary."""
        return {word: place for place, word in enumerate(self.vocabulary)}

    @classmethod
    def fit(cls, *collections: Iterable[str], pairs: bool = False) -> Words:
        """Count the texts that hold each word, over all collections; their bags are kept until `forget`."""
        numbers: dict[str, int] = {}  # of words, as they come
        number = numbers.setdefault
        places: dict[str, int] = {}
        indptr, indices = [0], list[int]()
        for text in chain.from_iterable(collections):
            row = places.setdefault(text, len(indptr) - 1)
            if row < len(indptr) - 1:
                indices += indices[indptr[row] : indptr[row + 1]]  # the same text again
            else:
                indices += [number(word, len(numbers)) for word in terms(text, pairs=pairs)]
            indptr.append(len(indices))
        vocabulary = sorted(numbers)
        order = np.fromiter((numbers[word] for word in vocabulary), np.int64, len(vocabulary))
        sorted_place = np.empty(len(order), np.int32)
        sorted_place[order] = np.arange(len(order), dtype=np.int32)
        counts = _counts(sorted_place[np.asarray(indices, np.int64)], indptr, len(vocabulary))
        seen = np.bincount(counts.indices, minlength=len(vocabulary)).astype(np.float64)
        texts = len(indptr) - 1
        words = cls(Texts(vocabulary), (1 + np.log((1 + texts) / (1 + seen))).astype(np.float32), pairs)
        if texts <= MEMO:
            words.memo.append(Memo(places, words._weighed(counts)))
        return words

    def forget(self) -> None:
        """Let go of the bags of the texts that the words were fitted to."""
        self.memo.clear()

    def bag(self, texts: Iterable[str]) -> sp.csr_array:
        """Weigh the known words of each text: (N, V), rows of length one or empty."""
        return self.memo[0].bag(list(texts), self._bag) if self.memo else self._bag(texts)

    def _bag(self, texts: Iterable[str]) -> sp.csr_array:
        """Cut texts into words and weigh them."""
        place, indptr, indices = self.places.get, [0], []
        for text in texts:
            indices += [known for word in terms(text, pairs=self.pairs) if (known := place(word)) is not None]
            indptr.append(len(indices))
        return self._weighed(_counts(np.asarray(indices, np.int32), indptr, len(self)))

    def _weighed(self, bags: sp.csr_array) -> sp.csr_array:
        """Turn counts of words into weights, in place."""
        weights = (1 + np.log(bags.data.astype(np.float64))) * self.idf[bags.indices]  # as exact as `query`
        sizes = np.diff(bags.indptr)
        squares = np.bincount(np.repeat(np.arange(bags.shape[0]), sizes), weights**2, bags.shape[0])
        bags.data = (weights / np.repeat(np.sqrt(squares), sizes)).astype(np.float32)
        return bags

    def query(self, text: str) -> tuple[Ints, Floats]:
        """Weigh one text without building a matrix: (words, weights)."""
        if self.memo and (known := self.memo[0].query(text)) is not None:
            return known
        counts: dict[int, int] = {}
        places = self.places
        for word in terms(text, pairs=self.pairs):
            place = places.get(word)
            if place is not None:
                counts[place] = counts.get(place, 0) + 1
        words = np.fromiter(counts, np.int32, len(counts))
        weights = self.idf[words].astype(np.float64)
        if len(counts) < sum(counts.values()):
            weights *= np.fromiter((1 + math.log(count) for count in counts.values()), np.float64, len(counts))
        return words, (weights / (math.sqrt(float(weights @ weights)) or 1)).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write words.arrow and words.safetensors, or the same for pairs."""
        name = _name(self.pairs)
        write_texts(folder / f"{name}.arrow", {"text": self.vocabulary})
        write_arrays(folder / f"{name}.safetensors", {"idf": self.idf})

    @classmethod
    def load(cls, folder: Path, *, pairs: bool = False) -> Words:
        """Open what `save` wrote."""
        vocabulary = read_texts(folder / f"{_name(pairs)}.arrow")["text"]
        return cls(vocabulary, read_arrays(folder / f"{_name(pairs)}.safetensors")["idf"], pairs)


def _counts(indices: NDArray[np.int32], indptr: list[int], width: int) -> sp.csr_array:
    """Count the words of each text: (N, V)."""
    ones = np.ones(len(indices), np.float32)
    counts = sp.csr_array((ones, indices, np.asarray(indptr, np.int32)), shape=(len(indptr) - 1, width))
    counts.sum_duplicates()
    return counts


def _name(pairs: bool) -> str:
    """Name the files of a vocabulary."""
    return "pairs" if pairs else "words"
