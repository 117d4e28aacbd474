"""QUERY → CANDIDATES, most of the best: vectors in clusters, of which those nearest to the query are looked into.

An inverted file (IVF) without faiss: two small arrays beside the vectors. It takes less memory than a graph, and
looks at more rows for the same recall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.arrays import Array, checked, number, places
from longtail.errors import ModelError
from longtail.labels.tree import Clusters, clusters
from longtail.search.exact import largest, unit
from longtail.search.hnsw import scale_ef
from longtail.search.quantised import REMEDY, Quantised
from longtail.types import Floats, Ints, Progress

CLUSTERS = 4  # times the root of the rows: so many clusters
SAMPLE, ROUNDS = 128, 10  # rows for each cluster that k-means is fitted to, and its iterations
BLOCK = 4096  # rows that are compared with all centroids at once
CELLS = 2**23  # scores held at once
SCHEMA = (
    Array("ivf.centroids", ("clusters", "width")), places("ivf.of", "labels", "clusters", dtypes=("int32",)),
    number("ivf.nprobe", 1, 2**31, ("int64",)),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class IVF:
    """Clusters of rows, and the centroid of each.

    >>> rows = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    >>> ivf = IVF.build(rows).searching(8)
    >>> bool(7 in ivf.rows(rows[7], 1)), len(ivf.rows(rows[7], 900)) >= 900
    (True, True)
    """

    centroids: Floats  # (M, D)
    clusters: Clusters
    nprobe: int = 1  # clusters that are looked into, for the BEST results

    @classmethod
    def build(cls, vectors: Floats, *, progress: Progress | None = None) -> IVF:
        """Put rows into clusters by spherical k-means."""
        draw = np.random.default_rng(0)
        count = min(len(vectors), math.ceil(CLUSTERS * math.sqrt(len(vectors))))
        some = unit(vectors[np.sort(draw.permutation(len(vectors))[: SAMPLE * count])])
        centroids = some[draw.permutation(len(some))[:count]]
        for step in range(ROUNDS):
            if progress:
                progress("clustering", step, ROUNDS)
            sums = np.zeros_like(centroids)
            np.add.at(sums, _nearest(some, centroids), some)
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            centroids = np.where(lengths > 1e-6, sums / np.maximum(lengths, 1e-6), centroids)
        kept, of = np.unique(_nearest(vectors, centroids), return_inverse=True)
        return cls(centroids[kept], Clusters.build(of))

    @classmethod
    def balanced(cls, vectors: Floats, *, seed: int = 0) -> IVF:
        """Put rows into clusters of equal size: quicker to build, and to search for many queries at once."""
        of = clusters(vectors, math.ceil(CLUSTERS * math.sqrt(len(vectors))), seed=seed)
        members = sp.csr_array((np.ones(len(of), np.float32), (of, np.arange(len(of)))), (of.max() + 1, len(of)))
        return cls(unit(np.asarray(members @ unit(vectors), np.float32)), Clusters.build(of))

    def searching(self, nprobe: int) -> IVF:
        """Look into more or fewer clusters."""
        return replace(self, nprobe=nprobe)

    def rows(self, query: Floats, n: int) -> NDArray[np.int64]:
        """List the rows of the clusters nearest to a query, at least n where there are, ascending."""
        starts, members, near = self.clusters.starts, self.clusters.members, self.centroids @ query
        best, _ = largest(near, self._looked_into(n))
        if (starts[best + 1] - starts[best]).sum() < n:
            best = np.argsort(-near, kind="stable")
            best = best[: np.searchsorted(np.cumsum(starts[best + 1] - starts[best]), n) + 1]
        found = np.concatenate([members[starts[place] : starts[place + 1]] for place in best.tolist()])
        return np.sort(found).astype(np.int64)

    def search(self, queries: Floats, rows: Quantised, k: int, bias: Floats | None = None) -> tuple[Ints, Floats]:
        """Find most of the k largest products of each query (N, D) with the rows (R, D), best first.

        Each cluster meets all queries that look into it at once. `bias` (R,) is added to the scores.
        """
        k = min(k, len(rows))
        labels, values = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
        bias = np.zeros(len(rows), np.float32) if bias is None else bias
        block = max(1, CELLS // (self._looked_into(k) * int(np.diff(self.clusters.starts).max())))
        for start in range(0, len(queries) if k else 0, block):
            some = slice(start, start + block)
            labels[some], values[some] = self._of_block(queries[some], rows, k, bias)
        for place in np.flatnonzero((labels < 0).any(axis=1)):  # the clusters hold fewer rows: others are looked into
            own = self.rows(queries[place], k)
            places, values[place] = largest(np.asarray(rows.scores(queries[place], own) + bias[own], np.float32), k)
            labels[place] = own[places]
        return labels, values

    def _of_block(self, queries: Floats, rows: Quantised, k: int, bias: Floats) -> tuple[Ints, Floats]:
        """Find the k best rows of some queries; -1 where their clusters hold fewer."""
        starts, members, looked = self.clusters.starts, self.clusters.members, self.nearest(queries, k)
        ends = np.cumsum(np.diff(starts)[looked], axis=1)  # (N, P) where what a cluster brings ends in a query's row
        scores = np.full((len(queries), max(int(ends.max()), k)), -np.inf, np.float32)
        found = np.full(scores.shape, -1, np.int32)
        order = np.argsort(looked, axis=None, kind="stable")
        used, begins = np.unique(looked.ravel()[order], return_index=True)
        for cluster, pairs in zip(used.tolist(), np.split(order, begins[1:]), strict=True):
            own = members[starts[cluster] : starts[cluster + 1]]
            owners = pairs // looked.shape[1]
            places = (ends.ravel()[pairs] - len(own))[:, None] + np.arange(len(own))
            scores[owners[:, None], places] = queries[owners] @ rows.take(own).T + bias[own]
            found[owners[:, None], places] = own
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        labels, values = np.take_along_axis(found, best, 1), np.take_along_axis(scores, best, 1)
        order = np.lexsort((labels, -values))
        return np.take_along_axis(labels, order, 1), np.take_along_axis(values, order, 1)

    def nearest(self, queries: Floats, n: int) -> NDArray[np.int64]:
        """List the clusters that each query looks into for its n best rows, in no order: (N, P)."""
        near, count = queries @ self.centroids.T, self._looked_into(n)
        return np.argpartition(-near, count - 1, axis=1)[:, :count]

    def _looked_into(self, n: int) -> int:
        return min(scale_ef(self.nprobe, n), len(self.centroids))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name the arrays for a model file."""
        arrays: dict[str, NDArray[Any]] = {
            "centroids": self.centroids,
            "of": self.clusters.of,
            "nprobe": np.array([self.nprobe], np.int64),
        }
        return {f"ivf.{name}": array for name, array in arrays.items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], labels: int, width: int) -> IVF | None:
        """Put the arrays of an index file together, if it has them."""
        if "ivf.of" not in arrays:
            return None
        centroids, of, nprobe = checked(arrays, SCHEMA, remedy=REMEDY, labels=labels, width=width)
        count = len(centroids)
        if not 0 < count <= labels or of.max() != count - 1 or not 1 <= nprobe[0] <= count:
            raise ModelError(f"the index has {count} clusters of {labels} labels, not all of them used; {REMEDY}")
        return cls(centroids, Clusters.build(of), int(nprobe[0]))


def _nearest(vectors: Floats, centroids: Floats) -> NDArray[np.int64]:
    """Return the centroid that each vector is nearest to."""
    blocks = (vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK))
    return np.concatenate([(block @ centroids.T).argmax(axis=1) for block in blocks])
