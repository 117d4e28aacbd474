"""TEST POINTS → THE SAME IN OTHER WORDS, or some of them: how a model bears what people type.

"shuffled": words in another order. "mistyped": one slip in one word of each text: a letter too many, too few, wrong, or
two exchanged. "unknown": one word of each text is one that nobody knows. "short": the texts of at most three words.
"as-label" and "not-as-label": the texts that are also the text of a label, and the others. Several words, as in
"mistyped short", are one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Split
from longtail.errors import RecipeError, nearest
from longtail.types import LabelMatrix, Texts

SHORT = 3  # words of a short text at most
MEASURED = ("P@1", "PSP@5")


def variant(test: Split, way: str, seed: int) -> Split:
    """Return the test points as a way has them."""
    for name in way.split():
        test = WAYS[name](test, np.random.default_rng(seed))
    return test


def check_way(way: str) -> None:
    """Refuse a way that there is not."""
    for name in way.split() or [""]:
        if name not in WAYS:
            raise RecipeError(f"there is no way {name!r} to change test points; {nearest(name, WAYS)}")


def columns(way: str) -> tuple[str, ...]:
    """Name the columns of a way.

    >>> columns("mistyped short")
    ('P@1 mistyped short', 'PSP@5 mistyped short')
    """
    return tuple(f"{metric} {way}" for metric in MEASURED)


def values(way: str, measured: Mapping[str, float]) -> dict[str, float]:
    """Name what was measured on a way's test points."""
    return {column: round(measured[metric], 4) for column, metric in zip(columns(way), MEASURED, strict=True)}


def stacked(splits: Sequence[Split]) -> Split:
    """Put the points of several splits one after the other."""
    texts = [text for split in splits for text in split.need_texts("variants")]
    targets: LabelMatrix = sp.csr_array(sp.vstack([split.targets for split in splits]))
    excluded: LabelMatrix = sp.csr_array(sp.vstack([split.excluded for split in splits]))
    return replace(splits[0], texts=Texts(texts), ids=None, features=None, targets=targets, excluded=excluded)


def shuffled(test: Split, draw: np.random.Generator) -> Split:
    """Permute the words of every text."""
    return reworded(test, lambda words: [words[place] for place in draw.permutation(len(words))])


def mistyped(test: Split, draw: np.random.Generator) -> Split:
    """Put one slip into one word of every text; words of three letters and more come first."""
    return reworded(test, lambda words: one_changed(words, draw, lambda word: slipped(word, draw)))


def unknown(test: Split, draw: np.random.Generator) -> Split:
    """Exchange one word of every text for random letters, as many."""
    letters = np.array(list(ascii_lowercase))
    return reworded(
        test, lambda words: one_changed(words, draw, lambda word: "".join(draw.choice(letters, max(len(word), 5))))
    )


def short(test: Split, draw: np.random.Generator) -> Split:
    """Keep the texts of a few words."""
    return test.take(np.array([len(text.split()) <= SHORT for text in test.need_texts("short")]).nonzero()[0])


def as_label(test: Split, draw: np.random.Generator) -> Split:
    """Keep the texts that are also the text of a label."""
    return test.take(np.flatnonzero(_named(test)))


def not_as_label(test: Split, draw: np.random.Generator) -> Split:
    """Keep the texts that are not the text of a label."""
    return test.take(np.flatnonzero(~_named(test)))


def reworded(test: Split, change: Callable[[list[str]], list[str]]) -> Split:
    """Change the words of every text."""
    return replace(test, texts=Texts(" ".join(change(text.split())) for text in test.need_texts("variants")))


def one_changed(words: list[str], draw: np.random.Generator, change: Callable[[str], str]) -> list[str]:
    """Change one word, drawn among those of three letters and more where there are any."""
    places = [place for place, word in enumerate(words) if len(word) >= 3] or list(range(len(words)))
    if places:
        place = places[draw.integers(len(places))]
        words[place] = change(words[place])
    return words


def slipped(word: str, draw: np.random.Generator) -> str:
    """Mistype a word: insert, leave out, exchange or replace a letter.

    >>> slipped("array", np.random.default_rng(0))
    'arraq'
    """
    place, letter = int(draw.integers(len(word))), ascii_lowercase[draw.integers(26)]
    kind = draw.integers(4)
    if kind == 0:
        return word[:place] + letter + word[place:]
    if kind == 1 and len(word) > 1:
        return word[:place] + word[place + 1 :]
    if kind == 2 and place + 1 < len(word) and word[place] != word[place + 1]:
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    if letter == word[place].lower():
        letter = ascii_lowercase[ascii_lowercase.index(letter) - 1]
    return word[:place] + letter + word[place + 1 :]


def _named(test: Split) -> NDArray[np.bool_]:
    names = {text.strip().lower() for text in test.labels.texts or ()}
    return np.array([text.strip().lower() in names for text in test.need_texts("variants")], np.bool_)


WAYS: dict[str, Callable[[Split, np.random.Generator], Split]] = {
    "shuffled": shuffled, "mistyped": mistyped, "unknown": unknown, "short": short,
    "as-label": as_label, "not-as-label": not_as_label,
}  # fmt: skip
