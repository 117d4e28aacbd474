"""TEXT → RANKED LABELS, as they are served: vectors, words and new labels fused; then what the asker allows.

One text takes a quick way without matrices; many go in blocks. Both rank alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.additions import UNKNOWN, Additions
from longtail.errors import DataError
from longtail.machine import in_threads, threads
from longtail.model import Model
from longtail.shortlists.blend import answers
from longtail.shortlists.search import Search
from longtail.shortlists.vectors import MORE
from longtail.types import Floats, LabelMatrix, TopK

FEW = 64  # texts that are quicker one by one
TWICE = 2  # places at most that a label has among the candidates
LEAST, MOST = 128, 1024  # texts that a thread answers at once
Ranked = tuple[NDArray[Any], Floats]  # labels and scores, best first
NONE: Ranked = (np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False)
class Ranker:
    """Everything that scores labels."""

    model: Model
    search: Search | None
    added: Additions | None = None

    @property
    def count(self) -> int:
        """How many labels there are, new ones too."""
        return len(self.model.labels) + (self.added.count if self.added else 0)

    @property
    def blend(self) -> float:
        """The weight of words beside vectors; they are alone where there are no vectors."""
        return 1.0 if self.search is None else (self.model.recipe.blend or 0.0)

    def one(self, text: str, n: int) -> Ranked:
        """Find the n best labels of one text."""
        model, search, blend = self.model, self.search, self.blend
        words, weights = model.words.query(text)
        labels, scores, query, found = *NONE, None, None
        if search is not None:
            query = search.encode_one(text, words, weights)
            fused = model.lexical is not None and blend > 0
            wide = n + MORE if fused and search.guided else n
            labels, scores = search.one(text, query, min(wide, len(search.labels)))
            if fused and search.guided:  # its own scores are of another kind than those of words
                scores = search.some(query, labels)
        if model.lexical is not None and blend > 0:
            if model.lexical.words is not model.words:  # those of the scores by words may be pieces and pairs
                words, weights = model.lexical.words.query(text)
            found = model.lexical.found(words, weights, n + MORE if search is not None else n)
            by_words = np.float32(blend) * found.scores
            if search is not None and query is not None:
                by_words += search.some(query, found.labels)
            # A label that both name stands twice; the place with both scores ranks first and is the one that counts.
            labels, scores = np.concatenate([labels, found.labels]), np.concatenate([scores, by_words])
        if self.added is not None:
            best = (found.similarity, found.votes) if found is not None else (0.0, 0.0)
            new, values = self._added(text, query, best, float(scores.max(initial=0)))
            labels, scores = np.concatenate([labels, new]), np.concatenate([scores, values])
        return _ranked(labels, scores, n)

    def _added(self, text: str, query: Floats | None, best: tuple[float, float], top: float) -> Ranked:
        """Score the new labels beside what the trained ones got by words at most."""
        added, model = self.added, self.model
        if added is None:
            return NONE
        similar, unseen = added.similarities(text)
        scores = np.zeros(added.count, np.float32)
        if self.search is not None and query is not None and added.vectors is not None:
            product = added.vectors @ query + np.float32(added.bias)
            guided = self.search.guided and not self.search.vectors.cosine
            scores += np.float32(top) * np.maximum(_cosine(added.vectors, query), 0) if guided else product
            scores += np.float32(UNKNOWN) * unseen
        if model.lexical is not None and self.blend > 0:
            share, power = np.float32(model.lexical.settings.share or 0), model.lexical.settings.power or 1
            votes = similar**power
            near = similar / max(best[0], float(similar.max(initial=0)), 1e-12)
            near_points = votes / max(best[1], float(votes.max(initial=0)), 1e-12)
            scores += np.float32(self.blend) * (share * near + (1 - share) * near_points)
        labels = np.arange(added.count) + len(model.labels)
        if query is not None and query.any():
            return labels, scores
        return labels[similar > 0], scores[similar > 0]

    def within(self, text: str, labels: NDArray[np.int64]) -> Ranked:
        """Score chosen labels of one text, all of them where there are vectors; labels are sorted."""
        model, search = self.model, self.search
        if search is not None and search.guided:  # its scores exist for its candidates only
            ranked, scores = self.one(text, self.count)
            own = np.isin(ranked, labels)
            return ranked[own], scores[own]
        trained = labels[labels < len(model.labels)]
        words, weights = model.words.query(text)
        scores, query, best = np.zeros(len(trained), np.float32), None, (0.0, 0.0)
        if search is not None:
            query = search.encode_one(text, words, weights)
            scores += search.some(query, trained)
        if model.lexical is not None and self.blend > 0:
            found = model.lexical.found(*model.lexical.words.query(text), 1, also=trained)
            order = np.argsort(found.labels)
            places = order[np.searchsorted(found.labels, trained, sorter=order)]
            scores += np.float32(self.blend) * found.scores[places]
            best = found.similarity, found.votes
        if search is None:
            trained, scores = trained[scores > 0], scores[scores > 0]
        new, values = self._added(text, query, best, float(scores.max(initial=0)))
        asked = np.isin(new, labels)
        merged = np.concatenate([trained, new[asked]])
        return _ranked(merged, np.concatenate([scores, values[asked]]), len(merged))

    def many(self, texts: Sequence[str], n: int) -> TopK:
        """Find the n best labels of each text: (N, n)."""
        labels, scores = np.full((len(texts), n), -1, np.int32), np.full((len(texts), n), -np.inf, np.float32)
        if len(texts) <= FEW or self.added is not None:
            for row, text in enumerate(texts):
                own, values = self.one(text, n)
                labels[row, : len(own)], scores[row, : len(own)] = own, values
            return TopK(labels, scores)
        order = sorted(range(len(texts)), key=texts.__getitem__)  # like after like: what they read is at hand
        size = min(MOST, max(LEAST, -(-len(texts) // threads())))
        blocks = [order[start : start + size] for start in range(0, len(texts), size)]

        def ask(rows: list[int]) -> TopK:
            block = [texts[row] for row in rows]
            return answers(self.search, self.model.lexical, self.model.recipe.blend, block, n)

        shared = self.search is None or self.search.shares
        for rows, top in zip(blocks, in_threads(ask, blocks) if shared else map(ask, blocks), strict=True):
            labels[rows, : top.labels.shape[1]], scores[rows, : top.labels.shape[1]] = top.labels, top.scores
        return TopK(labels, scores)


def _ranked(labels: NDArray[Any], scores: Floats, n: int) -> Ranked:
    """Sort, best first and the smaller label among equals, and keep the first place of each label."""
    order = np.lexsort((labels, -scores))[: TWICE * n]
    kept: dict[int, int] = {}
    for place, label in zip(order.tolist(), labels[order].tolist(), strict=True):
        kept.setdefault(label, place)
    first = list(kept.values())[:n]
    return labels[first], scores[first]


def _cosine(rows: Floats, query: Floats) -> Floats:
    """Tell the cosine of each row and a query."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    return np.asarray(rows @ query / np.maximum(lengths, 1e-12), np.float32)


