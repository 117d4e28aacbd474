"""Scorers of a few labels by vectors of chance, for the tests of those who are built of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail.data.tokens import Words
from longtail.encoders.bag import FrozenBag
from longtail.encoders.heads import FrozenResidual
from longtail.labels.tree import Clusters
from longtail.parts import Query
from longtail.scorers.clusters import ClusterRetriever
from longtail.scorers.near import NearRetriever
from longtail.scorers.vectors import Projection, VectorScorer
from longtail.search.exact import unit
from longtail.stores.memory import MemoryStore
from longtail.types import label_matrix

TEXTS = ["red cat", "old dog", "red fox", "wild cat fox", ""]


def vector_scorer(seed: int, labels: int, *, layer: bool, cosine: bool) -> VectorScorer:
    draw = np.random.default_rng(seed)
    words = Words.fit(TEXTS)
    rows = np.round(draw.normal(size=(labels, 4)), 1).astype(np.float32)  # coarse: equal scores happen
    weight, bias, word_vectors, shift = (
        draw.normal(size=size).astype(np.float32) for size in ((4, 4), (4,), (len(words), 4), (labels,))
    )
    head = FrozenResidual(weight, bias, np.ones(4, np.float32), np.zeros(4, np.float32), "relu") if layer else None
    store = MemoryStore.of(unit(rows) if cosine else rows, shift)
    return VectorScorer(FrozenBag(words, word_vectors, relu=False), Projection(head, cosine), store)


def with_near(scorer: VectorScorer, seed: int, *, keep: int = 3, beta: float = 0.4) -> VectorScorer:
    """Let what is near in the space of the tower propose labels."""
    draw, labels = np.random.default_rng(seed), len(scorer)
    starts = np.arange(9) * 2 if labels > 1 else np.arange(9)
    columns = np.concatenate([np.sort(draw.permutation(labels)[:2]) for _ in range(8)])
    targets = label_matrix(starts, columns, (8, labels))
    points = draw.normal(size=(8, 4)).astype(np.float32)
    return scorer.led(NearRetriever.build(points, targets, beta=beta, gamma=0.2, neighbours=2, keep=keep))


def product(scorer: VectorScorer, texts=TEXTS) -> np.ndarray:
    """Score all labels the slow way."""
    return scorer.project(scorer.tower.encode(Query(texts))) @ scorer.store.take(slice(None)).T + scorer.store.bias


def with_clusters(scorer: VectorScorer, seed: int, *, top: int = 2, **more: Any) -> VectorScorer:
    """Let clusters of labels propose them, of about three each."""
    draw, labels = np.random.default_rng(seed), len(scorer)
    count = max(1, labels // 3)
    rows, bias = draw.normal(size=(count, 4)).astype(np.float32), draw.normal(size=count).astype(np.float32)
    of = draw.permutation(np.arange(labels) % count)
    return scorer.led(ClusterRetriever(Clusters.build(of), None, rows, bias, top, **more))
