"""VECTOR → NEAREST LABELS AND POINTS → CANDIDATES, as Astec finds them.

Labels are near if the mean of their points is, or if points near the text carry them; both are found in the vectors of
the encoder. References: [Astec]; methods §4.3 (3), §5.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from longtail.arrays import Array, ascends, checked, matrix_arrays, matrix_of, number, places
from longtail.errors import ModelError
from longtail.labels.blocks import assembled, edge_rows
from longtail.labels.tree import clusters
from longtail.parts import Arrays, FrozenTower, Query
from longtail.search.exact import largest, unit
from longtail.search.nearest import Find, Hits, among
from longtail.types import Floats, Ints, LabelMatrix, rows_of

BLOCK = 1024  # points that are fused at once
CROWD = 7500  # a label with more points may have several centroids
GAMMA, KEEP = 0.075, 500  # the weight of points, and the labels kept of each shortlist
STEEP = 5  # of the probability of a cosine. References: [SiameseXML]
BETAS = np.linspace(0.1, 0.9, 9)
BETA = 0.5  # where no validation points decide
SCHEMA = (
    Array("near.centroids", ("centroids", "width")), places("near.labels", "centroids", "labels", dtypes=("int32",)),
    Array("near.points", ("points", "width")), number("near.beta", 0, 1),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class NearRetriever:
    """Label centroids and training points in the space of the encoder."""

    centroids: Floats  # (R, D), length one, or the sum of two such: of points and of texts
    label_of: Ints  # (R,) the label of each, ascending
    points: Floats  # (N, D), length one
    targets: LabelMatrix  # (N, L)
    beta: float  # share of the label rows in the score
    undecided: bool  # whether validation points are to choose beta
    gamma: float = GAMMA  # share of the points in the shortlist
    neighbours: int = 50  # nearest points that are asked for their labels
    keep: int = KEEP  # candidates of a text

    def __len__(self) -> int:
        return int(self.targets.shape[1])

    @classmethod
    def build(
        cls, vectors: Floats, targets: LabelMatrix, *, beta: float | None, texts: Floats | None = None, most: int = 1,
        **settings: Any,
    ) -> NearRetriever:  # fmt: skip
        """Average the vectors of the points of each label, and add those of its text, if any: similarities add up.

        A label with a crowd of points has `most` centroids.
        """
        label_of, rows = centroids(targets, vectors, most=most)
        rows = rows if texts is None else rows + texts[label_of]
        lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return cls(rows, label_of, vectors / lengths, targets, BETA if beta is None else beta, beta is None, **settings)

    def propose(self, query: Query, tower: FrozenTower) -> sp.csr_array:
        """List what is near each text (N, L); entries are the fused similarities."""
        return self.near(tower.encode(query))

    def near(self, vectors: Floats) -> sp.csr_array:
        """List what is near each vector (N, L)."""
        keep = min(self.keep, self.targets.shape[1])
        # Fewer labels than are kept: with a small gamma, labels that only points bring would otherwise never get in.
        by_label = self._labels(unit(vectors), max(1, round(0.75 * keep)))
        by_point = self._points(vectors, min(self.neighbours, len(self.points)))
        several = self.label_of if len(self.label_of) > self.targets.shape[1] else None
        proposed = fuse(by_label, by_point, self.targets, self.gamma, keep, label_of=several)
        proposed.sort_indices()
        return proposed

    @cached_property
    def _labels(self) -> Find:
        """Finds the nearest labels."""
        return among(self.centroids, cosine=False)  # with texts they are sums of two directions

    @cached_property
    def _points(self) -> Find:
        """Finds the nearest points."""
        return among(self.points)

    def beyond(self, query: Query, tower: FrozenTower, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Return the similarity to the centroids of labels that are not proposed; no near point has them."""
        vectors = tower.encode(query)
        starts = np.searchsorted(self.label_of, np.append(labels, self.targets.shape[1]))[:-1]
        sizes = np.searchsorted(self.label_of, labels, "right") - starts
        pairs = np.repeat(np.arange(len(labels)), sizes)  # one for each centroid
        begins = np.cumsum(sizes) - sizes
        which = starts[pairs] + np.arange(len(pairs)) - begins[pairs]
        products = np.einsum("pd,pd->p", unit(vectors)[np.asarray(rows)[pairs]], self.centroids[which])
        best = np.maximum.reduceat(products, begins) if len(products) else products
        return np.asarray((1 - self.gamma) * best, np.float32)

    def combine(
        self, by_rows: Floats, own: Floats, starts: NDArray[Any], proposed: NDArray[np.bool_], *, cosine: bool = False
    ) -> Floats:
        """Mix the probabilities of both scores, each divided by the largest of what is proposed for its text."""
        likely = np.exp(STEEP * (by_rows - 1)) if cosine else expit(by_rows)
        scaled = [_by_largest(part, starts, proposed) for part in (likely, expit(own))]
        return np.asarray(self.beta * scaled[0] + (1 - self.beta) * scaled[1], np.float32)

    def additive(self, scores: Floats) -> Floats:
        """Return the scores: they are between 0 and 1."""
        return scores

    def score_new(self, products: Floats, cosines: Floats, best: float) -> Floats:
        """Score labels that came after training by the share of the best score that their cosine is."""
        return np.float32(best) * np.maximum(cosines, 0)

    def choose(self, scorer: Any, quality: Callable[[Any], float]) -> NearRetriever:
        """Choose beta on validation points, unless it is given."""
        if not self.undecided:
            return self
        best = max(BETAS, key=lambda beta: quality(scorer.led(replace(self, beta=float(beta)))))
        return replace(self, beta=float(best))

    def metrics(self, query: Query, tower: FrozenTower, targets: LabelMatrix) -> dict[str, float]:
        """Measure nothing: there is nothing that is trained."""
        return {}

    def operations(self, labels: int, dim: int) -> tuple[int, int]:
        """Count the comparison with all centroids and points, and the labels that are kept."""
        return 2 * dim * (len(self.centroids) + len(self.points)), min(self.keep, labels)

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        arrays: Arrays = {"near.centroids": self.centroids, "near.labels": self.label_of, "near.points": self.points}
        return arrays | {"near.beta": np.array([self.beta])} | matrix_arrays("near.targets", self.targets)

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], width: int, **settings: Any) -> NearRetriever:
        """Put the arrays of a model file together."""
        targets = matrix_of(arrays, "near.targets", low=0)
        count = targets.shape[1]
        rows, label_of, points, beta = checked(arrays, SCHEMA, width=width, labels=count, points=targets.shape[0])
        if not ascends(label_of, 0, count - 1) or (label_of[1:] > label_of[:-1] + 1).any():
            raise ModelError("the array near.labels does not name every label in order; train again")
        return cls(rows, label_of, points, targets, float(beta[0]), False, **settings)


