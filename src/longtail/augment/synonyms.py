"""WORD IDS → OTHER WORD IDS: now and then a word gives way to one whose vector is near.

Each word is replaced with probability 0.15 by one of its 5 nearest words under the cosine of the start vectors, if
there are any of 0.6 or more. The paper looks for neighbours under BERT; word vectors need no such model.

References: [Gandalf] table 6; methods §6.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.parts import Augmentation, Batch, Fit, Place, Step
from longtail.records import record
from longtail.types import Floats, Ints

CELLS = 2**23  # cosines that are held at a time
Numbers = TypeVar("Numbers", bound=NDArray[Any])


@record
class Synonyms(Augmentation):
    """Settings of synonym replacement: a neighbour has `min_cosine` or more, and a word has `max_neighbours`."""

    part: ClassVar[str] = "synonyms"
    renamed: ClassVar[Mapping[str, str]] = {"least": "min_cosine", "most": "max_neighbours"}
    acts_on: ClassVar[tuple[Place, ...]] = ("words",)
    probability: float = Field(default=0.15, ge=0, le=1)  # that a word is replaced
    min_cosine: float = Field(default=0.6, gt=0, le=1)  # of two words that replace each other
    max_neighbours: int = Field(default=5, ge=1)  # synonyms of a word

    def prepare(self, fit: Fit) -> Replacer:
        """Make ready for the steps of a training."""
        return self.replacer(fit.start["words"])

    def replacer(self, vectors: Floats) -> Replacer:
        """Find the nearest words of every word (V, D); words with a zero vector have none and are nobody's.

        >>> Synonyms(max_neighbours=1).replacer(np.array([[0, 0], [1, 0], [4, 1], [0, 1]], np.float32)).near.tolist()
        [[-1], [2], [1], [-1]]
        """
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
        near = np.full((len(vectors), self.max_neighbours), -1, np.int32)
        step = max(1, CELLS // max(1, len(vectors)))
        for start in range(0, len(vectors), step):
            cosines = unit[start : start + step] @ unit.T
            own = np.arange(len(cosines))
            cosines[own, start + own] = 0
            rows, words = np.nonzero(cosines >= self.min_cosine)
            order = np.lexsort((words, -cosines[rows, words], rows))
            rows, words = rows[order], words[order]
            place = np.arange(len(rows)) - np.searchsorted(rows, rows)
            kept = place < self.max_neighbours
            near[start + rows[kept], place[kept]] = words[kept]
        return Replacer(self.probability, near)


@dataclass(frozen=True, eq=False)
class Replacer:
    """Synonyms made ready for one vocabulary."""

    probability: float
    near: Ints  # (V, max_neighbours) the nearest first, -1 where there are no more
    acts_on: ClassVar[tuple[Place, ...]] = Synonyms.acts_on

    def apply(self, place: Place, batch: Batch, step: Step) -> Batch:
        """Replace words of a batch."""
        return replace(batch, inputs=batch.inputs.replaced(lambda ids: self.replace(ids, step.draw)))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many near words each word has, (V,)."""
        counts: NDArray[np.int64] = np.sum(self.near >= 0, axis=1, dtype=np.int64)
        return counts

    def replace(self, ids: Numbers, random: np.random.Generator) -> Numbers:
        """Replace each word by chance; words without a near one stay. The array that is given is not changed."""
        chosen = np.flatnonzero(random.random(ids.shape) < self.probability)
        words = ids.ravel()[chosen]
        counts = self.counts[words]
        places = (random.random(len(words)) * counts).astype(np.int64)
        replaced = ids.copy()
        replaced.ravel()[chosen] = np.where(counts > 0, self.near[words, places], words)
        return replaced
