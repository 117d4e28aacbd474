"""TEXT → RANKED LABELS: the only predictor. Vectors, words and new labels fused; then what the asker allows.

One text takes a quick way without matrices; many go in blocks. Both rank alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError, ModelError
from longtail.machine import compiles, in_threads, threads
from longtail.parts import Proposals, Query
from longtail.scorers.added import Additions
from longtail.scorers.fused import FusedScorer
from longtail.types import Floats, LabelMatrix, Texts, TopK

FEW = 64  # texts that are quicker one by one, labels that are quicker kept in order
TWICE = 2  # places at most that a label has among the candidates
LEAST, MOST = 128, 1024  # texts that are answered at once
Ranked = tuple[NDArray[Any], Floats]  # labels and scores, best first
Curve = Callable[[NDArray[Any]], Floats]  # from scores to probabilities


@dataclass(frozen=True, eq=False)
class Predictor:
    """What scores the labels of a model, and the labels that were added after training."""

    scorer: FusedScorer
    labels: int  # that were trained
    added: Additions | None = None

    @property
    def count(self) -> int:
        """How many labels there are, new ones too."""
        return self.labels + (self.added.count if self.added else 0)

    def one(self, text: str, n: int) -> Ranked:
        """Find the n best labels of one text."""
        query = Query([text])
        labels, scores, proposed = self.scorer.candidates(query, n)
        return _ranked(*self._with_added(query, labels, scores, proposed), n)

    def _with_added(self, query: Query, labels: NDArray[Any], scores: Floats, proposed: Sequence[Proposals]) -> Ranked:
        """Add the new labels."""
        if self.added is None:
            return labels, scores
        new, values = self.added.scores(query, self.scorer, proposed, float(scores.max()) if len(scores) else 0.0)
        return np.concatenate([labels, new + self.labels]), np.concatenate([scores, values])

    def within(self, text: str, labels: NDArray[np.int64]) -> Ranked:
        """Score chosen labels of one text, all of them where vectors know it; labels ascend."""
        query = Query([text])
        trained, scores, proposed = self.scorer.within(query, labels[labels < self.labels])
        merged, values = self._with_added(query, trained, scores, proposed)
        mask = np.isin(merged, labels)
        return _ranked(merged[mask], values[mask], len(merged))

    def parts_of(self, text: str, label: int) -> Callable[[str], float]:
        """Return what scores a label for parts of a text, and never only says that it is the best that there is.

        Words alone score by the best label of each text, so that every part of a text may have the largest score: parts
        are compared with the whole text instead, and labels that came after training by the similarity of their texts.
        """
        if self.scorer.vectors is not None:
            return lambda part: self.score(part, label)
        if self.added is not None and label >= self.labels:
            added = self.added
            return lambda part: float(added.similarities(part)[0][label - self.labels])
        whole = self.scorer.within(Query([text]), np.array([label]))[2]
        return lambda part: self.scorer.unbounded(Query([part]), label, whole)

    def score(self, text: str, label: int) -> float:
        """Score a label of one text; 0 where it has none."""
        labels, scores = self.within(text, np.array([label]))
        return float(scores[0]) if len(labels) else 0.0

    def block(self, texts: Sequence[str], n: int) -> TopK:
        """Find the n best trained labels of each text, all texts at once: (N, n)."""
        top = self.scorer.top(Query(texts), n)
        _finite(top.scores[top.labels >= 0])
        return top

    def in_order(self, texts: Sequence[str], n: int) -> TopK:
        """Find the n best trained labels of each text, block by block: equal bits whatever the number of threads."""
        topk = empty_topk(len(texts), n)
        for start in range(0, len(texts), MOST):
            some = slice(start, start + MOST)
            block = self.block(texts[some], n)
            topk.labels[some], topk.scores[some] = block.labels, block.scores
        return topk

    def many(self, texts: Sequence[str], n: int) -> TopK:
        """Find the n best labels of each text: (N, n); few of them one by one, many in threads."""
        topk = empty_topk(len(texts), n)
        if len(texts) <= FEW or self.added is not None:
            for row, text in enumerate(texts):
                own, values = self.one(text, n)
                topk.labels[row, : len(own)], topk.scores[row, : len(own)] = own, values
            return topk
        order = sorted(range(len(texts)), key=texts.__getitem__)  # like after like: what they read is at hand
        size = min(MOST, max(LEAST, -(-len(texts) // threads())))
        blocks = [order[start : start + size] for start in range(0, len(texts), size)]

        def ask(rows: list[int]) -> TopK:
            return self.block([texts[row] for row in rows], n)

        answers = in_threads(ask, blocks) if self.scorer.shares_threads else map(ask, blocks)
        for rows, top in zip(blocks, answers, strict=True):
            width = top.labels.shape[1]
            topk.labels[rows, :width], topk.scores[rows, :width] = top.labels, top.scores
        return topk


def empty_topk(texts: int, k: int) -> TopK:
    """Make room for k labels of each text."""
    return TopK(np.full((texts, k), -1, np.int32), np.full((texts, k), -np.inf, np.float32))


def _finite(scores: Floats) -> None:
    """Refuse scores that are no numbers: arrays that are sound one by one may still overflow together."""
    if not np.isfinite(scores).all():
        raise ModelError("the scores of the model are not finite numbers; do not use this model, train again")


def _ranked(labels: NDArray[Any], scores: Floats, n: int) -> Ranked:
    """Sort, best first and the smaller label among equals, and keep the first place of each label."""
    _finite(scores)
    if compiles() and n <= FEW:
        from longtail.search.selection import leading  # noqa: PLC0415  (numba is an extra)

        return leading(labels, scores, n, TWICE)
    order = np.lexsort((labels, -scores))[: TWICE * n]
    kept: dict[int, int] = {}
    for place, label in zip(order.tolist(), labels[order].tolist(), strict=True):
        kept.setdefault(label, place)
    first = list(kept.values())[:n]
    return labels[first], scores[first]


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

    def apply(self, row: int, text: str, k: int, predictor: Predictor) -> Ranked:
        """Find the k best labels of one text that may be predicted."""
        blocked = self.blocked(row)
        if self.allow is not None:
            chosen = np.unique(_row(self.allow, row)).astype(np.int64)
            return self.kept(*predictor.within(text, chosen), blocked, k)
        n = min(k + len(blocked - {-1}), predictor.count)
        while True:
            labels, scores = predictor.one(text, n)
            kept = self.kept(labels, scores, blocked, k)
            if len(kept[0]) == k or len(labels) < n or n == predictor.count:
                return kept
            n = min(4 * n, predictor.count)

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


def predict(predictor: Predictor, texts: Sequence[str], k: int, rules: Rules) -> TopK:
    """Find the k best labels of each text that the rules allow."""
    spare = rules.spare()
    if rules.free:
        return predictor.many(texts, k)
    if len(texts) > FEW and spare is not None and spare <= 10 * k + 100:
        top = predictor.many(texts, min(k + spare, predictor.count))
        return _each(top, k, lambda row, own, values: rules.kept(own, values, rules.blocked(row), k))
    labels, scores = np.full((len(texts), k), -1, np.int32), np.full((len(texts), k), -np.inf, np.float32)
    for row, text in enumerate(texts):
        own, best = rules.apply(row, text, k, predictor)
        labels[row, : len(own)], scores[row, : len(own)] = own, best
    return TopK(labels, scores)


def finished(
    top: TopK, names: Texts | None, *, limits: Floats | None = None, curve: Curve | None = None,
    threshold: float | None = None,
) -> TopK:  # fmt: skip
    """Drop what lies below the limit of its label, turn scores into probabilities, and drop what is still too low."""
    labels, scores = top.labels, top.scores
    if limits is None and curve is None and threshold is None:
        return TopK(labels, scores, names)
    low = labels < 0
    if limits is not None:
        low |= scores < limits[labels]
    if curve is not None:
        scores = np.where(labels < 0, -np.inf, curve(scores)).astype(np.float32)
    if threshold is not None:
        low |= scores < threshold
    return TopK(np.where(low, np.int32(-1), labels), np.where(low, np.float32(-np.inf), scores), names)


def _each(top: TopK, k: int, keep: Callable[[int, NDArray[Any], Floats], Ranked]) -> TopK:
    """Filter every row."""
    topk = empty_topk(len(top), k)
    for row in range(len(top)):
        own, values = keep(row, top.labels[row], top.scores[row])
        topk.labels[row, : len(own)], topk.scores[row, : len(own)] = own, values
    return topk