def _by_largest(values: Floats, starts: NDArray[Any], mask: NDArray[np.bool_]) -> Floats:
    """Divide the entries of each row by the largest of those that count."""
    sizes = np.diff(starts)
    largest = np.maximum.reduceat(np.append(values * mask, 0), np.minimum(starts[:-1], len(values)))
    return np.asarray(values / np.repeat(np.where(sizes > 0, np.maximum(largest, 1e-12), 1), sizes), np.float32)


def centroids(targets: LabelMatrix, vectors: Floats, *, most: int = 1, seed: int = 0) -> tuple[Ints, Floats]:
    """Return the mean direction of each label's points: (R,) the label of each row, (R, D) rows of length one.

    Points weigh as much as their targets; the row of a label without points is zero. A label with more than CROWD
    points has `most` rows (rounded down to a power of two): the means of the leaves of a 2-means tree over its points.
    Rows go by label, so that with one row each row l is label l.

    >>> from longtail.types import label_matrix
    >>> targets = label_matrix(np.array([0, 1, 2]), np.array([1, 1]), (2, 2))
    >>> centroids(targets, np.array([[3, 0], [0, 4]], np.float32))[1].tolist()  # doctest: +ELLIPSIS
    [[0.0, 0.0], [0.6..., 0.8...]]
    """
    by_label = targets.T.tocsr()
    label_of, rows = np.arange(targets.shape[1], dtype=np.int32), np.asarray(by_label @ vectors, np.float32)
    crowded = np.flatnonzero(np.diff(by_label.indptr) > CROWD) if most > 1 else ()
    if len(crowded) == 0:
        return label_of, unit(rows)
    owners, parts = [np.delete(label_of, crowded)], [np.delete(rows, crowded, axis=0)]
    for label in crowded:
        part = slice(by_label.indptr[label], by_label.indptr[label + 1])
        points = vectors[by_label.indices[part]]
        leaf = clusters(points, most, seed=seed)
        leaves = sp.csr_array(
            (by_label.data[part], (leaf, np.arange(len(points)))), shape=(leaf.max() + 1, len(points))
        )
        owners.append(np.full(leaves.shape[0], label, np.int32))
        parts.append(np.asarray(leaves @ points, np.float32))
    label_of = np.concatenate(owners)
    order = np.argsort(label_of, kind="stable")
    return label_of[order], unit(np.concatenate(parts)[order])


