"""BATCH → BEST NODES OF A TREE → LABELS: candidates are what is below the nodes that the level above found best.

The nodes of a point are found once, before its level is trained; those of its positives are always among them. Few
labels need no tree: then candidates come from a pool. References: [AttentionXML]; methods §4.3 (2), §5.12.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from longtail.errors import RecipeError
from longtail.labels.blocks import laid_out
from longtail.labels.tree import Clusters as Partition
from longtail.parts import BuiltSampler, Network, Query, Sampler
from longtail.records import Cost, Sizes, record
from longtail.samplers.batch_pool import BatchPool
from longtail.samplers.beam import BuiltBeam
from longtail.scorers.tree import TreeRetriever
from longtail.types import Ints

CHUNK = 1024  # points whose nodes are found at once


@record
class Tree(Sampler):
    """Settings of the tree; `levels` are the logarithms to base two of the nodes of each, [] is no tree.

    Without `levels` there is no tree up to `flat` labels; beyond, there is a level of 2^10 nodes at most, and more of
    eight times as many until a node has no more than 32 labels.
    """

    part: ClassVar[str] = "tree"
    has_levels: ClassVar[bool] = True
    # nodes of each level as powers of two; []: no tree; None: by the number of labels
    levels: tuple[int, ...] | None = None
    flat: int = Field(default=8192, ge=0)  # so many labels need no tree
    top: int = Field(default=16, ge=1)  # nodes that each point sees
    max_candidates: int = Field(default=64, ge=1)  # labels of a step, for each point of a batch
    pool: BatchPool = BatchPool()  # how labels are chosen where there is no tree
    positives: ClassVar[bool] = True  # whether the nodes of positives are always chosen

    def check(self, recipe: Any) -> None:
        """Ask for a stage that trains the levels, and for levels that widen."""
        if not any(stage.part == "levels" for stage in recipe.stages):
            raise RecipeError(f"{recipe.name}: the sampler `tree` needs a stage that trains its levels: levels")
        if self.levels is not None and (sorted({*self.levels}) != [*self.levels] or any(n < 1 for n in self.levels)):
            raise RecipeError(f"{recipe.name}: tree.levels must widen from one to the next, such as [8, 11]")
        super().check(recipe)

    def depths(self, labels: int) -> tuple[int, ...]:
        """Return the logarithms of the nodes of each level above so many labels.

        >>> Tree().depths(5000), Tree().depths(87_000)
        ((), (10, 13))
        """
        if self.levels is None:
            if labels <= self.flat:
                return ()
            depths = [min(10, max(1, int(math.log2(labels)) - 2))]
            while labels > 32 * 2 ** depths[-1]:
                depths.append(depths[-1] + 3)
            return tuple(depths)
        if self.levels and 2 ** self.levels[-1] > labels:
            most = int(math.log2(max(labels, 2)))
            raise RecipeError(
                f"a level of 2^{self.levels[-1]} nodes above {labels:,} labels: sampler.levels go up to {most} here"
            )
        return self.levels

    def cost(self, sizes: Sizes) -> Cost:
        """Count scores, targets, loss and gradient of a batch against its candidates."""
        return Cost(memory=6 * 4.0 * sizes.batch_size * min(self.max_candidates * sizes.batch_size, sizes.labels))

    def build(self, network: Network) -> BuiltSampler:
        """Find the nodes of each point as the level above scores them, or draw from a pool where there is no tree."""
        before: Any = network.fit.before
        terms = [] if before is None else before.terms
        above = next((term for term in terms if term.partition is not None), None)
        return self.pool.build(network) if above is None else BuiltTree(self, network, above)


class BuiltTree(BuiltBeam):
    """The best nodes of each point."""

    def __init__(self, settings: Tree, network: Network, above: Any) -> None:
        higher = above.sampler if isinstance(above.sampler, BuiltTree) else None
        nodes, inner = above.partition, network.given
        if inner is not None:  # this level is one of nodes, too
            of = np.empty(len(inner), np.int32)
            of[inner.of] = nodes.of
            nodes = Partition.build(of)
        self.settings, self.partition = settings, nodes  # type: ignore[assignment]
        self.levels: tuple[Any, ...] = (*(higher.levels if higher else ()), above.freeze())
        self.parents: tuple[Partition, ...] = (*(higher.parents if higher else ()), nodes)
        retriever, inputs = self.retriever(network), network.points.inputs
        beams = []
        for start in range(0, len(inputs), CHUNK):
            some = inputs.take(np.arange(start, min(start + CHUNK, len(inputs))))
            found = retriever.nodes(Query.of_inputs(some))
            beam = laid_out(found, found.indices.astype(np.int32), -1)
            beam = np.where(beam < 0, np.maximum(beam[:, :1], 0), beam)
            beams.append(np.pad(beam, ((0, 0), (0, max(0, settings.top - beam.shape[1]))), "edge"))
        self.beams: Ints = np.concatenate(beams)

    def retriever(self, network: Network) -> TreeRetriever:  # type: ignore[override]
        """Give the levels that are trained."""
        return TreeRetriever(self.levels, self.parents, self.settings.top)
