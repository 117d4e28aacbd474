"""TEXT → WORDS → TF-IDF BAGS, fit once and quick for a single query.

A word is a run of letters, digits or underscores, lower-cased. With `pairs`, the pieces of names (getElementById) are
words too, and so are any two that follow each other. Weights are (1 + ln tf) · idf with the smooth
idf = 1 + ln((1 + n) / (1 + df)), and every bag has length one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from longtail.files import read_arrays, read_texts, write_arrays, write_texts
from longtail.types import Floats, Ints, Texts

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
    idf: Floats  # (V,)
    pairs: bool = False

    def __len__(self) -> int:
        return len(self.vocabulary)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each word stands in the vocabulary."""
        return {word: place for place, word in enumerate(self.vocabulary)}

    @classmethod
    def fit(cls, *collections: Iterable[str], pairs: bool = False) -> Words:
        """Count the texts that hold each word, over all collections."""
        counts: dict[str, int] = {}
        texts = 0
        for collection in collections:
            for text in collection:
                texts += 1
                for word in set(terms(text, pairs=pairs)):
                    counts[word] = counts.get(word, 0) + 1
        vocabulary = sorted(counts)
        seen = np.fromiter((counts[word] for word in vocabulary), np.float64, len(vocabulary))
        return cls(Texts(vocabulary), (1 + np.log((1 + texts) / (1 + seen))).astype(np.float32), pairs)

    def bag(self, texts: Iterable[str]) -> sp.csr_array:
        """Weigh the known words of each text: (N, V), rows of length one or empty."""
        place, indptr, indices = self.places.get, [0], []
        for text in texts:
            indices += [known for word in terms(text, pairs=self.pairs) if (known := place(word)) is not None]
            indptr.append(len(indices))
        ones = np.ones(len(indices), np.float32)
        shape = (len(indptr) - 1, len(self))
        bags = sp.csr_array((ones, np.asarray(indices, np.int32), np.asarray(indptr, np.int32)), shape=shape)
        bags.sum_duplicates()
        weights = (1 + np.log(bags.data.astype(np.float64))) * self.idf[bags.indices]  # as exact as `query`
        sizes = np.diff(bags.indptr)
        squares = np.bincount(np.repeat(np.arange(shape[0]), sizes), weights**2, shape[0])
        bags.data = (weights / np.repeat(np.sqrt(squares), sizes)).astype(np.float32)
        return bags

    def query(self, text: str) -> tuple[Ints, Floats]:
        """Weigh one text without building a matrix: (words, weights)."""
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


def _name(pairs: bool) -> str:
    """Name the files of a vocabulary."""
    return "pairs" if pairs else "words"