def fuse(
    near_centroids: Hits,
    near_points: Hits,
    targets: LabelMatrix,
    gamma: float = GAMMA,
    keep: int = KEEP,
    *,
    label_of: Ints | None = None,
) -> sp.csr_array:
    """Merge what near centroids and near training points say into one shortlist of each query, (N, L).

    A label's score from points is the sum of the similarities of the near points that carry it, weighed by their
    targets, over the largest of the query; similarities below zero count as none. Its score from centroids is the
    similarity of its best centroid; `label_of` names the label of each centroid (each its own where None). The merged
    score is gamma · points + (1 - gamma) · centroids; the `keep` best stay, among equals the smaller label.

    With a small gamma a label that only points bring ranks behind all near centroids: ask for fewer centroids than
    `keep`, or points change the order but add no label.

    References: [Astec].

    >>> from longtail.types import label_matrix
    >>> targets = label_matrix(np.array([0, 1, 2]), np.array([0, 1]), (2, 3))
    >>> hits = np.array([[1, 2]], np.int32), np.array([[0.5, 0.4]], np.float32)
    >>> fuse(hits, (np.array([[0, 1]], np.int32), np.array([[0.8, 0.4]], np.float32)), targets, gamma=0.5).toarray()
    array([[0.5, 0.5, 0.2]], dtype=float32)
    """
    parts = []
    for start in range(0, len(near_centroids[0]), BLOCK):
        some = slice(start, start + BLOCK)
        points = _relative(_points(near_points[0][some], near_points[1][some], targets))
        labels = _centroids(near_centroids[0][some], near_centroids[1][some], label_of, targets.shape[1])
        merged = sp.csr_array(np.float32(gamma) * points + np.float32(1 - gamma) * labels)
        merged.sort_indices()
        parts.append(_kept(merged, keep))
    if not parts:
        return rows_of(*near_centroids, targets.shape[1])
    return sp.csr_array(sp.vstack(parts, format="csr"))


def _points(found: Ints, similarities: Floats, targets: LabelMatrix) -> sp.csr_array:
    """Sum the similarities of near points for each label that they carry."""
    return sp.csr_array(rows_of(found, np.maximum(similarities, 0), targets.shape[0]) @ targets)


def _relative(scores: sp.csr_array) -> sp.csr_array:
    """Divide each row by its largest entry; a row of zeros stays so."""
    most = scores.max(axis=1).toarray().ravel()
    scores.data /= np.maximum(most, 1e-12)[edge_rows(scores)]
    return scores


def _centroids(found: Ints, similarities: Floats, label_of: Ints | None, labels: int) -> sp.csr_array:
    """Give each label the similarity of its best centroid among the hits."""
    if label_of is None:
        return rows_of(found, similarities, labels)
    there = found >= 0
    cells = (np.arange(len(found))[:, None] * labels + label_of[found])[there]
    values = similarities[there]
    order = np.lexsort((-values, cells))
    cells, values = cells[order], values[order]
    best = np.diff(cells, prepend=-1) > 0
    cells = cells[best]
    starts = np.searchsorted(cells, np.arange(len(found) + 1) * labels)
    return assembled(values[best], (cells % labels).astype(np.int32), starts, (len(found), labels))


def _kept(scores: sp.csr_array, keep: int) -> sp.csr_array:
    """Keep the largest entries of each row; its columns are sorted."""
    chosen = np.ones(scores.nnz, np.bool_)
    starts: NDArray[Any] = scores.indptr
    for row in np.flatnonzero(np.diff(starts) > keep):
        own = slice(starts[row], starts[row + 1])
        chosen[own] = False
        chosen[own][largest(scores.data[own], keep)[0]] = True
    ends = np.append(0, np.cumsum(chosen))[starts]
    return assembled(scores.data[chosen], scores.indices[chosen], ends, scores.shape)
