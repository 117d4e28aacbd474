"""LABELS → NODES ABOVE THEM → WEIGHTS TO GO ON FROM: the levels of a tree are trained from its root down.

Each level is a model like the one over labels; it starts from the encoder and the layers of the level above.
References: [AttentionXML]; methods §5.12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from longtail.arrays import checked, number, places
from longtail.errors import ModelError, RecipeError
from longtail.labels.tree import Clusters, partition
from longtail.parts import Fit, Objective, Scorer, below
from longtail.records import named, record
from longtail.scorers.tree import TreeRetriever
from longtail.training.settings import LoopStage
from longtail.training.stages.training import prepared


@record
class Levels(LoopStage):
    """Train the levels of the tree that the first objective's sampler describes; none where there are few labels."""

    part: ClassVar[str] = "levels"

    def check(self, recipe: Any) -> None:
        """Ask for a tree."""
        if not recipe.objectives[0].sampler.has_levels:
            raise RecipeError(f"{recipe.name}: the stage levels trains a tree: --set sampler=tree")
        super().check(recipe)

    def runs(self, recipe: Any, labels: int) -> bool:
        """Return whether so many labels have a tree above them."""
        return bool(recipe.objectives[0].sampler.depths(labels))

    def run(self, fit: Fit) -> Fit:
        """Train level by level."""
        from longtail.training.loop import run_loop  # noqa: PLC0415  (torch)
        from longtail.training.network import TrainedNetwork  # noqa: PLC0415

        objective: Objective = fit.recipe.objectives[0]
        tree: Any = objective.sampler
        depths = tree.depths(fit.points.targets.shape[1])
        if not depths:
            return fit
        leaves = partition(fit.train, fit.words, 2 ** depths[-1], seed=fit.seed)
        augmentations = prepared(fit)
        for place, depth in enumerate(depths):
            nodes = Clusters.build(leaves.of >> (depths[-1] - depth))
            sampler = tree if place else named("all_labels")
            level = replace(objective, over="clusters", sampler=sampler)
            network = TrainedNetwork(fit, (level,), self.training, augmentations=augmentations, partition=nodes)
            run_loop(network, f"levels{place + 1 if place else ''}", self.training)
            fit = fit.changed(before=network)
        return fit

    def open(self, arrays: Mapping[str, NDArray[Any]], scorer: Scorer, opened: Callable[..., Any]) -> Scorer:
        """Put the levels of a model file above the scorer of labels."""
        parents, levels = list[Clusters](), list[Any]()
        while f"tree{len(parents)}.of" in arrays:
            (of,) = checked(arrays, (places(f"tree{len(parents)}.of", "below", "below", dtypes=("int32",)),))
            levels.append(opened(below(arrays, f"level{len(parents)}."), led=False))
            parents.append(Clusters.build(np.array(of)))
        if not parents:
            return scorer
        sizes = [*(len(level) for level in levels), len(scorer)]
        if any(len(p) != n or len(p.of) != m for p, n, m in zip(parents, sizes, sizes[1:], strict=False)):
            raise ModelError("the levels of the model do not fit each other; train again")
        (top,) = checked(arrays, (number("tree.top", 1, 2**20, ("int64",)),))
        return scorer.led(TreeRetriever(tuple(levels), tuple(parents), int(top[0])))
