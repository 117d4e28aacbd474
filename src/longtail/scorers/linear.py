"""TEXT → LABELS BY LINEAR CLASSIFIERS over words, in trees of labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.arrays import Array, ascends, checked, number, places
from longtail.data.tokens import Words
from longtail.errors import ModelError
from longtail.files import read_arrays, released, write_arrays
from longtail.machine import in_threads
from longtail.parts import Proposals, Query
from longtail.search.inverted import Bags
from longtail.types import Floats, Ints, rows_of

FILE = "linear.safetensors"
BLOCK = 512  # queries that a thread works on at once
TEMPER = np.float32(
    0.5
)  # probabilities to this power are scores, so that what is added to others is not all or nothing
MOST_TREES = 1000
BYTES = 256  # children of a node that a byte tells apart
SCHEMA = (
    places("roots", "trees", "nodes", dtypes=("int32",)), Array("firsts", ("nodes+1",), ("int64",), 0, np.inf),
    Array("below", ("slots",), ("int32",), -(2**31), below="nodes"), Array("biases", ("slots",)),
    Array("starts", ("vocabulary+1",), ("int64",), 0, np.inf), places("owners", "terms", "nodes", dtypes=("int32",)),
    Array("ends", ("terms",), ("int64",), 0, np.inf), Array("children", ("entries",), ("int32",), 0),
    Array("weights", ("entries",)),
)  # fmt: skip
NEW_SLOPE, NEW_BIAS = 2.0, -1.0  # a new label's row: its own text has margin 1, a text without its words -1


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees of labels; a word names the nodes that weigh it, and what it is worth to their children."""

    roots: Ints  # (T,) nodes
    firsts: NDArray[np.int64]  # (I + 1,) the first child of each node
    below: Ints  # (S,) the node behind each child, or -1 - its label
    biases: Floats  # (S,)
    starts: NDArray[np.int64]  # (V + 1,) where the nodes of each word start
    owners: Ints  # (F,) nodes, ascending for each word
    ends: NDArray[np.int64]  # (F,) where the entries of a word and a node end
    children: NDArray[Any]  # (E,) places among the children of the node; bytes when they are served, if these suffice
    weights: Floats  # (E,)

    @classmethod
    def of_rows(
        cls, roots: Ints, firsts: NDArray[np.int64], below: Ints, biases: Floats, rows: sp.csr_array
    ) -> Forest:  # fmt: skip
        """Turn a row for each child, (S, V), into a list for each word."""
        by_word = sp.csr_array(rows.T)
        by_word.sort_indices()
        owner = np.repeat(np.arange(len(firsts) - 1, dtype=np.int32), np.diff(firsts))[by_word.indices]
        new = np.ones(len(owner), np.bool_)  # where a word, or its next node, begins
        new[1:] = owner[1:] != owner[:-1]
        new[by_word.indptr[:-1][np.diff(by_word.indptr) > 0]] = True
        places = np.flatnonzero(new)
        return cls(
            roots, firsts, below, biases, np.append(0, np.cumsum(new))[by_word.indptr], owner[places],
            np.append(places[1:], len(owner)).astype(np.int64)[: len(places)],
            (by_word.indices - firsts[owner]).astype(np.int32), by_word.data,
        )  # fmt: skip

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name the arrays for a model file."""
        return {own.name: getattr(self, own.name) for own in fields(self)} | {
            "children": self.children.astype(np.int32)
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], labels: int, vocabulary: int) -> Forest:
        """Put the arrays of a model file together, after checking that every place that they name is there."""
        forest = cls(*checked(arrays, SCHEMA, vocabulary=vocabulary))
        forest.check(labels)
        if forest.widest > BYTES:
            return forest
        bytes_of = forest.children.astype(np.uint8)  # the cache holds four times as many
        released(forest.children)
        return replace(forest, children=bytes_of)

    def check(self, labels: int) -> None:
        """Refuse arrays that lead a search astray."""
        nodes, slots, terms, entries = len(self.firsts) - 1, len(self.below), len(self.owners), len(self.weights)
        sound = 0 < len(self.roots) <= MOST_TREES and nodes > 0 and int(self.below.min(initial=0)) >= -labels
        sound = sound and ascends(self.firsts, 0, slots) and ascends(self.starts, 0, terms)
        sound = sound and ascends(self.ends, None, entries)
        if sound:
            # A child stands behind the node that it belongs to, so that every way down ends.
            behind = np.repeat(np.arange(nodes), np.diff(self.firsts))
            sound = bool(((self.below < 0) | (self.below > behind)).all())
            begins = np.append(0, self.ends[:-1])
            some = self.ends > begins
            if sound and some.any():  # entries are not counted one by one: there may be many millions
                largest = np.maximum.reduceat(self.children, begins[some])
                sound = bool((largest < np.diff(self.firsts)[self.owners[some]]).all())
        if not sound:
            raise ModelError(f"{FILE}: the trees of the model are damaged; train again")

    @cached_property
    def widest(self) -> int:
        """The most children that a node has."""
        return int(np.diff(self.firsts).max())

    @cached_property
    def parents(self) -> Ints:
        """The node that each child belongs to."""
        return np.repeat(np.arange(len(self.firsts) - 1, dtype=np.int32), np.diff(self.firsts))

    def paths(self, labels: int) -> Ints:
        """List the children on the way to each label, from the last to the first: (T, L, depth), -1 behind the end."""
        inner = np.flatnonzero(self.below >= 0)
        above = np.full(len(self.firsts) - 1, -1, np.int32)  # the child that leads to each node; the roots have none
        above[self.below[inner]] = inner
        last = np.flatnonzero(self.below < 0).astype(np.int32)
        ways, roots = [last], self.parents[last]
        while len(ways) < len(self.firsts) and (further := above[roots] >= 0).any():
            ways.append(np.where(further, above[roots], -1).astype(np.int32))
            roots = np.where(further, self.parents[ways[-1]], roots)
        tree = np.zeros(len(self.firsts) - 1, np.int64)
        tree[self.roots] = np.arange(len(self.roots))
        paths = np.full((len(self.roots), labels, len(ways)), -1, np.int32)
        paths[tree[roots], -1 - self.below[last]] = np.stack(ways, axis=1)
        return paths


@dataclass(frozen=True, eq=False)
class LinearScorer:
    """Linear classifiers over words in trees of labels. A score is the root of the probability of a label."""

    words: Words
    forest: Forest
    count: int  # of labels
    beam: int  # nodes of a level that are followed

    def __len__(self) -> int:
        return self.count

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text."""
        bags = query.lists(self.words)
        labels, scores = np.full((len(query), k), -1, np.int32), np.full((len(query), k), -np.inf, np.float32)

        def work(block: slice) -> None:
            self._search(bags, block.start, labels[block], scores[block])

        for _ in in_threads(work, query.blocks(BLOCK)) if len(query) > BLOCK else map(work, query.blocks(BLOCK)):
            pass
        known = labels >= 0
        scores[known] **= TEMPER
        return labels, scores

    def _search(self, bags: Bags, first: int, labels: Ints, scores: Floats) -> None:
        """Find the best labels of the bags from the first on, and their probabilities."""
        from longtail.scorers.beam import search  # noqa: PLC0415  (numba is an extra)

        forest = self.forest
        search(
            *bags, first, forest.roots, forest.firsts, forest.starts, forest.owners, forest.ends, forest.children,
            forest.weights, forest.biases, forest.below, self.beam, forest.widest, labels, scores,
        )  # fmt: skip

    def scores(self, query: Query, k: int) -> sp.csr_array:
        """Score many texts: (N, L) with the k best labels of each as stored entries."""
        return rows_of(*self.top(query, k), self.count)

    def candidates(self, query: Query, k: int, also: NDArray[Any] | None = None) -> Proposals:
        """Score the k best labels of the only text, and the labels `also` anyway."""
        labels, scores = np.empty((1, k), np.int32), np.zeros((1, k), np.float32)
        self._search(query.lists(self.words), 0, labels, scores)
        count = np.count_nonzero(scores)
        own = labels[0, :count].astype(np.int64)
        if also is None:
            return Proposals(own, scores[0, :count] ** TEMPER)
        return Proposals(chosen := np.union1d(own, also), self._score(query, chosen)[0])

    def unbounded(self, query: Query, label: int, whole: Proposals) -> float:
        """Score a label of the only text, and add how far its margins lie above those that suffice."""
        scores, spare = self._score(query, np.array([label]))
        return float(scores[0] + spare[0])

    def _score(self, query: Query, chosen: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Score chosen labels of the only text; returns how far their margins lie above 1 too."""
        from longtail.scorers.beam import score  # noqa: PLC0415

        (_, words, weights), forest = query.lists(self.words), self.forest
        scores, spare = np.zeros(len(chosen), np.float32), np.zeros(len(chosen), np.float32)
        if len(words) == 0:
            return scores, spare  # nothing is known of the text
        score(
            words, weights, self._paths, forest.parents, chosen, forest.firsts, forest.starts, forest.owners,
            forest.ends, forest.children, forest.weights, forest.biases, scores, spare,
        )  # fmt: skip
        return scores**TEMPER, spare

    @cached_property
    def _paths(self) -> Ints:
        """The children on the way to each label."""
        return self.forest.paths(self.count)

    def added(self, similar: Floats, proposed: Proposals | None) -> Floats:
        """Score labels that came after training by the similarity of their texts: a row that starts from the text."""
        short = np.maximum(0, 1 - (NEW_SLOPE * similar + NEW_BIAS))
        return np.asarray(np.exp(-TEMPER * short * short), np.float32)

    def save(self, folder: Path) -> None:
        """Write the trees into a model folder; words that are not its own are written by their owner."""
        if self.words.pairs:
            self.words.save(folder)
        write_arrays(folder / FILE, self.forest.arrays() | {"labels": np.array([self.count], np.int64)})

    @classmethod
    def load(cls, folder: Path, words: Words, beam: int) -> LinearScorer:
        """Open what `save` wrote."""
        arrays = read_arrays(folder / FILE)
        (count,) = checked(arrays, (number("labels", 1, len(arrays.get("below", ())), ("int64",)),))
        return cls(words, Forest.of_arrays(arrays, int(count[0]), len(words)), int(count[0]), beam)
