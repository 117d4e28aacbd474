"""SCORES + SCORES → SCORES: what vectors say plus `blend` times what words say, over the candidates of both."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from longtail.data.dataset import Split
from longtail.shortlists.lexical import LexicalIndex, sparse_rows
from longtail.shortlists.vectors import VectorIndex
from longtail.types import best_of, contains

CANDIDATES = 50  # labels taken from each side beyond those asked for
BLENDS = tuple(np.linspace(0, 1, 21).round(2).tolist())


def blended(vectors: VectorIndex, lexical: LexicalIndex | None, texts: list[str], k: int, blend: float) -> sp.csr_array:
    """Score the candidates of many texts: (N, L). A label that words do not propose gets nothing from them."""
    if lexical is None or blend == 0:
        found, scores = vectors.top(vectors.words.bag(texts), k)
        return sparse_rows(found, scores + OFFSET, (len(texts), len(vectors.labels)))
    dense, by_words = candidates(vectors, lexical, texts, k)
    return sp.csr_array(dense + np.float32(blend) * by_words)


OFFSET = np.float32(2.0)  # added to cosines, so that no stored score is zero or negative


def candidates(
    vectors: VectorIndex, lexical: LexicalIndex, texts: list[str], k: int
) -> tuple[sp.csr_array, sp.csr_array]:
    """Score by vectors every label that vectors or words propose, and by words those that words propose."""
    bags = vectors.words.bag(texts)
    by_words = lexical.scores(texts, k + CANDIDATES)
    found, scores = vectors.top(bags, k + CANDIDATES)
    dense = sparse_rows(found, scores + OFFSET, by_words.shape)
    rows = np.repeat(np.arange(len(texts)), np.diff(by_words.indptr))
    exact = vectors.pairs(bags, rows, by_words.indices) + OFFSET
    others = sp.csr_array((exact, by_words.indices, by_words.indptr), shape=by_words.shape)
    return sp.csr_array(dense.maximum(others)), by_words


def choose_blend(vectors: VectorIndex, lexical: LexicalIndex, held: Split) -> float:
    """Choose the weight of words on held-out points, by P@1 + recall@5."""
    dense, by_words = candidates(vectors, lexical, held.need_texts("blending").tolist(), 10)
    sizes = np.maximum(np.diff(held.targets.indptr), 1)

    def value(blend: float) -> float:
        fused = sp.csr_array(dense + np.float32(blend) * by_words)
        spare = int(np.diff(held.excluded.indptr).max(initial=0))
        hits = contains(held.targets, best_of(fused, 5 + spare).without(held.excluded, 5).labels)
        return float(hits[:, 0].mean() + (hits.sum(axis=1) / sizes).mean())

    return float(max(BLENDS, key=value))
