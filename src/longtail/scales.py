"""HELD-OUT LABELS → SCALE OF NEW ONES: what the score of a label that came after training is worth among trained ones.

Some trained labels are scored for validation points as if they had just been added. Two logistic curves say how often a
score is right, as a new label and as a trained one; a new label gets the score of a trained one that is right as often.
References: [Platt 1999].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.parts import Query
from longtail.scorers.added import Additions, Scale, similar_labels
from longtail.scorers.fused import FusedScorer
from longtail.search.inverted import Inverted
from longtail.types import Floats, LabelMatrix, TopK, contains

LABELS, POINTS, PAIRS = 5000, 1000, 4000  # that are looked at
BEST = 10  # labels of a point that count, of trained ones; of new ones so many as are expected among the ten
LEAST = 20  # right answers, and wrong ones, that are needed to say anything
ROUNDS = 50  # of Newton's method


def highest(top: TopK) -> float | None:
    """Return the highest score of trained labels; None where there is none."""
    found = top.scores[top.labels >= 0]
    return float(found.max()) if len(found) else None


def fit_scale(scorer: FusedScorer, words: Words, validation: Split, top: TopK) -> Scale:
    """Fit the scale of new labels; `top` are the best trained labels of the validation points."""
    scale = Scale(top=highest(top))
    if validation.labels.texts is None:
        return scale
    mask = top.labels >= 0
    trained = logistic(top.scores[mask], contains(validation.targets, top.labels)[mask])
    new = logistic(*as_new(scorer, words, validation, top))
    if trained is None or new is None:
        return scale
    return Scale(new[0] / trained[0], (new[1] - trained[1]) / trained[0], scale.top)


def as_new(scorer: FusedScorer, words: Words, validation: Split, top: TopK) -> tuple[Floats, NDArray[np.bool_]]:
    """Score trained labels as if they had been added: of the best of each point, the scores and which are right.

    `top` are the best trained labels of the points.
    """
    names, texts = validation.labels.texts, validation.need_texts("a scale")
    assert names is not None, "fit_scale has seen them"
    draw = np.random.default_rng(0)
    labels = np.sort(draw.permutation(len(names))[:LABELS])
    index = Inverted.build(words.bag(names))

    def near(some: Sequence[str]) -> sp.csr_array:
        similar = similar_labels(words, index, some)
        own = sp.csr_array((np.ones(len(labels)), (np.arange(len(labels)), labels)), similar.shape)
        similar = sp.csr_array(similar - similar.multiply(own))  # a new label is not there yet
        similar.eliminate_zeros()
        return similar

    count = max(1, round(BEST * len(labels) / len(names)))
    added = Additions.of(names.take(labels).tolist(), words, scorer.vectors, near)
    scores, hits = list[Floats](), list[NDArray[np.bool_]]()
    for row in np.sort(draw.permutation(len(validation))[: min(POINTS, PAIRS // count)]).tolist():
        query = Query([texts[row]])
        proposed = [voice.candidates(query, BEST) for voice, _ in scorer.voices]
        places, own = added.scores(query, scorer, proposed, float(top.scores[row].max(initial=0.0)))
        best = np.argsort(-own, kind="stable")[:count]
        chosen = labels[places[best]]
        allowed = ~np.isin(chosen, _row(validation.excluded, row))
        scores.append(own[best][allowed])
        hits.append(np.isin(chosen[allowed], _row(validation.targets, row)))
    return np.concatenate([np.zeros(0, np.float32), *scores]), np.concatenate([np.zeros(0, np.bool_), *hits])


def _row(matrix: LabelMatrix, row: int) -> NDArray[Any]:
    """List the labels of one point."""
    own: NDArray[Any] = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
    return own


def logistic(scores: Floats, hits: NDArray[np.bool_]) -> tuple[float, float] | None:
    """Fit how often a score is right: the slope and the shift of its log-odds; None where nothing can be said.

    >>> hits = np.tile(np.arange(200), 2) < np.repeat([50, 150], 200)  # a quarter of the first, most of the second
    >>> [round(value, 1) for value in logistic(np.repeat(np.float32([0, 1]), 200), hits)]
    [2.2, -1.1]
    """
    right, count = int(hits.sum()), len(hits)
    if min(right, count - right) < LEAST:
        return None
    center, spread = float(scores.mean()), max(float(scores.std()), 1e-12)
    features = np.stack([(scores - center) / spread, np.ones(count)], axis=1).astype(np.float64)
    targets = np.where(hits, (right + 1) / (right + 2), 1 / (count - right + 2))  # no curve is infinitely steep
    weights = np.array([0.0, np.log((right + 1) / (count - right + 1))])
    for _ in range(ROUNDS):
        shares = expit(features @ weights)
        gradient = features.T @ (targets - shares)
        curvature = features.T @ (features * (shares * (1 - shares))[:, None]) + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights += step
        if np.abs(step).max() < 1e-8:
            break
    slope = float(weights[0] / spread)
    return (slope, float(weights[1] - slope * center)) if slope > 0 else None
