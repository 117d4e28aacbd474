"""LABEL VECTORS → CLUSTERS: sparse label centroids, and a balanced spherical 2-means tree over them.

A label is described by the words of its points (PIFA). The tree halves its nodes level by level, so that the sizes
of clusters differ by at most one. All nodes of a level are split at once: the columns of the vectors are renumbered to
pairs (node, feature), and then the centres of all nodes are one vector and a round is a few products with it. Sparse
vectors are never made dense: a random projection to 256 dimensions gave looser clusters, and was quicker only for
smoothed vectors.

References: [Parabel], [AttentionXML], [ECLARE]; methods §4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.errors import DataError
from longtail.labels.blocks import assembled, edge_rows, finished, unit_rows
from longtail.labels.walk import normalised, random_walk
from longtail.types import Floats, Ints, LabelMatrix, no_pairs

LABELS_EACH = 8  # labels of a cluster, where nobody says how many clusters
MOST = 1000  # features of a label that are kept
WORK = 2**23  # multiply-adds of a block of a sparse product, and so its entries before the cut
ROUNDS = 30  # of one level at most
GAIN = 1e-4  # a level is finished when a round adds less to the mean similarity
CHUNK = 4096  # dense rows that are compared with their centres at once


def pifa(
    targets: LabelMatrix, bags: sp.csr_array, *, most: int = MOST, names: sp.csr_array | None = None
) -> sp.csr_array:
    """Sum the bags (N, V) of each label's points, weighed by their targets: (L, V), rows of length one or empty.

    The `most` largest features of a row are kept (among equals the first); entries must not be negative. Labels without
    a point take their row of `names` (L, V), the bags of their texts.

    >>> from longtail.types import label_matrix
    >>> bags = sp.csr_array(np.array([[1, 0, 0], [0.6, 0.8, 0]], np.float32))
    >>> targets = label_matrix(np.array([0, 2, 3]), np.array([0, 1, 0]), (2, 3))
    >>> pifa(targets, bags, most=1, names=sp.csr_array(np.eye(3, dtype=np.float32))).toarray()
    array([[1., 0., 0.],
           [1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    if targets.shape[0] != bags.shape[0] or (names is not None and names.shape != (targets.shape[1], bags.shape[1])):
        raise DataError(
            f"targets {targets.shape}, bags {bags.shape} and names {names.shape if names is not None else None}",
            remedy="give one bag a point, one name a label, and one vocabulary to both",
        )
    by_label = targets.T.tocsr()
    bags = unit_rows(bags)
    if names is None:
        return _product(by_label, bags, most)
    empty = np.flatnonzero(np.diff(by_label.indptr) == 0)
    own = sp.csr_array((np.ones(len(empty), np.float32), (empty, empty)), shape=(targets.shape[1],) * 2)
    return _product(sp.csr_array(sp.hstack([by_label, own])), sp.csr_array(sp.vstack([bags, unit_rows(names)])), most)


def smoothed(vectors: sp.csr_array, graph: sp.csr_array, *, most: int = MOST) -> sp.csr_array:
    """Mix the vectors (L, V) of neighbours: A · vectors, cut again, where A is the normalised graph (L, L).

    The graph is given as `random_walk`, `conditionals` or `similarity` return it.

    References: [ECLARE].

    >>> smoothed(sp.csr_array(np.eye(2, dtype=np.float32)), sp.csr_array(np.array([[3, 4], [0, 4]]))).toarray()
    array([[0.7745967, 0.6324555],
           [0.       , 1.       ]], dtype=float32)
    """
    if graph.shape != (vectors.shape[0],) * 2:
        raise DataError(f"a graph of shape {graph.shape} for {vectors.shape[0]} labels", remedy="give both one size")
    return _product(normalised(graph), vectors, most)


def partition(
    train: Split, words: Words, count: int | None, *, walk: Mapping[str, Any] | None = None, seed: int
) -> Clusters:
    """Put the labels of a data set into clusters by the words of its original points; None: about eight labels each.

    A `walk`, settings of `random_walk`, describes a label by its neighbours in the label graph too.
    """
    original = train.original
    bags = words.bag(original.need_texts("clusters"))
    names = None if original.labels.texts is None else words.bag(original.labels.texts)
    vectors = pifa(original.targets, bags, names=names)
    if walk is not None:
        vectors = smoothed(vectors, random_walk(original.targets, seed=seed, **walk))
    return Clusters.build(clusters(vectors, count or max(2, len(original.labels) // LABELS_EACH), seed=seed))


def clusters(vectors: sp.csr_array | Floats, count: int, *, seed: int, rounds: int = ROUNDS) -> Ints:
    """Put labels with vectors (L, V) or (L, D) into clusters of about equal size: (L,) the cluster of each.

    Each node of the tree starts from two of its labels drawn at random, gives the half that is nearer to one centre
    (relative to the other) to it, moves the centres to the mean directions, and repeats while the level gains. `count`
    is rounded down to a power of two and never more than the labels. The same seed gives the same clusters; equal
    labels go by their place. Few `rounds` make clusters that are a little worse, sooner.

    >>> clusters(np.array([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]], np.float32), 2, seed=1).tolist()
    [1, 0, 1, 0]
    """
    if count < 1:
        raise DataError(f"{count} clusters", remedy="ask for at least 1")
    labels = vectors.shape[0]
    rng = np.random.default_rng(seed)
    rows = unit_rows(vectors) if sp.issparse(vectors) else _unit_dense(vectors)
    order, starts = np.arange(labels), np.array([0, labels])
    while 2 * (len(starts) - 1) <= min(count, labels):
        level: _Level = _SparseLevel(rows, starts) if sp.issparse(rows) else _DenseLevel(rows, starts)
        midpoints = starts[:-1] + (np.diff(starts) + 1) // 2
        permutation = _halved(level, starts, midpoints, rng, rounds)
        rows, order = rows[permutation], order[permutation]
        starts = np.append(np.column_stack([starts[:-1], midpoints]).ravel(), labels)
    of = np.empty(labels, np.int32)
    of[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return of


@dataclass(frozen=True, eq=False)
class Clusters:
    """Which cluster each label is in, and which labels each cluster holds.

    >>> clustering = Clusters.build(np.array([1, 0, 1]))
    >>> clustering.labels_of(np.array([[1], [0]])).tolist()
    [[0, 2], [1, -1]]
    """

    of: Ints  # (L,)
    starts: NDArray[np.int64]  # (M + 1,)
    members: Ints  # (L,) the labels of cluster 0, of cluster 1 …, ascending in each

    @classmethod
    def build(cls, of: NDArray[Any]) -> Clusters:
        """Sort the labels by cluster."""
        sizes = np.bincount(of)
        return cls(of.astype(np.int32), np.append(0, np.cumsum(sizes)), np.argsort(of, kind="stable").astype(np.int32))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def table(self) -> Ints:
        """The labels of each cluster, padded with -1 to the largest; an extra row is all padding, (M + 1, width)."""
        sizes = np.diff(self.starts)
        padded = np.full((len(self) + 1, int(sizes.max(initial=0))), -1, np.int32)
        padded[self.of[self.members], np.arange(len(self.members)) - np.repeat(self.starts[:-1], sizes)] = self.members
        return padded

    def labels_of(self, chosen: NDArray[Any]) -> Ints:
        """List the labels of chosen clusters (…, c): (…, c · width), padded with -1; cluster -1 has none."""
        labels: Ints = self.table[chosen].reshape(*chosen.shape[:-1], chosen.shape[-1] * self.table.shape[1])
        return labels

    def merged(self, bags: sp.csr_array) -> sp.csr_array:
        """Sum the bags (L, V) of the labels of each cluster: (M, V), rows of length one or empty."""
        ones = np.ones(len(self.members), np.float32)
        members = sp.csr_array((ones, self.members, self.starts), shape=(len(self), len(self.of)))
        return unit_rows(sp.csr_array(members @ bags))

    def targets(self, label_targets: LabelMatrix) -> sp.csr_array:
        """Give each cluster the largest target of its labels: (B, L) to (B, M).

        References: methods A4.
        """
        points, width = label_targets.shape[0], len(self)
        rows = np.repeat(np.arange(points) * width, np.diff(label_targets.indptr))
        cells = rows + self.of[label_targets.indices]
        order = np.argsort(cells, kind="stable")
        cells = cells[order]
        begins = np.flatnonzero(np.diff(cells, prepend=-1))
        if len(begins) == 0:
            return no_pairs((points, width))
        values = np.maximum.reduceat(label_targets.data[order], begins).astype(np.float32)
        cells = cells[begins]
        ends = np.searchsorted(cells, np.arange(points + 1) * width).astype(label_targets.indptr.dtype)
        return assembled(values, (cells % width).astype(np.int32), ends, (points, width))


class _Level(Protocol):
    """Nodes of one level, their labels side by side."""

    def compared(self, first: Floats, second: Floats) -> tuple[float, Floats]:
        """Centre each node on its labels weighed by `first`, and on those by `second`, (L,) each.

        Return the sum of the lengths of all centres before they are normalised (with weights of 0 and 1, the similarity
        of all labels to their centres) and for each label its similarity to the second centre less that to the first.
        """


class _SparseLevel:
    """Sparse rows whose columns are renumbered to pairs (node, feature) that occur."""

    def __init__(self, rows: sp.csr_array, starts: NDArray[Any]) -> None:
        nodes, features = len(starts) - 1, rows.shape[1]
        joined = assembled(
            np.arange(rows.nnz, dtype=rows.indptr.dtype), rows.indices, rows.indptr[starts], (nodes, features)
        )
        sorted_cells = joined.tocsc().tocsr()  # two counting sorts: by feature in each node
        new = np.ones(rows.nnz, np.bool_)
        np.not_equal(sorted_cells.indices[1:], sorted_cells.indices[:-1], out=new[1:])
        begins = sorted_cells.indptr[:-1]
        new[begins[begins < rows.nnz]] = True
        places = np.empty(rows.nnz, np.int32)
        places[sorted_cells.data] = np.cumsum(new) - 1
        pairs = int(new.sum())
        self.cells = assembled(rows.data, places, rows.indptr, (rows.shape[0], pairs))
        self.node_of_pair = np.repeat(np.arange(nodes), np.diff(np.append(0, np.cumsum(new))[sorted_cells.indptr]))
        self.nodes = nodes

    def compared(self, first: Floats, second: Floats) -> tuple[float, Floats]:
        between, lengths = np.zeros(self.cells.shape[1], np.float32), 0.0
        for weights, sign in ((second, 1), (first, -1)):
            centre = self.cells.T @ weights
            length = np.sqrt(np.bincount(self.node_of_pair, centre * centre, self.nodes))
            lengths += float(length.sum())
            between += centre * (sign / np.maximum(length, 1e-12)).astype(np.float32)[self.node_of_pair]
        return lengths, self.cells @ between


class _DenseLevel:
    """Dense rows."""

    def __init__(self, rows: Floats, starts: NDArray[Any]) -> None:
        self.rows, self.starts = rows, starts
        self.nodes = np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    def compared(self, first: Floats, second: Floats) -> tuple[float, Floats]:
        labels = len(self.rows)
        between, lengths = np.zeros((len(self.starts) - 1, self.rows.shape[1]), np.float32), 0.0
        for weights, sign in ((second, 1), (first, -1)):
            shape = (len(self.starts) - 1, labels)
            centre = assembled(weights, np.arange(labels), self.starts, shape) @ self.rows
            length = np.linalg.norm(centre, axis=1, keepdims=True)
            lengths += float(length.sum())
            between += centre * (sign / np.maximum(length, 1e-12))
        margins = np.empty(labels, np.float32)
        for start in range(0, labels, CHUNK):
            some = slice(start, start + CHUNK)
            margins[some] = np.einsum("ld,ld->l", self.rows[some], between[self.nodes[some]])
        return lengths, margins


def _halved(
    level: _Level, starts: NDArray[Any], midpoints: NDArray[Any], rng: np.random.Generator, rounds: int
) -> NDArray[np.int64]:
    """Order the labels of each node so that its first half (up to the middle) is one child."""
    sizes, labels = np.diff(starts), int(starts[-1])
    nodes = np.repeat(np.arange(len(sizes)), sizes)
    one = rng.integers(sizes)
    other = rng.integers(sizes - 1)
    first, second = np.zeros(labels, np.float32), np.zeros(labels, np.float32)
    first[starts[:-1] + one] = 1
    second[starts[:-1] + other + (other >= one)] = 1  # never the same label
    in_first = np.arange(labels) < midpoints[nodes]
    permutation, before = np.arange(labels), -1.0
    for round_number in range(rounds):
        lengths, margins = level.compared(first, second)
        if round_number and lengths - before < GAIN * labels:
            break
        before = lengths if round_number else before
        permutation = np.lexsort((margins, nodes))  # stable: equal labels keep their order
        first = np.zeros(labels, np.float32)
        first[permutation] = in_first
        second = 1 - first
    return permutation


def _product(left: sp.csr_array, right: sp.csr_array, most: int) -> sp.csr_array:
    """Multiply in blocks of rows, keep the `most` largest entries of each row, and scale it to length one."""
    if most < 1:
        raise DataError(f"most {most}", remedy="keep at least 1 feature a label")
    parts = [_cut(sp.csr_array(left[start:end] @ right), most) for start, end in _blocks(left, right)]
    if not parts:
        return no_pairs((0, right.shape[1]))
    return unit_rows(sp.csr_array(sp.vstack(parts, format="csr")))


def _blocks(left: sp.csr_array, right: sp.csr_array) -> Iterator[tuple[int, int]]:
    """Cut the rows of `left` where the multiply-adds reach WORK; a block holds at least one row."""
    work = np.append(0, np.cumsum(np.diff(right.indptr)[left.indices], dtype=np.int64))[left.indptr]
    start = 0
    while start < left.shape[0]:
        end = max(start + 1, int(np.searchsorted(work, work[start] + WORK, side="right")) - 1)
        yield start, end
        start = end


def _cut(matrix: sp.csr_array, most: int) -> sp.csr_array:
    """Keep the `most` largest entries of each row, columns ascending."""
    kept = finished(
        np.arange(matrix.shape[0]), edge_rows(matrix), matrix.indices, matrix.data, top=most, own=False
    )  # fmt: skip
    return assembled(kept.values, kept.columns, np.append(0, np.cumsum(kept.sizes)), matrix.shape)


def _unit_dense(vectors: Floats) -> Floats:
    """Scale dense rows to length one; zero rows stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)
