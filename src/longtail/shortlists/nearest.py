"""VECTORS → NEAREST ROWS: exact up to some hundred thousand rows, a graph of neighbours (HNSW) beyond.

And what Astec makes of them: label centroids, and shortlists fused from near centroids and the labels of near points.

References: [Astec]; methods §4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError, MissingExtra
from longtail.labels.blocks import assembled, edge_rows
from longtail.labels.tree import clusters
from longtail.shortlists.exact import largest, top_products, unit
from longtail.types import Floats, Ints, LabelMatrix, rows_of

EXACT = 200_000  # rows up to which every one is looked at unless asked otherwise
LINKS, BUILD, SEARCH = 100, 300, 400  # M, efConstruction and efSearch of HNSW
BLOCK = 1024  # points that are fused at once
CROWD = 7500  # a label with more points may have several centroids
GAMMA, KEEP = 0.075, 500  # the weight of points, and the labels kept of each shortlist

Hits = tuple[Ints, Floats]  # (N, k) rows, -1 where there is none, and their similarities
Find = Callable[[Floats, int], Hits]


def nearest(queries: Floats, rows: Floats, k: int, *, cosine: bool = True, exact: bool | None = None) -> Hits:
    """Find the k rows (R, D) nearest to each query (N, D), best first: by cosine, or by inner product.

    `exact` looks at every row, and is the choice up to EXACT rows; else HNSW finds most of the nearest, and what it
    does not find is padded with -1 and -inf.

    >>> nearest(np.array([[2, 1]], np.float32), np.array([[0, 9], [1, 0], [1, 1]], np.float32), 2)[0].tolist()
    [[2, 1]]
    """
    return among(rows, cosine=cosine, exact=exact)(queries, k)


def among(rows: Floats, *, cosine: bool = True, exact: bool | None = None) -> Find:
    """Make ready to find rows again and again, as `nearest` does."""
    held = unit(rows) if cosine else rows
    graph = None if (exact if exact is not None else len(rows) <= EXACT) else Neighbours(held)

    def find(queries: Floats, k: int) -> Hits:
        if queries.shape[1:] != rows.shape[1:]:
            raise DataError(f"queries {queries.shape}, rows {rows.shape}", remedy="give both the same dimensions")
        asked = unit(queries) if cosine else queries
        return top_products(asked, held, k) if graph is None else graph.nearest(asked, k)

    return find


class Neighbours:
    """An HNSW graph over rows (R, D) for the largest inner products; unit rows make them cosines."""

    def __init__(self, rows: Floats, *, links: int = LINKS, build: int = BUILD) -> None:
        try:
            import faiss  # noqa: PLC0415  (an extra)
        except ImportError:
            raise MissingExtra("faiss-cpu", "ann") from None
        squares = np.einsum("rd,rd->r", rows, rows)
        most = squares.max(initial=0)
        # One further dimension gives all rows the same length: then the largest product is the nearest row, which is
        # what the graph can find. It is near zero for unit rows.
        held = np.column_stack([rows, np.sqrt(np.maximum(most - squares, 0))]).astype(np.float32)
        self.count = len(rows)
        self.graph: Any = faiss.IndexHNSWFlat(held.shape[1], links, faiss.METRIC_INNER_PRODUCT)
        self.graph.hnsw.efConstruction = build
        self.graph.add(held)

    def nearest(self, queries: Floats, k: int, *, search: int = SEARCH) -> Hits:
        """Find most of the k best rows of each query, best first."""
        self.graph.hnsw.efSearch = max(search, k)
        asked = np.column_stack([queries, np.zeros(len(queries), np.float32)]).astype(np.float32)
        scores, found = self.graph.search(asked, min(k, self.count))
        return found.astype(np.int32), np.where(found < 0, -np.inf, scores).astype(np.float32)


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


def fused(
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
    >>> fused(hits, (np.array([[0, 1]], np.int32), np.array([[0.8, 0.4]], np.float32)), targets, gamma=0.5).toarray()
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
