"""QUERY → CANDIDATES, most of the best: label vectors in clusters, of which those nearest to the query are looked into.

An inverted file (IVF) without faiss: two small arrays beside the label vectors. It takes less memory than a graph, and
looks at more labels for the same recall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ModelError
from longtail.labels.tree import Clusters
from longtail.shortlists.exact import largest, unit
from longtail.shortlists.hnsw import further
from longtail.types import Floats, Progress

SHARE = 4  # times the root of the labels: so many clusters
SAMPLE, ROUNDS = 128, 10  # labels for each cluster that the middles are found with, and how often they move
ROWS = 4096  # labels that are compared with all middles at once


@dataclass(frozen=True, eq=False)
class Lists:
    """Clusters of labels, and the middle of each.

    >>> rows = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    >>> lists = Lists.build(rows).reaching(8)
    >>> bool(7 in lists.labels(rows[7], 1)), len(lists.labels(rows[7], 900)) >= 900
    (True, True)
    """

    middles: Floats  # (M, D)
    clusters: Clusters
    reach: int = 1  # clusters that are looked into, for the BEST labels

    @classmethod
    def build(cls, vectors: Floats, *, progress: Progress | None = None) -> Lists:
        """Put labels into clusters by spherical k-means."""
        draw = np.random.default_rng(0)
        count = min(len(vectors), math.ceil(SHARE * math.sqrt(len(vectors))))
        some = unit(vectors[np.sort(draw.permutation(len(vectors))[: SAMPLE * count])])
        middles = some[draw.permutation(len(some))[:count]]
        for step in range(ROUNDS):
            if progress:
                progress("clustering labels", step, ROUNDS)
            sums = np.zeros_like(middles)
            np.add.at(sums, _nearest(some, middles), some)
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            middles = np.where(lengths > 1e-6, sums / np.maximum(lengths, 1e-6), middles)
        kept, of = np.unique(_nearest(vectors, middles), return_inverse=True)
        return cls(middles[kept], Clusters.build(of))

    def reaching(self, reach: int) -> Lists:
        """Look into more or fewer clusters."""
        return replace(self, reach=reach)

    def labels(self, query: Floats, n: int) -> NDArray[np.int64]:
        """List the labels of the clusters nearest to an encoded text, at least n where there are, ascending."""
        starts, members, near = self.clusters.starts, self.clusters.members, self.middles @ query
        best, _ = largest(near, min(further(self.reach, n), len(near)))
        if (starts[best + 1] - starts[best]).sum() < n:
            best = np.argsort(-near, kind="stable")
            best = best[: np.searchsorted(np.cumsum(starts[best + 1] - starts[best]), n) + 1]
        found = np.concatenate([members[starts[place] : starts[place + 1]] for place in best.tolist()])
        return np.sort(found).astype(np.int64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name the arrays for a model file."""
        held: dict[str, NDArray[Any]] = {
            "middles": self.middles,
            "of": self.clusters.of,
            "reach": np.array([self.reach], np.int64),
        }
        return {f"lists.{name}": array for name, array in held.items()}

    @classmethod
    def of_arrays(cls, held: Mapping[str, NDArray[Any]]) -> Lists | None:
        """Put the arrays of a model file together, if it has them, after checking that they fit each other."""
        if "lists.of" not in held:
            return None
        middles, of, reach = held["lists.middles"], held["lists.of"], int(held["lists.reach"][0])
        sound = of.ndim == 1 and of.dtype == np.int32 and len(of) > 0 and middles.ndim == 2
        sound = sound and 0 <= of.min() <= of.max() == len(middles) - 1 and 1 <= reach <= len(middles)
        if not sound or middles.dtype != np.float32 or not np.isfinite(middles).all():
            raise ModelError("the clusters of the index are damaged; make the index again")
        return cls(middles, Clusters.build(of), reach)


def _nearest(vectors: Floats, middles: Floats) -> NDArray[np.int64]:
    """Tell which middle each vector is nearest to."""
    blocks = (vectors[start : start + ROWS] for start in range(0, len(vectors), ROWS))
    return np.concatenate([(block @ middles.T).argmax(axis=1) for block in blocks])
