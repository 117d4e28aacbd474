"""WORDS × LABELS → SPARSE ROWS: one linear classifier for each label over TF-IDF words, in trees of labels.

Labels that their points describe alike are put together, level by level, down to a few dozen. Every child of a node is
told from its siblings on the points of the node: so a label's negatives are the points of similar labels, and the way
to them decides the rest. The work grows with the points of labels times the children of a node, not with all labels.

References: [Parabel], [PECOS]; methods §4.2.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.files import read_arrays, write_arrays
from longtail.labels.blocks import unit_rows
from longtail.labels.tree import Clusters, clusters, pifa
from longtail.machine import COMPILER, cores, in_threads, need
from longtail.parts import Run, Voice
from longtail.records import Cost, Sizes, record
from longtail.scorers.linear import Forest, LinearScorer
from longtail.shards import Group, world
from longtail.types import Floats, Ints, LabelMatrix, Progress, without

TEXT_SHARE = 0.5  # of a label's text in what it is clustered by, beside its points
WORK = 2e8  # entries of points × children of a block
MOST_TREES = 20
ENTRY = 12  # bytes of an entry of a row
OVERHEAD = 0.4  # seconds of a fit of whatever size
SOON = 30.0  # seconds of work that may be lost, from the beginning: files of blocks are not for nothing
Rows = tuple[NDArray[np.int64], Ints, Floats, Floats]  # of children: ends, words, weights, biases


@record
class Linear(Voice):
    """Settings of the linear classifiers."""

    part: ClassVar[str] = "linear"
    usual: ClassVar[float] = 0.5
    trees: int = Field(default=3, ge=1, le=MOST_TREES)  # with clusters of their own; their probabilities are averaged
    leaf: int = Field(default=64, ge=2)  # labels of a lowest node, at most
    branching: int = Field(default=32, ge=2)  # children of the nodes above
    penalty: float = Field(default=1.0, gt=0)  # of an error, beside the length of a row: C
    iterations: int = Field(default=10, ge=1)  # over the points of a node
    tolerance: float = Field(default=0.1, gt=0)  # of the solver
    prune: float = Field(default=0.1, ge=0)  # smaller weights are dropped
    beam: int = Field(default=10, ge=1, le=1000)  # nodes of a level that a search follows
    pairs: bool = False  # pieces of names and pairs of words count too

    def check(self, recipe: Any) -> None:
        """Ask for the compiler of the solver."""
        need("numba", "linear")

    def brief(self) -> Self:
        """Take one tree: what one gains from other points, several do."""
        return replace(self, trees=1)

    def choose(
        self, train: Split, validation: Split | None, words: Words, **run: Unpack[Run]
    ) -> tuple[Self, LinearScorer | None]:
        """Settle nothing; where validation points were held out, fit to the others."""
        return self, None if validation is None else self.fit(train, words, **run)

    def fit(self, train: Split, words: Words, **run: Unpack[Run]) -> LinearScorer:
        """Cluster the labels and train the classifiers, tree by tree."""
        seed, scratch = run.get("seed", 0), run.get("scratch")
        names, texts = train.labels.texts, train.need_texts("linear")
        words = words.paired if self.pairs else words
        bags, original = words.bag(texts), train.original
        vectors = pifa(original.targets, words.bag(original.need_texts("linear")))
        if names is not None:
            vectors = unit_rows(sp.csr_array(vectors + np.float32(TEXT_SHARE) * unit_rows(words.bag(names))))
        key = hashlib.sha256(f"{train.fingerprint} {self.dump()} {seed}".encode()).hexdigest()[:16]
        own = None if scratch is None else scratch / f"linear-{key}"
        grower = _Grower(self, bags, train.targets, train.excluded, own, run.get("progress"))
        trees = []
        for tree in range(self.trees):
            levels = self.levels(vectors, seed=seed * MOST_TREES + tree)
            trees.append(grower.grow(levels, f"tree {tree + 1} of {self.trees}"))
        if own is not None and world().first:
            shutil.rmtree(own, ignore_errors=True)
        return LinearScorer(words, _joined(trees), len(train.labels), self.beam)

    def levels(self, vectors: sp.csr_array, *, seed: int) -> list[Clusters]:
        """Cluster labels, from the coarsest level to the finest; none where one node holds them all."""
        count = 1
        while count * self.leaf < vectors.shape[0]:
            count *= 2
        if count == 1:
            return []
        finest = clusters(vectors, count, seed=seed)
        halvings = count.bit_length() - 1
        depth = -(-halvings // (self.branching.bit_length() - 1))  # of nodes with about as many children each
        cuts = [halvings * (depth - level) // depth for level in range(1, depth + 1)]
        return [Clusters.build(finest >> cut) for cut in cuts]

    def load(self, folder: Path, words: Words) -> LinearScorer:
        """Open the scorer of a model folder."""
        return LinearScorer.load(folder, words.paired if self.pairs else words, self.beam)

    def cost(self, sizes: Sizes) -> Cost:
        """Count the entries of rows, most of them of words of a label's own points, and those that a solver reads.

        Points with many words are told apart in fewer passes. The time is that of two fits: held-out points come first.
        """
        words = sizes.words * (2.5 if self.pairs else 1)
        entries = self.trees * (1.5 * sizes.pairs * words + 16 * sizes.labels)
        read = self.trees * sizes.pairs * words**0.5 * (self.leaf + self.branching) * self.iterations / 4
        return Cost(memory=COMPILER + 3 * ENTRY * entries, disk=ENTRY * entries, seconds=OVERHEAD + read * 1e-8)


@dataclass(frozen=True, eq=False)
class _Grower:
    """Trains the classifiers of trees over the same points."""

    settings: Linear
    bags: sp.csr_array  # (N, V)
    targets: LabelMatrix  # (N, L)
    excluded: LabelMatrix  # (N, L)
    scratch: Path | None
    progress: Progress | None
    began: float = field(default_factory=time.monotonic)

    def grow(self, levels: list[Clusters], name: str) -> _Nodes:
        """Train one tree, level by level: children that are nodes follow in the order of their clusters."""
        parts: list[_Nodes] = []
        points, labels = self.targets.shape
        groups = sp.csr_array(
            (np.ones(points, np.float32), np.arange(points, dtype=np.int32), np.array([0, points])), shape=(1, points)
        )
        nodes_before = 0
        for depth in range(len(levels) + 1):
            above = np.zeros(labels, np.int32) if depth == 0 else levels[depth - 1].of
            if depth < len(levels):
                partition = levels[depth]
                targets = partition.targets(self.targets)
                excluded = without(partition.targets(self.excluded), targets)
                owners = above[partition.members[partition.starts[:-1]]]  # of each child
                below = np.arange(len(partition), dtype=np.int32) + np.int32(nodes_before + groups.shape[0])
            else:
                order = np.argsort(above, kind="stable")  # labels by node
                targets, excluded = self.targets[:, order], self.excluded[:, order]
                owners, below = above[order], (-1 - order).astype(np.int32)
            firsts = np.searchsorted(owners, np.arange(groups.shape[0] + 1)).astype(np.int64)
            by_child = sp.csr_array(targets.T)
            rows = self._solved(firsts, groups, by_child, sp.csr_array(excluded.T), f"{name}, level {depth + 1}")
            ends, words, values, biases = rows
            starts = np.append(0, ends)
            parts.append(
                _Nodes(firsts, below, biases, sp.csr_array((values, words, starts), (len(below), self.bags.shape[1])))
            )
            nodes_before += groups.shape[0]
            groups = by_child
        return _Nodes.stacked(parts)

    def _solved(
        self, firsts: NDArray[np.int64], groups: sp.csr_array, targets: sp.csr_array, excluded: sp.csr_array, name: str
    ) -> Rows:
        """Solve for the children of all nodes of a level, in blocks that are kept in the scratch folder."""
        from longtail.classifiers.solver import solve_children  # noqa: PLC0415  (numba is an extra)

        group, settings = world(), self.settings
        blocks = list(_blocks(firsts, groups, self.bags, _all_cores(group)))

        def work(block: NDArray[np.int64]) -> Rows:
            which = f"{name} {block[0, 1]} {block[-1, 2]}"  # children: other processes may cut other blocks
            file = None if self.scratch is None else self.scratch / f"{which}.safetensors".replace(" ", "-")
            if file is not None and file.exists():
                arrays = read_arrays(file)
                return arrays["ends"], arrays["words"], arrays["values"], arrays["biases"]
            found = solve_children(
                self.bags.indptr, self.bags.indices, self.bags.data, self.bags.shape[1], block,
                groups.indptr, groups.indices, targets.indptr, targets.indices, targets.data,
                excluded.indptr, excluded.indices,
                settings.penalty, settings.iterations, settings.tolerance, settings.prune, 1,
            )  # fmt: skip
            if file is not None and time.monotonic() - self.began >= SOON:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_arrays(file, dict(zip(("ends", "words", "values", "biases"), found, strict=True)))
            return found

        solved, own = [], blocks[group.rank :: group.size]
        for done, rows in enumerate(in_threads(work, own), 1):
            solved.append(rows)
            if self.progress is not None:
                self.progress(f"linear classifiers, {name}", done, len(own))
        solved = _from_all(solved, len(blocks), group)
        before = np.cumsum([0, *(len(words) for _, words, _, _ in solved)])
        ends = [rows[0] + start for rows, start in zip(solved, before, strict=False)]
        joined = [np.concatenate([rows[place] for rows in solved]) for place in (1, 2, 3)]
        return np.concatenate(ends), joined[0], joined[1], joined[2]


def _all_cores(group: Group) -> int:
    """Count the cores of all processes."""
    if group.alone:
        return cores()
    import torch  # noqa: PLC0415

    return int(group.sum_(torch.tensor(cores())))


def _from_all(solved: list[Rows], blocks: int, group: Group) -> list[Rows]:
    """Put the blocks of all processes, each of which has solved every so-manyth, into order."""
    if group.alone:
        return solved
    import torch  # noqa: PLC0415

    found: list[list[Any]] = [[] for _ in range(blocks)]
    for place, kind in enumerate((np.int64, np.int32, np.float32, np.float32)):  # as Rows are
        arrays = [np.zeros(0, kind), *(np.asarray(rows[place], kind) for rows in solved)]
        sizes = np.array([len(array) for array in arrays[1:]], np.int64)
        every = [group.gather(torch.from_numpy(part)) for part in (sizes, np.concatenate(arrays))]
        for rank, (each, values) in enumerate(zip(*every, strict=True)):
            for block, array in zip(found[rank :: group.size], values.split(each.tolist()), strict=True):
                block.append(array.numpy())
    return [(ends, words, values, biases) for ends, words, values, biases in found]


def _blocks(
    firsts: NDArray[np.int64], groups: sp.csr_array, bags: sp.csr_array, workers: int
) -> Iterator[NDArray[np.int64]]:
    """Cut the children of nodes, in order, into blocks of about equal work: (node, first child, behind the last)."""
    entries = np.append(0, np.cumsum(np.diff(bags.indptr)[groups.indices] + 1))[groups.indptr]
    sizes = np.diff(entries).astype(np.float64)  # of what a solver reads for one child
    limit = min(WORK, max(float(sizes @ np.diff(firsts)) / (4 * workers), 1.0))
    block: list[tuple[int, int, int]] = []
    work = 0.0
    for node in range(len(firsts) - 1):
        first, behind = int(firsts[node]), int(firsts[node + 1])
        step = max(1, int(limit // max(sizes[node], 1.0)))
        for start in range(first, behind, step):
            end = min(start + step, behind)
            block.append((node, start, end))
            work += sizes[node] * (end - start)
            if work >= limit:
                yield np.array(block, np.int64)
                block, work = [], 0.0
    if block:
        yield np.array(block, np.int64)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes of trees, with a row for each child: (S, V)."""

    firsts: NDArray[np.int64]  # (I + 1,) the first child of each
    below: Ints  # (S,) the node behind each child, or -1 - its label
    biases: Floats  # (S,)
    rows: sp.csr_array

    @classmethod
    def stacked(cls, parts: list[_Nodes]) -> _Nodes:
        """Put nodes one after the other; the nodes that they name must be right already."""
        slots = np.cumsum([0, *(len(part.below) for part in parts)])
        return cls(
            firsts=np.concatenate([[0], *(part.firsts[1:] + start for part, start in zip(parts, slots, strict=False))]),
            below=np.concatenate([part.below for part in parts]),
            biases=np.concatenate([part.biases for part in parts]),
            rows=sp.csr_array(sp.vstack([part.rows for part in parts])),
        )


def _joined(trees: list[_Nodes]) -> Forest:
    """Put trees side by side."""
    before = np.cumsum([0, *(len(tree.firsts) - 1 for tree in trees)])
    moved = [
        replace(tree, below=np.where(tree.below >= 0, tree.below + start, tree.below).astype(np.int32))
        for tree, start in zip(trees, before, strict=False)
    ]
    every = _Nodes.stacked(moved)
    return Forest.of_rows(before[:-1].astype(np.int32), every.firsts, every.below, every.biases, every.rows)
