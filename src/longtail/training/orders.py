"""POINTS → THEIR ORDER IN AN EPOCH: shuffled, texts of one length together, or similar points side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.labels.tree import ROUNDS, clusters
from longtail.parts import Arrays, BatchOrder, BuiltOrder, Fit, Network
from longtail.records import record

FEW_ROUNDS = 3  # of clustering points by words at each level: neighbours in a batch need not be the nearest


@record
class Shuffled(BatchOrder):
    """Every order is as likely."""

    part: ClassVar[str] = "shuffled"

    def build(self, fit: Fit, batch_size: int) -> BuiltOrder:
        """Make ready."""
        return _Shuffled(len(fit.points.inputs))


class _Shuffled(BuiltOrder):
    """Draws an order."""

    def __init__(self, count: int) -> None:
        self.count = count

    def rows(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """Draw an order."""
        return draw.permutation(self.count)


@record
class Lengths(BatchOrder):
    """Texts of about one length share a batch, so that little of it is padding; else the order is drawn."""

    part: ClassVar[str] = "lengths"
    window: int = Field(default=16, ge=1)  # batches, drawn together, whose texts are sorted by length

    def build(self, fit: Fit, batch_size: int) -> BuiltOrder:
        """Count the words of texts."""
        words = [text.count(" ") for text in fit.train.need_texts("batches")]
        return _Lengths(np.array(words, np.int64), batch_size, self.window * batch_size)


class _Lengths(BuiltOrder):
    """Draws an order, sorts stretches of it, and draws the order of batches."""

    def __init__(self, words: NDArray[np.int64], batch_size: int, window: int) -> None:
        self.words, self.batch_size, self.window = words, batch_size, window

    def rows(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """Draw an order."""
        drawn = draw.permutation(len(self.words))
        stretches = [drawn[start : start + self.window] for start in range(0, len(drawn), self.window)]
        rows = np.concatenate([own[np.argsort(self.words[own], kind="stable")] for own in stretches])
        whole = len(rows) // self.batch_size * self.batch_size
        batches = draw.permutation(rows[:whole].reshape(-1, self.batch_size))
        return np.concatenate([batches.ravel(), rows[whole:]])  # a batch that is not full comes last


@record
class Similar(BatchOrder):
    """Groups of similar points stand side by side: their labels are hard negatives for each other.

    Points are similar by their words, or by the vectors that the network makes of them, which are clustered again every
    `refresh` epochs. Groups are those of a tree that is halved again and again, so that they are of one size; with
    `double_every` they grow. References: [NGAME], [UniDEC] §2.3.2; methods §5.8, §5.16.
    """

    part: ClassVar[str] = "similar"
    by: Literal["words", "vectors"] = "words"  # what makes points similar
    group: int | None = Field(default=32, ge=1)  # similar points that stand together; None: a batch
    refresh: int = Field(default=5, ge=1)  # epochs after which vectors are clustered again
    double_every: int | None = Field(default=None, ge=1)  # epochs after which groups are twice as large

    def build(self, fit: Fit, batch_size: int) -> BuiltOrder:
        """Put the points into clusters of their words, or wait for vectors."""
        order = _Similar(self, batch_size)
        if self.by == "words":
            order.cluster(fit.words.bag(fit.train.need_texts("batches")), fit.seed, FEW_ROUNDS)
        return order


class _Similar(BuiltOrder):
    """The points as they stand in the leaves of a tree."""

    def __init__(self, settings: Similar, batch_size: int) -> None:
        self.settings, self.batch_size = settings, batch_size
        self.similar = np.zeros(0, np.int64)

    def cluster(self, vectors: Any, seed: int, rounds: int = ROUNDS) -> None:
        """Halve the points until the smallest groups are reached."""
        smallest = max(2, min(self.settings.group or self.batch_size, self.batch_size))
        count = max(1, vectors.shape[0] // smallest)
        self.similar = np.argsort(clusters(vectors, count, seed=seed, rounds=rounds), kind="stable")

    def group(self, epoch: int) -> int:
        """Return how many points stand side by side in an epoch."""
        start, doubling = self.settings.group or self.batch_size, self.settings.double_every
        return start if doubling is None else max(start, min(start << min(epoch // doubling, 30), self.batch_size))

    def on_epoch(self, epoch: int, network: Network) -> None:
        """Cluster the vectors of all points again, where it is time."""
        if self.settings.by == "vectors" and epoch % self.settings.refresh == 0:
            self.cluster(network.vectors(network.points.inputs), network.fit.seed + epoch)

    def rows(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """Cut the row of leaves into groups, somewhere else in each epoch, and shuffle these."""
        group = self.group(epoch)
        shifted = np.roll(self.similar, -int(draw.integers(0, group)))
        whole = len(shifted) // group * group
        groups = draw.permutation(shifted[:whole].reshape(-1, group))
        return np.concatenate([groups.ravel(), shifted[whole:]])  # the rest last, so that batches begin with groups

    def state(self) -> Arrays:
        """Name the order of leaves, where it depends on vectors that are gone."""
        return {"similar": self.similar.astype(np.int32)} if self.settings.by == "vectors" else {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take the order of leaves from a checkpoint."""
        if "similar" in arrays:
            self.similar = arrays["similar"].astype(np.int64)
