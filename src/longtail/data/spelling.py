"""UNKNOWN WORD → KNOWN WORDS: one edit away, of the same stem, or two of which it is made.

A word that training never saw is most often a slip of the finger (sotr), another form (sorts, sorting) or a compound
(spreadsheeteditor). What is found stands for it with a share each; shares are sixteenths, so that they add up exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longtail.types import Floats

SHORTEST, LONGEST = 4, 64  # letters of a word that others may stand for
FIRM = 6  # letters of a word at most whose first letter is taken as meant: cancer is no dancer
STEM, ENDING, ALIKE = 4, 4, 0.55  # letters of a stem at least, of an ending at most, and the part that is shared
SIBLINGS = 256  # words that share a stem are too many to choose from
MOST = 3  # words that stand for one
UNITS = 16  # parts of a share
KIN = 4.0  # how much likelier a word is that only ends differently
BASE = np.uint64(0x9E3779B97F4A7C15)
INVERSE = np.uint64(pow(int(BASE), -1, 2**64))

Shares = tuple[tuple[int, float], ...]  # places of words and their shares


@dataclass(frozen=True, eq=False)
class Spelling:
    """Finds the known words that may stand for one that is not known.

    >>> words = ["array", "sheet", "sort", "sorted", "spread"]
    >>> spelling = Spelling(words, np.ones(5, np.float32))
    >>> [[words[place] for place, _ in spelling.near(word)] for word in ("arrya", "sorts", "spreadsheet", "zebra")]
    [['array'], ['sort'], ['spread', 'sheet'], []]
    """

    words: Sequence[str]  # (V,) sorted
    idf: Floats  # (V,)

    def near(self, word: str) -> Shares:
        """Return the known words that may stand for an unknown one, the likeliest first."""
        if not SHORTEST <= len(word) <= LONGEST or any(letter.isdigit() for letter in word):
            return ()
        found = self._edited(word)
        if not found and (joined := self._joined(word)):
            return joined
        found = found or self._related(word)
        if not found:
            return ()
        found = sorted(found, key=lambda one: (-one[1], one[0]))[:MOST]
        total = sum(weight for _, weight in found)
        units = [(place, round(UNITS * weight / total)) for place, weight in found]
        return tuple((place, count / UNITS) for place, count in units if count)

    def _edited(self, word: str) -> list[tuple[int, float]]:
        """Find words one edit away, weighed by how common they are."""
        keys, places = self._deletions
        own, _ = deletions([word])
        first, last = np.searchsorted(keys, own), np.searchsorted(keys, own, side="right")
        near = {int(place) for start, end in zip(first, last, strict=True) for place in places[start:end]}
        found = [(place, self.words[place]) for place in near]
        return [
            (place, self._common(place) * (KIN if other.startswith(word) or word.startswith(other) else 1.0))
            for place, other in found
            if one_edit(word, other) and (len(word) > FIRM or word[0] == other[0])
        ]  # fmt: skip

    def _related(self, word: str) -> list[tuple[int, float]]:
        """Find words that end differently, weighed by how much they share."""
        stem = word[: max(STEM, len(word) - ENDING)]
        first, last = bisect_left(self.words, stem), bisect_left(self.words, stem + chr(0x10FFFF))
        if last - first > SIBLINGS:
            return []
        found = []
        for place in range(first, last):
            other = self.words[place]
            same = shared_start(word, other)
            alike = same / max(len(word), len(other))
            if len(other) >= SHORTEST and len(other) - same <= ENDING and alike >= ALIKE:
                found.append((place, self._common(place) * alike**8))
        return found

    def _joined(self, word: str) -> Shares:
        """Find two words of which it is made; of several ways that with the longest shorter one."""
        for size in range(len(word) // 2, SHORTEST - 1, -1):
            for cut in (size, len(word) - size):
                pair = self._place(word[:cut]), self._place(word[cut:])
                if pair[0] is not None and pair[1] is not None:
                    return (pair[0], 0.5), (pair[1], 0.5)
        return ()

    def _place(self, word: str) -> int | None:
        """Find a known word."""
        place = bisect_left(self.words, word)
        return place if place < len(self.words) and self.words[place] == word else None

    def _common(self, place: int) -> float:
        """Return how common a word is: the root of its share of the texts, up to a factor."""
        return float(np.exp(-0.5 * self.idf[place]))

    @cached_property
    def _deletions(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Hash the words and what is left of them without one letter: (hashes ascending, places of words)."""
        places = np.array([i for i, word in enumerate(self.words) if SHORTEST - 1 <= len(word) <= LONGEST], np.int64)
        keys, owners = deletions([self.words[place] for place in places])
        order = np.argsort(keys, kind="stable")
        return keys[order], places[owners[order]]


def deletions(words: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hash each word and what is left of it without one letter: (hashes, places of words).

    The hash of letters c is Σ c_i BASE^i modulo 2^64, so that what follows a missing letter is multiplied once.

    >>> len(np.intersect1d(deletions(["sotr"])[0], deletions(["sort"])[0])) > 0
    True
    """
    sizes = np.fromiter((len(word) for word in words), np.int64, len(words))
    letters = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64) + 1
    owners = np.repeat(np.arange(len(words)), sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    powers = np.ones(max(int(sizes.max(initial=0)), 1), np.uint64)
    np.multiply.accumulate(np.full(len(powers) - 1, BASE, np.uint64), out=powers[1:])
    terms = letters * powers[np.arange(len(letters)) - starts[owners]]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    whole = sums[starts[1:]] - sums[starts[:-1]]
    behind = sums[starts[1:]][owners] - sums[1:]
    before = sums[:-1] - sums[starts[:-1]][owners]
    return np.concatenate([whole, before + behind * INVERSE]), np.concatenate([np.arange(len(words)), owners])


def shared_start(one: str, other: str) -> int:
    """Count the letters that two words begin with alike.

    >>> shared_start("sorting", "sorted")
    4
    """
    size = min(len(one), len(other))
    return next((place for place in range(size) if one[place] != other[place]), size)


def one_edit(one: str, other: str) -> bool:
    """Return whether two words differ by one letter more, less or other, or by two neighbours that changed places.

    >>> [one_edit("sort", other) for other in ("sorts", "sot", "part", "sotr", "port", "sort")]
    [True, True, False, True, True, False]
    """
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    start = shared_start(one, other)
    if len(one) != len(other):
        short, long = sorted((one, other), key=len)
        return short[start:] == long[start + 1 :]
    swapped = one[start + 1 : start + 2] + one[start : start + 1] + one[start + 2 :]
    return one[start + 1 :] == other[start + 1 :] or swapped == other[start:]
