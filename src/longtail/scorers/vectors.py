"""QUERY → LABELS BY VECTORS: what an encoder makes of a text against one vector per label, without torch if it can.

All labels are searched in a store, or only those are scored that a retriever (clusters, or what is near) proposes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from longtail.arrays import Array, checked
from longtail.errors import ModelError
from longtail.labels.blocks import edge_rows
from longtail.parts import Arrays, FrozenHead, FrozenTower, LabelStore, Near, Query, Retriever
from longtail.scorers.texts import TextRows
from longtail.scorers.wrapped import Ranked
from longtail.search.exact import unit
from longtail.stores.memory import MemoryStore
from longtail.types import Floats, Ints, best_of

BLOCK = 1024  # texts that pass the head at once
SCHEMA = Array("labels", ("labels", "width")), Array("bias", ("labels",))
SAMPLE = 1000  # trained labels that the length of new vectors is taken from


def known(vectors: Floats) -> NDArray[np.bool_]:
    """Return which encoded texts have anything to go by: (N, 1)."""
    return np.asarray(vectors.any(axis=1, keepdims=True), np.bool_)


def answered(mask: NDArray[np.bool_], labels: Ints, scores: Floats) -> tuple[Ints, Floats]:
    """Leave texts without a known word, (N, 1) False, without labels."""
    return np.where(mask, labels, np.int32(-1)), np.where(mask, scores, np.float32(-np.inf))


@dataclass(frozen=True, eq=False)
class Projection:
    """The way from the encoder to the product with label vectors: a head, then length one if scores are cosines."""

    head: FrozenHead | None
    cosine: bool

    def __call__(self, vectors: Floats) -> Floats:
        """Pass vectors (N, D), or one (D,), through."""
        out = vectors if self.head is None else self.head(vectors)
        if not self.cosine:
            return out
        if out.ndim == 2:
            return unit(out)
        length = math.sqrt(float(out @ out))
        return out / np.float32(length) if length > 1e-12 else out


@dataclass(frozen=True, eq=False)
class Joined:
    """Several projections side by side."""

    parts: tuple[Projection | Joined, ...]
    weights: tuple[float, ...]
    head: ClassVar[None] = None
    cosine: ClassVar[bool] = False

    def __call__(self, vectors: Floats) -> Floats:
        """Pass vectors through each, scaled by its weight, and put what comes out side by side."""
        out = [np.float32(weight) * part(vectors) for part, weight in zip(self.parts, self.weights, strict=True)]
        return np.concatenate(out, axis=-1)


@dataclass(frozen=True, eq=False)
class VectorScorer:
    """The encoder, the projection before the label vectors, and the store of these."""

    tower: FrozenTower
    project: Projection | Joined
    store: LabelStore
    texts_through_head: bool = True  # whether the vector of a label text passes the head
    retriever: Retriever | None = None
    text_rows: TextRows | None = None  # makes label vectors from sums of word vectors, where that is how they are made
    reads_labels: bool = True  # whether the encoder has learnt from label texts

    def __len__(self) -> int:
        return len(self.store)

    @property
    def shares_threads(self) -> bool:
        """Whether several threads may search side by side: torch and products with all labels have their own."""
        return self.store.shares_threads and not self.tower.needs_torch

    @property
    def searchable(self) -> bool:
        """Whether labels are found by a search in the store."""
        return self.retriever is None

    def additive(self, scores: Floats) -> Floats:
        """Turn scores into what the members of an ensemble add up: logits into probabilities."""
        if self.retriever is not None:
            return self.retriever.additive(scores)
        return scores if self.project.cosine else np.asarray(expit(scores), np.float32)

    def led(self, retriever: Retriever) -> VectorScorer:
        """Score what a retriever proposes."""
        return replace(self, retriever=retriever)

    def with_store(self, store: LabelStore) -> VectorScorer:
        """Search label vectors that are kept elsewhere."""
        return replace(self, store=store)

    def encoded(self, query: Query) -> Floats:
        """Encode texts, ready for the product with label vectors: (N, D), zero where no word is known."""
        vectors: Floats = query.once(self, "encoded", lambda: self._encoded(query))
        return vectors

    def _encoded(self, query: Query) -> Floats:
        vectors = self.tower.encode(query)
        blocks = (vectors[some] for some in query.blocks(BLOCK))
        out = [np.where(known(block), self.project(block), np.float32(0)) for block in blocks]
        return np.concatenate(out) if out else np.zeros((0, self.store.dim), np.float32)

    def knows(self, query: Query) -> bool:
        """Whether the encoder knows anything of the only text."""
        return bool(self.tower.encode_one(query).any())

    def encoded_one(self, query: Query) -> Floats:
        """Encode the only text, ready for the product with label vectors: (D,), zero where no word is known."""
        vector: Floats = query.once(self, "encoded one", lambda: self._encoded_one(query))
        return vector

    def _encoded_one(self, query: Query) -> Floats:
        return self.project(self.tower.encode_one(query)) if self.knows(query) else np.zeros(self.store.dim, np.float32)

    def top(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best labels of each text; equal scores go to the smaller label, places without one hold -1."""
        k = min(k, len(self))
        labels, scores = np.full((len(query), k), -1, np.int32), np.full((len(query), k), -np.inf, np.float32)
        if self.retriever is not None:
            best = best_of(self.proposed(query), k)
            found = answered(self.known(query), best.labels, best.scores)
        else:
            found = answered(self.known(query), *self.search(query, k))
        labels[:, : found[0].shape[1]], scores[:, : found[1].shape[1]] = found
        return labels, scores

    def known(self, query: Query) -> NDArray[np.bool_]:
        """Return which texts have anything to go by: (N, 1)."""
        return known(self.tower.encode(query))

    def search(self, query: Query, k: int) -> tuple[Ints, Floats]:
        """Find the k best of all labels for each text."""
        return self.store.search(self.encoded(query), k)

    def by_rows(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs by label vectors alone: text rows[i] with labels[i]; rows ascend."""
        return self.store.pairs(self.encoded(query), rows, labels)

    def proposed(self, query: Query) -> sp.csr_array:
        """Score what the retriever proposes: (N, L)."""
        scores: sp.csr_array = query.once(self, "proposed", lambda: self._combined(query, *self._own(query)))
        return scores

    def _own(self, query: Query) -> tuple[sp.csr_array, Floats]:
        """Return what the retriever proposes (N, L), with scores of its own, and the scores of label rows."""

        def compute() -> tuple[sp.csr_array, Floats]:
            own = self._retriever.propose(query, self.tower)
            return own, self.by_rows(query, edge_rows(own), own.indices)

        pairs: tuple[sp.csr_array, Floats] = query.once(self, "own", compute)
        return pairs

    def _combined(
        self, query: Query, own: sp.csr_array, by_rows: Floats, proposed: NDArray[np.bool_] | None = None
    ) -> sp.csr_array:
        """Let the retriever combine its scores with those of label rows."""
        proposed = np.ones(own.nnz, np.bool_) if proposed is None else proposed
        data = self._retriever.combine(by_rows, own.data, own.indptr, proposed, cosine=self.project.cosine)
        return sp.csr_array((data, own.indices, own.indptr), shape=own.shape)

    @property
    def _retriever(self) -> Retriever:
        if self.retriever is None:
            raise ModelError("there is no retriever")
        return self.retriever

    def pairs(self, query: Query, rows: NDArray[Any], labels: NDArray[Any]) -> Floats:
        """Score pairs: text rows[i] with labels[i]; rows ascend."""
        if self.retriever is None:
            return self.by_rows(query, rows, labels)
        width, (own, by_rows) = len(self), self._own(query)
        known, wanted = edge_rows(own) * width + own.indices, rows * width + labels
        fresh = np.setdiff1d(wanted, known)  # pairs that are not proposed
        of_query, of_label = np.divmod(fresh, width)
        keys = np.concatenate([known, fresh])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        beyond = self.retriever.beyond(query, self.tower, of_query, of_label)
        data = np.concatenate([own.data, beyond]).astype(np.float32)[order]
        all_rows = np.concatenate([by_rows, self.by_rows(query, of_query, of_label)])[order]
        starts = np.searchsorted(keys, np.arange(len(query) + 1) * width)
        both = sp.csr_array((data, keys % width, starts), shape=own.shape)
        scores: Floats = self._combined(query, both, all_rows, order < own.nnz).data[np.searchsorted(keys, wanted)]
        return scores

    def top_one(self, query: Query, n: int) -> Ranked:
        """Find the n best labels of the only text, best first; none where no word is known."""
        if not self.knows(query):
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        if not self.searchable:
            labels, scores = self.top(query, n)
            mask = labels[0] >= 0
            return labels[0][mask], scores[0][mask]
        return self.store.search_one(self.encoded_one(query), n)

    def score_one(self, query: Query, labels: NDArray[Any]) -> Floats:
        """Score chosen labels for the only text."""
        if self.searchable:
            return self.store.score(self.encoded_one(query), labels)
        order = np.argsort(labels, kind="stable")
        scores = np.empty(len(labels), np.float32)
        scores[order] = self.pairs(query, np.zeros(len(labels), np.int64), labels[order])
        return scores

    def rows_for(self, texts: Sequence[str], near: Near | None = None) -> Floats:
        """Make vectors of labels that came after training from their texts, of the length that trained labels have.

        Where the encoder has learnt from label texts it makes them; else they lie between the vectors of labels with
        similar texts, where there are any, and that of the text as a point: one that has the label.
        """
        if self.text_rows is not None:
            sums = self.tower.sums(Query(texts))
            rows = self.text_rows.of_texts(sums)
            return np.asarray((unit(rows) if self.project.cosine else rows) * known(sums), np.float32)
        vectors = self.tower.encode(Query(texts))
        rows = self.project.head(vectors) if self.texts_through_head and self.project.head else vectors
        rows = unit(rows) * known(vectors)  # nothing is known: no vector
        if near is not None and not self.reads_labels:
            similar = near(texts)
            labels = np.unique(similar.indices)
            means = similar[:, labels] @ self.store.take(labels)
            rows = unit(unit(np.asarray(means, np.float32)) + rows)
        if not self.project.cosine:
            some = np.random.default_rng(0).permutation(len(self))[:SAMPLE]
            rows = rows * np.float32(np.median(np.linalg.norm(self.store.take(np.sort(some)), axis=1)))
        return np.asarray(rows, np.float32)

    def score_rows(self, query: Query, rows: Floats, bias: float, best: float) -> Floats:
        """Score vectors of new labels beside trained ones, of which the best of this text has the score `best`."""
        vector = self.encoded_one(query)
        products = np.asarray(rows @ vector, np.float32)
        if self.retriever is None:
            return products + np.float32(bias)
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(vector)
        cosines = np.asarray(products / np.maximum(lengths, 1e-12), np.float32)
        return self.retriever.score_new(products + np.float32(bias), cosines, best)

    def join(self, others: Sequence[VectorScorer], weights: Sequence[float]) -> VectorScorer:
        """Return a scorer whose scores are the weighted sums of these: vectors side by side."""
        parts = (self, *others)
        if any(part.retriever is not None for part in parts):
            raise ModelError("objectives with candidates of their own cannot be joined; use one of them over labels")
        rows = np.concatenate([part.store.take(slice(None)) for part in parts], axis=1)
        bias = sum(weight * part.store.bias for weight, part in zip(weights, parts, strict=True))
        joined = Joined(tuple(part.project for part in parts), tuple(weights))
        store = MemoryStore.of(rows, np.asarray(bias, np.float32))
        return JoinedScorer(self.tower, joined, store, self.texts_through_head, parts=parts)

    def operations(self) -> int:
        """Count the multiplications and additions of one prediction: the encoder, its heads, and the scored labels."""
        labels, dim = len(self), self.store.dim
        own, scored = (0, labels) if self.retriever is None else self.retriever.operations(labels, dim)
        head = self.project.head.operations() if self.project.head else 0
        return self.tower.operations() + own + head + 2 * scored * dim

    def arrays(self) -> Arrays:
        """Name the arrays for a model file."""
        arrays: Arrays = {"labels": self.store.take(slice(None)), "bias": self.store.bias}
        arrays |= self.tower.arrays()
        arrays |= self.project.head.arrays("head") if self.project.head else {}
        arrays |= self.text_rows.arrays() if self.text_rows else {}
        return arrays | (self.retriever.arrays() if self.retriever else {})

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, project: Projection, width: int, *,
        texts_through_head: bool = True, text_rows: TextRows | None = None, reads_labels: bool = True,
    ) -> VectorScorer:  # fmt: skip
        """Put the arrays of a model file together and check that they fit each other."""
        labels, bias = checked(arrays, SCHEMA, width=width)
        store = MemoryStore.of(labels, bias)
        return cls(tower, project, store, texts_through_head, text_rows=text_rows, reads_labels=reads_labels)


@dataclass(frozen=True, eq=False)
class JoinedScorer(VectorScorer):
    """Scorers of one tower whose vectors stand side by side."""

    parts: tuple[VectorScorer, ...] = ()

    def served(self, weights: Sequence[float]) -> VectorScorer:
        """Return a scorer of the parts that have a weight."""
        first, *others = (part for part, weight in zip(self.parts, weights, strict=True) if weight)
        return first.join(others, [weight for weight in weights if weight]) if others else first

    def rows_for(self, texts: Sequence[str], near: Near | None = None) -> Floats:
        """Make vectors of new labels, each part its own."""
        return np.concatenate([part.rows_for(texts, near) for part in self.parts], axis=1)

    def arrays(self) -> Arrays:
        """Name the arrays of each part for a model file."""
        first, *others = (part.arrays() for part in self.parts)
        tower = self.tower.arrays()
        for place, arrays in enumerate(others, 1):
            first |= {f"objective{place}.{name}": array for name, array in arrays.items() if name not in tower}
        return first