@dataclass(frozen=True, eq=False)
class Groups:
    """Labels that are much the same: at most `most` of a group are predicted for a text.

    `of` names the group of a label; labels that it does not name stand alone.
    """

    of: Mapping[int, Any]
    most: int = 1


@dataclass(frozen=True, eq=False)
class Rules:
    """What may be predicted; lists hold for all texts, matrices (N, L) for one text each."""

    allow: Sequence[int] | LabelMatrix | None = None
    deny: Sequence[int] | LabelMatrix | None = None
    exclude: LabelMatrix | None = None
    groups: Groups | None = None
    removed: frozenset[int] = frozenset()

    def checked(self, texts: int, labels: int) -> Rules:
        """Refuse labels that do not exist and matrices of another shape."""
        for name, value in (("allow", self.allow), ("deny", self.deny), ("exclude", self.exclude)):
            if value is None:
                continue
            if isinstance(value, sp.csr_array):
                if value.shape[0] != texts or value.shape[1] > labels:
                    raise DataError(f"{name} is {value.shape}", remedy=f"give ({texts}, {labels})")
            elif len(value) and not 0 <= min(value) <= max(value) < labels:
                raise DataError(f"{name} names labels {min(value)} to {max(value)}", remedy=f"use 0 to {labels - 1}")
        if self.groups is not None and self.groups.most < 1:
            raise DataError(f"{self.groups.most} labels of a group", remedy="allow at least one")
        return self

    @property
    def free(self) -> bool:
        """Whether everything may be predicted."""
        parts = (self.allow, self.deny, self.exclude, self.groups)
        return not self.removed and all(part is None for part in parts)

    def spare(self) -> int | None:
        """How many further labels make up for those left out; None where nobody knows."""
        if self.allow is not None or self.groups is not None:
            return None
        counts = [len(self.removed)]
        for part in (self.deny, self.exclude):
            if part is not None:
                counts.append(int(np.diff(part.indptr).max(initial=0)) if isinstance(part, sp.csr_array) else len(part))
        return sum(counts)

    def blocked(self, row: int) -> set[int]:
        """List what one text must not get."""
        return {-1, *self.removed, *_row(self.deny, row).tolist(), *_row(self.exclude, row).tolist()}

    def apply(self, row: int, text: str, k: int, ranker: Ranker) -> Ranked:
        """Find the k best labels of one text that may be predicted."""
        blocked = self.blocked(row)
        if self.allow is not None:
            chosen = np.unique(_row(self.allow, row)).astype(np.int64)
            return self.kept(*ranker.within(text, chosen), blocked, k)
        n = min(k + len(blocked - {-1}), ranker.count)
        while True:
            labels, scores = ranker.one(text, n)
            kept = self.kept(labels, scores, blocked, k)
            if len(kept[0]) == k or len(labels) < n or n == ranker.count:
                return kept
            n = min(4 * n, ranker.count)

    def kept(self, labels: NDArray[Any], scores: Floats, blocked: set[int], k: int) -> Ranked:
        """Leave out what is blocked or too many of its group."""
        seen: dict[Any, int] = {}
        places = []
        for place, label in enumerate(labels.tolist()):
            if label in blocked:
                continue
            if self.groups is not None and label in self.groups.of:
                group = self.groups.of[label]
                seen[group] = seen.get(group, 0) + 1
                if seen[group] > self.groups.most:
                    continue
            places.append(place)
            if len(places) == k:
                break
        return labels[places], scores[places]


