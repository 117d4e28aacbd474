"""BATCH → POOL WITH NEAR NEGATIVES: hard negatives are what is near each point in the space of a trained encoder.

Served, label rows are asked only about what is near. References: [Astec]; methods §4.3 (3), §5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.errors import RecipeError
from longtail.labels.blocks import edge_rows
from longtail.labels.walk import normalised, random_walk
from longtail.parts import Network
from longtail.records import Cost, Sizes, When, record
from longtail.samplers.batch_pool import CHUNK, BatchPool, BuiltPool
from longtail.scorers.near import NearRetriever
from longtail.search.exact import unit
from longtail.types import Floats, without


@record
class Near(BatchPool):
    """Settings of Astec's shortlist: a pool whose hard negatives come from what is near."""

    part: ClassVar[str] = "near"
    renamed: ClassVar[Mapping[str, str]] = {"keep": "num_candidates", "points": "num_neighbours"}
    random: int = Field(default=200, ge=0)  # labels that are drawn by chance for each batch
    hard: int = Field(default=20, ge=0)  # labels near a point that it sees as negatives
    num_candidates: int = Field(default=500, ge=1)  # of a text, from labels and points near it
    num_neighbours: int = Field(default=50, ge=0)  # nearest training points that are asked for their labels
    gamma: float = Field(default=0.075, ge=0, le=1)  # share of the points in the shortlist
    beta: float | None = Field(default=None, ge=0, le=1)  # share of the label rows in the score; None: validate
    num_centroids: int = Field(default=300, ge=1)  # of a label with a crowd of points: more than 7,500
    texts: bool = False  # whether labels are near by their texts and those of their neighbours too

    def check(self, recipe: Any) -> None:
        """Ask for a stage that trains the encoder first."""
        if not any(stage.place == 0 for stage in recipe.stages):
            raise RecipeError(f"{recipe.name}: the sampler `near` needs a surrogate stage: --set surrogate=surrogate")
        super().check(recipe)

    def undecided(self) -> When:
        """Return when validation points settle beta: with the rows that it weighs."""
        return When.WHILE if self.beta is None else When.NEVER

    def cost(self, sizes: Sizes) -> Cost:
        """Count the pool, and the vectors of points and labels that are searched."""
        vectors = 4.0 * sizes.width * (2 * sizes.points + sizes.labels)
        return super().cost(sizes) + Cost(memory=vectors, disk=vectors / 2)

    def build(self, network: Network) -> BuiltNear:
        """Find what is near each point as the encoder stands."""
        return BuiltNear(self, network)

    def open(self, arrays: Mapping[str, NDArray[Any]], width: int, over: Any = None) -> NearRetriever:
        """Put centroids and points together."""
        return NearRetriever.of_arrays(arrays, width, **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {"gamma": self.gamma, "neighbours": self.num_neighbours, "keep": self.num_candidates}

    def retriever(self, vectors: Floats, network: Network) -> NearRetriever:
        """Build the retriever in the space of encoded points."""
        points, texts = network.points, None
        if self.texts and points.names is not None:
            graph = normalised(random_walk(network.fit.train.original.targets, seed=network.fit.seed))
            texts = unit(np.asarray(graph @ unit(network.vectors(points.names)), np.float32))
        return NearRetriever.build(
            vectors, points.targets, beta=self.beta, texts=texts, most=self.num_centroids, **self._settings()
        )


class BuiltNear(BuiltPool):
    """A pool that mines what is near before the first step."""

    def __init__(self, settings: Near, network: Network) -> None:
        super().__init__(settings)
        points, vectors = network.points, network.vectors(network.points.inputs)
        self.near, self.first = settings, settings.retriever(vectors, network)
        blocks = []
        for start in range(0, len(vectors), CHUNK):
            some = slice(start, start + CHUNK)
            wrong = without(self.first.near(vectors[some]), points.targets[some] + points.excluded[some])
            blocks.append(best_entries(wrong, settings.mined))
        self.mined = sp.csr_array(sp.vstack(blocks))

    def freeze(self, network: Network) -> NearRetriever:
        """Ask what is near in the space that the encoder has moved to, unless it is frozen."""
        return self.first if network.frozen else self.near.retriever(network.vectors(network.points.inputs), network)


def best_entries(matrix: sp.csr_array, most: int) -> sp.csr_array:
    """Keep the largest entries of each row."""
    rows = edge_rows(matrix)
    order = np.lexsort((-matrix.data, rows))
    place = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr))
    kept = order[place < most]
    best = sp.csr_array((matrix.data[kept], (rows[kept], matrix.indices[kept])), shape=matrix.shape)
    best.sort_indices()
    return best
