"""SCORER → SCORER: a last stage, in which a second network learns to rank what the first one finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.arrays import matrix_arrays
from longtail.parts import Fit, Query, Sampler, Scorer, below
from longtail.records import named, record
from longtail.scorers.reranked import RerankedScorer
from longtail.training.settings import LoopSettings, LoopStage
from longtail.training.stages.training import prepared
from longtail.types import LabelMatrix, rows_of, without

BLOCK = 1024  # points whose candidates are found at once


@record
class Rerank(LoopStage):
    """A second network, trained on what the first one finds for the training points, ranks the `top` best again."""

    part: ClassVar[str] = "rerank"
    place: ClassVar[int] = 2
    reads_served: ClassVar[bool] = True
    top: int = Field(default=200, ge=1)  # labels that are ranked again
    # the labels that a step scores
    sampler: Sampler = Field(default_factory=lambda: named("batch_pool", random=200, hard=20))
    # settings of its loop
    training: LoopSettings = LoopSettings(epochs=10, learning_rate=0.002, schedule="step", decay_every=0.8)

    def run(self, fit: Fit) -> Fit:
        """Train the second network."""
        from longtail.training.loop import run_loop  # noqa: PLC0415  (torch)
        from longtail.training.network import TrainedNetwork  # noqa: PLC0415

        first: Any = fit.scorer
        served = next(one for one in fit.recipe.objectives if one.over == "labels" and one.share)
        objective = replace(served, sampler=self.sampler, weight=served.weight or 1.0)
        network = TrainedNetwork(fit, (objective,), self.training, augmentations=prepared(fit), fresh=True)
        network.terms[0].sampler.restore(matrix_arrays("mined", wrong_candidates(fit, first, self.top)))
        run_loop(network, "rerank", self.training)
        second: Any = network.terms[0].freeze()
        return fit.changed(scorer=RerankedScorer(first, second, self.top))

    def open(self, arrays: Mapping[str, NDArray[Any]], scorer: Any, opened: Callable[..., Any]) -> Scorer:
        """Add the second scorer to the first."""
        return RerankedScorer(scorer, opened(below(arrays, "rerank."), led=False), self.top)


def wrong_candidates(fit: Fit, scorer: Any, top: int) -> LabelMatrix:
    """Find the best labels of each training point that are wrong, block by block."""
    texts, points = fit.train.need_texts("reranking").tolist(), fit.points
    blocks = []
    for start in range(0, len(texts), BLOCK):
        some = slice(start, start + BLOCK)
        labels, scores = scorer.top(Query(texts[some]), top)
        best = rows_of(labels, scores + 1, points.targets.shape[1])
        blocks.append(without(best, points.targets[some] + points.excluded[some]))
    return sp.csr_array(sp.vstack(blocks))