def _row(part: Sequence[int] | LabelMatrix | None, row: int) -> NDArray[Any]:
    """List the labels of a rule for one text."""
    if part is None:
        return np.zeros(0, np.int64)
    if isinstance(part, sp.csr_array):
        own: NDArray[Any] = part.indices[part.indptr[row] : part.indptr[row + 1]]
        return own
    return np.asarray(part, np.int64)


def predict(ranker: Ranker, texts: Sequence[str], k: int, rules: Rules) -> TopK:
    """Find the k best labels of each text that the rules allow."""
    spare = rules.spare()
    if rules.free:
        return ranker.many(texts, k)
    if len(texts) > FEW and spare is not None and spare <= 10 * k + 100:
        top = ranker.many(texts, min(k + spare, ranker.count))
        return _each(top, k, lambda row, own, values: rules.kept(own, values, rules.blocked(row), k))
    labels, scores = np.full((len(texts), k), -1, np.int32), np.full((len(texts), k), -np.inf, np.float32)
    for row, text in enumerate(texts):
        own, best = rules.apply(row, text, k, ranker)
        labels[row, : len(own)], scores[row, : len(own)] = own, best
    return TopK(labels, scores)


def _each(top: TopK, k: int, keep: Callable[[int, NDArray[Any], Floats], Ranked]) -> TopK:
    """Filter every row."""
    labels, scores = np.full((len(top), k), -1, np.int32), np.full((len(top), k), -np.inf, np.float32)
    for row in range(len(top)):
        own, values = keep(row, top.labels[row], top.scores[row])
        labels[row, : len(own)], scores[row, : len(own)] = own, values
    return TopK(labels, scores)
