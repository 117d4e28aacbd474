"""TEXT → WORDS → TF-IDF BAGS, fit once and quick for a single query.

A word is a run of letters, digits or underscores, lower-cased; where a language has no spaces, pairs of letters are
words (`unspaced`). With `pairs`, the pieces of names (getElementById) are
words too, and so are any two that follow each other in more than one text, which weigh less. Weights are
(1 + ln tf) · idf with the smooth idf = 1 + ln((1 + n) / (1 + df)), at most 5 for function words, and every bag has
length one. Words that are not known are read as known ones near to them, which share their count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.arrays import Array, checked
from longtail.data.function_words import function_words
from longtail.data.spelling import Shares, Spelling
from longtail.data.unspaced import LETTERS, MARKS, words_of
from longtail.files import read_arrays, read_texts, write_arrays, write_texts
from longtail.types import Floats, Ints, Texts

SCHEMA = (Array("idf", ("vocabulary",), low=1e-6),)  # bags are divided by their length, which must not be zero
MEMO = 1_000_000  # texts whose bags are kept at most
FUNCTION = np.float32(5)  # idf of function words at most: titles have too few of them
PAIR, PAIRED = np.float32(0.7), 2  # what a pair weighs beside a word; texts that must have it
MILLION = 1_000_000
UNKNOWN = 2**16  # unknown words whose readings are kept at most
WORD = re.compile(r"\w+")
PIECE = re.compile(rf"(?:[^\W\d_]|[{MARKS}{LETTERS}])+|\d+")
HUMP = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][^\W\d_A-Z])")


def terms(text: str, *, pairs: bool = False) -> list[str]:
    """Cut a text into words; with `pairs`, into pieces of words, the words that have several, and pairs of pieces.

    >>> terms("offsetTop of Node", pairs=True)
    ['offsettop', 'offset', 'top', 'of', 'node', 'offset top', 'top of', 'of node']
    """
    cut = WORD.findall if text.isascii() else words_of
    if not pairs:
        return cut(text.lower())
    pieces: list[str] = []
    found: list[str] = []
    for word in cut(text):
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
    >>> Words.fit(["white horse"]).bag(["horses"]).toarray().tolist()
    [[1.0, 0.0]]
    """

    vocabulary: Texts  # (V,) sorted
    credits: ClassVar[str] = ""  # it is made of the training data
    idf: Floats  # (V,)
    pairs: bool = False
    memo: list[Memo] = field(default_factory=list, repr=False)  # one at most, while a model is fitted
    unknown: dict[str, Shares] = field(default_factory=dict, repr=False)  # how unknown words were read
    fitted_to: list[Sequence[str]] = field(default_factory=list, repr=False)  # while a model is fitted
    folder: Path | None = None  # of the model that they were opened from

    def __len__(self) -> int:
        return len(self.vocabulary)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each word stands in the vocabulary."""
        return {word: place for place, word in enumerate(self.vocabulary)}

    @cached_property
    def paired(self) -> Words:
        """The same with pairs too, of the same texts or from the same folder; made once for all who want it."""
        if self.folder is not None:
            return Words.load(self.folder, pairs=True)
        assert self.fitted_to, "pairs are fitted before texts are forgotten"
        return Words.fit(*self.fitted_to, pairs=True)

    @cached_property
    def function(self) -> frozenset[str]:
        """The function words of the languages that texts are in, told by how many of a million texts have each."""
        return frozenset(
            function_words(
                lambda word: (
                    MILLION * math.exp(1 - self.idf[place]) if (place := self.places.get(word)) is not None else 0
                )
            )
        )

    @classmethod
    def fit(cls, *collections: Sequence[str], pairs: bool = False) -> Words:
        """Count the texts that hold each word, over all collections; their bags are kept until `forget`.

        >>> Words.fit(["red cat", "a red cat", "red dog"], pairs=True).vocabulary.tolist()
        ['a', 'cat', 'dog', 'red', 'red cat']
        """
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
        idf = (1 + np.log((1 + texts) / (1 + seen))).astype(np.float32)
        plain = [
            sorted_place[numbers[word]]
            for word in function_words(lambda word: seen[sorted_place[numbers[word]]] if word in numbers else 0)
        ]
        idf[plain] = np.minimum(idf[plain], FUNCTION)
        if pairs:
            paired = np.fromiter((" " in word for word in vocabulary), np.bool_, len(vocabulary))
            idf[paired] *= PAIR
            kept = np.flatnonzero(~paired | (seen >= PAIRED))
            vocabulary, idf, counts = [vocabulary[place] for place in kept], idf[kept], sp.csr_array(counts[:, kept])
        words = cls(Texts(vocabulary), idf, pairs, fitted_to=list(collections))
        if texts <= MEMO:
            words.memo.append(Memo(places, words._weighed(counts)))
        return words

    def forget(self) -> None:
        """Let go of the texts that the words were fitted to, and of their bags."""
        self.memo.clear()
        self.fitted_to.clear()
        paired = self.__dict__.pop("paired", None)  # voices that read pairs have it
        if paired is not None:
            paired.forget()

    def bag(self, texts: Iterable[str]) -> sp.csr_array:
        """Weigh the known words of each text: (N, V), rows of length one or empty."""
        return self.memo[0].bag(list(texts), self._bag) if self.memo else self._bag(texts)

    def read(self, word: str) -> Shares:
        """Return the known words that stand for an unknown one, and the share of each."""
        shares = self.unknown.get(word)
        if shares is None:
            pieces = word.split()
            shares = self._pair(*pieces) if len(pieces) == 2 else self._near(word)
            if len(self.unknown) >= UNKNOWN:
                self.unknown.clear()
            self.unknown[word] = shares
        return shares

    def _pair(self, one: str, two: str) -> Shares:
        """Read a pair of words by the likeliest reading of each."""
        readings = [
            ((place, 1.0),) if (place := self.places.get(word)) is not None else self.read(word) for word in (one, two)
        ]
        if not all(readings):
            return ()
        place = self.places.get(" ".join(self.vocabulary[reading[0][0]] for reading in readings))
        return () if place is None else ((place, 1.0),)

    def _near(self, word: str) -> Shares:
        """Read an unknown word as known ones, never as pairs."""
        return tuple((int(self._single[place]), share) for place, share in self._spelling.near(word))

    @cached_property
    def _single(self) -> NDArray[np.int64]:
        """Where the words stand that are no pairs."""
        return np.array([place for place, word in enumerate(self.places) if " " not in word], np.int64)

    @cached_property
    def _spelling(self) -> Spelling:
        """What reads unknown words."""
        return Spelling([word for word in self.places if " " not in word], self.idf[self._single])

    def _bag(self, texts: Iterable[str]) -> sp.csr_array:
        """Cut texts into words and weigh them."""
        known, unknown = self.places.get, self.unknown.get
        indptr, indices, shares = [0], list[int](), list[float]()
        for text in texts:
            for word in terms(text, pairs=self.pairs):
                if (place := known(word)) is not None:
                    indices.append(place)
                    shares.append(1.0)
                    continue
                for near, share in self.read(word) if (reading := unknown(word)) is None else reading:
                    indices.append(near)
                    shares.append(share)
            indptr.append(len(indices))
        return self._weighed(_counts(np.asarray(indices, np.int32), indptr, len(self), np.asarray(shares, np.float32)))

    def _weighed(self, bags: sp.csr_array) -> sp.csr_array:
        """Turn counts of words into weights, in place."""
        counts = bags.data.astype(np.float64)  # as exact as `query`
        damped = np.where(counts < 1, counts, 1 + np.log(np.maximum(counts, 1)))
        weights = damped * self.idf[bags.indices]
        sizes = np.diff(bags.indptr)
        squares = np.bincount(np.repeat(np.arange(bags.shape[0]), sizes), weights**2, bags.shape[0])
        bags.data = (weights / np.repeat(np.sqrt(squares), sizes)).astype(np.float32)
        return bags

    def query(self, text: str) -> tuple[Ints, Floats]:
        """Weigh one text without building a matrix: (words ascending, weights)."""
        if self.memo and (kept := self.memo[0].query(text)) is not None:
            return kept
        counts: dict[int, float] = {}
        known, unknown = self.places.get, self.unknown.get
        for word in terms(text, pairs=self.pairs):
            if (place := known(word)) is not None:
                counts[place] = counts.get(place, 0.0) + 1.0
                continue
            for near, share in self.read(word) if (reading := unknown(word)) is None else reading:
                counts[near] = counts.get(near, 0.0) + share
        ascending = sorted(counts)  # as in bags, so that sums have the same bits
        idf = self.idf.data  # which is quicker than numpy for a few
        weights = [idf[place] * _damped(counts[place]) for place in ascending]
        length = math.sqrt(sum(weight * weight for weight in weights)) or 1.0
        return np.array(ascending, np.int32), np.array([weight / length for weight in weights], np.float32)

    def save(self, folder: Path) -> None:
        """Write words.arrow and words.safetensors, or the same for pairs."""
        name = _name(self.pairs)
        write_texts(folder / f"{name}.arrow", {"text": self.vocabulary})
        write_arrays(folder / f"{name}.safetensors", {"idf": self.idf})

    @classmethod
    def load(cls, folder: Path, *, pairs: bool = False) -> Words:
        """Open what `save` wrote."""
        vocabulary = read_texts(folder / f"{_name(pairs)}.arrow")["text"]
        arrays = read_arrays(folder / f"{_name(pairs)}.safetensors")
        (idf,) = checked(arrays, SCHEMA, vocabulary=len(vocabulary))
        return cls(vocabulary, idf, pairs, folder=folder)


def _counts(
    indices: NDArray[np.int32], indptr: list[int], width: int, shares: Floats | None = None
) -> sp.csr_array:  # fmt: skip
    """Count the words of each text, or add up their shares: (N, V)."""
    data = np.ones(len(indices), np.float32) if shares is None else shares
    counts = sp.csr_array((data, indices, np.asarray(indptr, np.int32)), shape=(len(indptr) - 1, width))
    counts.sum_duplicates()
    return counts


def _damped(count: float) -> float:
    """Return what a count is worth: 1 + ln of it, or itself where it is a share of a word."""
    return 1 + math.log(count) if count > 1 else count


def _name(pairs: bool) -> str:
    """Name the files of a vocabulary."""
    return "pairs" if pairs else "words"
