"""BATCH → BEST CLUSTERS → LABELS: labels are put into clusters, and only those of the best clusters are scored.

An objective over clusters learns to score them, side by side with the one over labels. In training the clusters of the
positives are always among the chosen ones. References: [InceptionXML] §5; methods §4.3 (1), §5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longtail.errors import RecipeError
from longtail.labels.tree import Clusters as Partition
from longtail.labels.tree import partition
from longtail.parts import Batch, BuiltSampler, Candidates, Network, Sampler, States, Step
from longtail.records import Cost, Sizes, When, record
from longtail.scorers.clusters import WEIGHT, ClusterRetriever

if TYPE_CHECKING:
    from torch import Tensor


@record
class Clusters(Sampler):
    """Settings of the clusters.

    A batch is scored against the union of its candidates, of which each point sees its own; the union is cut to
    `max_candidates` labels for each point of the batch, the clusters that fewest points chose first. Served, a label
    is ranked by log σ(its row) + `cluster_weight` · log σ(its cluster): 0 is the paper's way, 1 the product.
    """

    part: ClassVar[str] = "clusters"
    scores_probabilities: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, str]] = {
        "clusters": "num_clusters",
        "most": "max_candidates, which is for each point now",
        "smoothed": "smooth",
        "framework": "objectives.1.head (none: LightXML's) and detach",
        "detached": "detach, of the objective",
        "dropout": "objectives.1.classifier.dropout",
    }
    num_clusters: int | None = Field(default=None, ge=1)  # of labels; None: about eight labels each
    top: int = Field(default=32, ge=1)  # clusters that each point sees
    max_candidates: int = Field(default=64, ge=1)  # labels of a step, for each point of a batch
    smooth: bool = True  # cluster on points and graph neighbours instead of points alone
    cluster_weight: float | None = Field(default=None, ge=0)  # of the cluster in the rank of a label; None: validate

    def undecided(self) -> When:
        """Return when validation points settle the weight of clusters: with the rows that it is for."""
        return When.WHILE if self.cluster_weight is None else When.NEVER

    def check(self, recipe: Any) -> None:
        """Ask for an objective that learns the clusters."""
        if not any(objective.over == "clusters" for objective in recipe.objectives):
            raise RecipeError(f"{recipe.name}: the sampler `clusters` needs an objective over clusters beside it")

    def cost(self, sizes: Sizes) -> Cost:
        """Count scores, targets, loss and gradient of a batch against its candidates."""
        return Cost(memory=6 * 4.0 * sizes.batch_size * self.count(sizes) / sizes.processes)

    def count(self, sizes: Sizes) -> float:
        """Count the labels of a step."""
        return min(self.max_candidates * sizes.batch_size, sizes.labels)

    def build(self, network: Network) -> BuiltClusters:
        """Put the labels into clusters."""
        fit = network.fit
        labels = fit.partition
        if labels is None:
            labels = partition(fit.train, fit.words, self.num_clusters, walk={} if self.smooth else None, seed=fit.seed)
        return BuiltClusters(self, labels)

    def open(self, arrays: Mapping[str, NDArray[Any]], width: int, over: Any = None) -> ClusterRetriever:
        """Put what was learnt about clusters together."""
        head, inner = None, width
        if over is not None and over.head is not None:
            head, inner = over.head.open(arrays, "clusters.head", width), over.head.out_width(width)
        return ClusterRetriever.of_arrays(arrays, head, inner, self.top)


class BuiltClusters(BuiltSampler):
    """The clusters of the labels."""

    partition: Partition

    def __init__(self, settings: Clusters, labels: Partition) -> None:
        self.settings, self.partition = settings, labels

    def propose(self, batch: Batch, states: Callable[[], States], step: Step) -> Candidates:
        """Return the labels of the best clusters and of the positive ones, and which of them each point sees."""
        import torch  # noqa: PLC0415

        chosen, positive = self.chosen(batch, states, step)
        labels = self._union(chosen.cpu().numpy(), positive.cpu().numpy())
        own = torch.from_numpy(self.partition.of[labels].astype(np.int64)).to(chosen.device)
        return Candidates(labels, chosen[:, own])

    def chosen(self, batch: Batch, states: Callable[[], States], step: Step) -> tuple[Tensor, Tensor]:
        """Return the best clusters and the positive ones, and which are positive: (B, M) each."""
        import torch  # noqa: PLC0415

        clusters = step.network.over("clusters").scored(batch, states, step)
        with torch.no_grad():
            positive = clusters.targets > 0
            # Positives are lifted above every score, so that their clusters are always chosen.
            lifted = torch.sigmoid(clusters.scores.float()) + positive
            chosen = torch.zeros_like(lifted, dtype=torch.bool)
            chosen.scatter_(1, lifted.topk(min(self.settings.top, len(self.partition)), dim=1).indices, True)
            chosen |= positive
        return chosen, positive

    def _union(self, chosen: NDArray[np.bool_], positive: NDArray[np.bool_]) -> NDArray[np.int64]:
        """List the labels of the chosen clusters, those of positives first, then those that most points chose."""
        votes = chosen.sum(axis=0) + len(chosen) * positive.any(axis=0)
        order = np.argsort(-votes, kind="stable")[: int((votes > 0).sum())]
        sizes = np.diff(self.partition.starts)[order]
        needed = int(positive.any(axis=0).sum())
        most = self.settings.max_candidates * len(chosen)
        kept = max(int(np.searchsorted(np.cumsum(sizes), most, "right")), needed)
        labels = self.partition.labels_of(np.sort(order[:kept])[None]).ravel()
        return np.sort(labels[labels >= 0]).astype(np.int64)

    def freeze(self, network: Network) -> ClusterRetriever:
        """Give what was learnt about clusters."""
        return self.retriever(network)

    def retriever(self, network: Network) -> ClusterRetriever:
        """Give what a network has learnt about clusters."""
        scorer, weight = network.over("clusters").freeze(), self.settings.cluster_weight
        return ClusterRetriever(
            self.partition, scorer.project.head, scorer.store.take(slice(None)), scorer.store.bias, self.settings.top,
            weight=WEIGHT if weight is None else weight, undecided=weight is None,
        )  # fmt: skip
