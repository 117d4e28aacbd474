"""TRAINED ENCODER → CLUSTERS: labels are put into clusters again, by what the stages before have learnt.

References: [DECAF], [ECLARE] (which also prunes the label graph), [InceptionXML-LF]; methods §3.3, §4.2, §5.3.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from longtail.errors import RecipeError
from longtail.labels.blocks import edge_rows
from longtail.labels.tree import LABELS_EACH, Clusters, clusters
from longtail.labels.walk import normalised, random_walk
from longtail.parts import Fit, Stage
from longtail.records import record
from longtail.search.exact import unit
from longtail.types import Floats

EDGES = 2**16  # of a graph whose ends are compared at once


@record
class Recluster(Stage):
    """Settings of the new clusters.

    A label is the mean direction of its points ("points"), or the sum of its word vectors ("texts"); `smooth` mixes it
    with its neighbours in the label graph. Edges between labels further apart than `prune` (1 - cosine) are dropped.
    """

    part: ClassVar[str] = "recluster"
    by: Literal["points", "texts"] = "points"  # what labels are clustered by: their points, or their texts
    num_clusters: int | None = Field(default=None, ge=1)  # of labels; None: about eight labels each
    smooth: bool = False  # whether labels are mixed with their neighbours in the label graph
    # edges of the label graph that are longer (1 - cosine) are dropped
    prune: float | None = Field(default=None, ge=0, le=2)

    def check(self, recipe: Any) -> None:
        """Ask for a stage before this one, and for word vectors where they are summed."""
        if recipe.stages[0] is self:
            raise RecipeError(f"{recipe.name}: recluster needs a stage before it that trains the encoder: surrogate")
        if self.by == "texts" and not recipe.encoder.has_words:
            raise RecipeError(f"{recipe.name}: recluster by texts needs an encoder with word vectors: encoder=bag")

    def run(self, fit: Fit) -> Fit:
        """Put the labels into clusters."""
        vectors = label_vectors(fit, self.by)
        graph = None
        if self.smooth or self.prune is not None:
            graph = random_walk(fit.train.original.targets, seed=fit.seed)
        if graph is not None and self.prune is not None:
            graph = pruned(graph, vectors, self.prune)
            fit = fit.changed(graph=graph)
        if graph is not None and self.smooth:
            vectors = unit(np.asarray(normalised(graph) @ vectors, np.float32))
        count = self.num_clusters or max(2, len(vectors) // LABELS_EACH)
        return fit.changed(partition=Clusters.build(clusters(vectors, count, seed=fit.seed)))


def label_vectors(fit: Fit, by: str) -> Floats:
    """Return a direction for each label, as the encoder stands: (L, D); without points it is that of its text."""
    network, names = fit.before, fit.points.names
    assert network is not None, "Recluster.check has seen it"
    texts = None
    if names is not None and by == "texts":
        words: Floats = network.tower.tables["words"].values.cpu().numpy()
        return unit(np.asarray(network.tower.bags(names).bags(len(words)) @ words, np.float32))
    if names is not None:
        texts = unit(network.vectors(names))
    made = np.zeros(len(fit.train), np.bool_) if fit.train.augmented is None else fit.train.augmented
    points = np.flatnonzero(~made)
    targets = sp.csr_array(fit.points.targets[points].T)
    vectors = unit(np.asarray(targets @ unit(network.vectors(fit.points.inputs.take(points))), np.float32))
    if texts is not None:
        empty = np.diff(targets.indptr) == 0
        vectors[empty] = texts[empty]
    return vectors


def pruned(graph: sp.csr_array, vectors: Floats, most: float) -> sp.csr_array:
    """Drop the edges between labels that are further apart; self edges stay.

    >>> vectors = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    >>> pruned(sp.csr_array(np.ones((3, 3), np.float32)), vectors, 1.0).toarray().tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    """
    rows, columns = edge_rows(graph), graph.indices
    kept = rows == columns
    for start in range(0, len(rows), EDGES):
        some = slice(start, start + EDGES)
        cosines = np.einsum("ed,ed->e", vectors[rows[some]], vectors[columns[some]])
        kept[some] |= 1 - cosines <= most
    return sp.csr_array((graph.data[kept], (rows[kept], columns[kept])), shape=graph.shape)
