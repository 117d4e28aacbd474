"""MODEL FOLDER + SETTINGS → WHAT ANSWERS QUERIES: one function for a command, and for every worker of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from longtail.data.queries import Find, Queries
from longtail.errors import DataError
from longtail.index import Index
from longtail.labels.levels import Levels
from longtail.labels.lookup import label_finder
from longtail.types import LabelMatrix, TopK, label_matrix

WIDER = 10  # times as many labels are found where they are rolled up
Answer = Callable[[Queries], TopK]


@dataclass(frozen=True)
class PredictSettings:
    """What is asked of a model for every text."""

    k: int = 5
    threshold: float | str | None = None  # the lowest score, or the name of thresholds that were tuned
    probabilities: bool = False
    exclude_own: bool = False  # leave out the label that a text itself is
    level: int | None = None  # roll labels up to this level of their vocabulary

    def answer(self, index: Index) -> Answer:
        """Return what answers queries by a model."""
        levels = None if self.level is None else _levels(index)

        def answer(queries: Queries) -> TopK:
            exclude = _own_labels(queries, len(index.labels))
            wide = self.k if levels is None else WIDER * self.k  # several labels of a text have the same one above them
            top = index.predict(
                queries.texts, k=wide, threshold=self.threshold, probabilities=self.probabilities, exclude=exclude
            )
            if levels is None or self.level is None:
                return top
            return levels.rolled(top, self.level, self.k, index.removed)

        return answer

    def find(self, index: Index) -> Find | None:
        """Return what finds the label that a text itself is, where it is left out."""
        return label_finder(index.labels) if self.exclude_own else None


def _levels(index: Index) -> Levels:
    """Return which labels of a model are broader than others."""
    if index.model.labels.broader is None:
        raise DataError(
            "its labels have no levels", file=index.folder,
            remedy="leave --level out, or train with a SKOS vocabulary as labels",
        )  # fmt: skip
    return Levels(index.model.labels.broader)


def _own_labels(queries: Queries, labels: int) -> LabelMatrix | None:
    """Return the labels that texts themselves are, as a matrix."""
    if all(own is None for own in queries.own):
        return None
    starts = np.cumsum([0, *(own is not None for own in queries.own)])
    return label_matrix(starts, np.array([own for own in queries.own if own is not None]), (len(queries), labels))
