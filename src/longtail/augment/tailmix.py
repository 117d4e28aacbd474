"""CONTEXTS → MIXED CONTEXTS: what a rare label sees of a text moves towards what a similar label sees of it.

Some positives of each point are drawn, rare ones more often. Of the labels that a target shares points with, the one
whose context is nearest becomes its partner: c = λ c_target + (1 - λ) c_partner, λ ~ Beta(α, α); the target's own
target becomes λ, the partner's at least 1 - λ. References: [TailMix]; methods §6.4, §7 (A10, D13).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.errors import RecipeError
from longtail.labels.blocks import edge_rows, laid_out
from longtail.labels.graph import proximity
from longtail.labels.propensity import Propensity, frequencies
from longtail.parts import TARGETS, Augmentation, Candidates, Contexts, Fit, Place, Step
from longtail.records import record
from longtail.types import Floats, LabelMatrix

if TYPE_CHECKING:
    pass

Drawn: TypeAlias = list[tuple[NDArray[np.int64], NDArray[np.int64]]]  # rows and labels of the first draw, the second …


@record
class TailMix(Augmentation):
    """Settings of TailMix; `similar` and `graph` are switched off for its ablations.

    Without `similar` the partner is drawn at random among neighbours, without `graph` it is any candidate of the step.
    """

    part: ClassVar[str] = "tailmix"
    acts_on: ClassVar[tuple[Place, ...]] = ("batch", "candidates", "contexts")
    alpha: float = Field(default=0.4, gt=0)  # of the Beta distribution that the share is drawn from
    targets: int = Field(default=1, ge=1, le=100)  # of a point that are mixed, at most
    neighbours: int = Field(default=32, ge=1)  # of a target that are compared, those with most points in common
    added: int = Field(default=192, ge=0)  # neighbours that join the labels of a step at most
    mix: bool = True  # false: only the candidates are those of TailMix
    similar: bool = True  # whether the most similar partner is taken, or any
    graph: bool = True  # whether partners are neighbours in the label graph
    members: Literal["all", "odd"] = "all"  # of an ensemble; odd: the second, the fourth …, beside plain ones
    literal: bool = False  # whether the target of a partner that is a positive falls to 1 - λ, as in the paper

    def check(self, recipe: Any) -> None:
        """Ask for a classifier with a context for each label."""
        if not any(objective.classifier.part == "label_attention" for objective in recipe.objectives):
            raise RecipeError(
                f"{recipe.name}: tailmix mixes what labels see of a text, which only label_attention has: "
                "use attentionxml+tailmix or laroberta+tailmix"
            )
        super().check(recipe)

    def of_member(self, member: int) -> Self | None:
        """Leave every other member as it is, where that is asked for."""
        return self if self.members == "all" or member % 2 else None

    def prepare(self, fit: Fit) -> TailMixer:
        """Weigh the labels, and keep the strongest edges of the label proximity graph."""
        points = fit.train.original.targets
        inverse = Propensity(0.55, 1.5).inverse(frequencies(points), points.shape[0])
        return TailMixer(self, inverse.astype(np.float64), proximity(points, top=self.neighbours))


@dataclass(frozen=True, eq=False)
class TailMixer:
    """TailMix made ready for one training set."""

    settings: TailMix
    inverse: NDArray[np.float64]  # (L,) inverse propensities
    graph: sp.csr_array  # (L, L) neighbours, without the diagonal
    acts_on: ClassVar[tuple[Place, ...]] = TailMix.acts_on

    def apply(self, place: Place, value: Any, step: Step) -> Any:
        """Draw the targets of a batch, add their neighbours to its candidates, or mix contexts."""
        if place == "batch":
            step.memory[self] = drawn_targets(value.targets, self.inverse, self.settings.targets, step.draw)
            return value
        drawn = step.memory[self]
        return self.with_neighbours(value, drawn, step) if place == "candidates" else self.mixed(value, drawn, step)

    def with_neighbours(self, candidates: Candidates, drawn: Drawn, step: Step) -> Candidates:
        """Add the targets and some of their neighbours, where all points of a batch share their candidates."""
        if candidates.mask is not None or not drawn:
            return candidates
        targets = np.unique(np.concatenate([labels for _, labels in drawn]))
        known = np.union1d(candidates.labels, targets)
        near = step.draw.permutation(np.setdiff1d(self.graph[targets].indices, known))
        return Candidates(np.union1d(known, near[: self.settings.added]).astype(np.int64))

    def mixed(self, contexts: Contexts, drawn: Drawn, step: Step) -> Contexts:
        """Mix the contexts of one target of each point after the other."""
        import torch  # noqa: PLC0415

        if TARGETS not in step.memory or not self.settings.mix:  # there are none for clusters
            return contexts
        targets, seen = step.memory[TARGETS]
        seen = np.ones(targets.shape, np.bool_) if seen is None else seen.cpu().numpy()
        for rows, labels in drawn:
            own = places_of(labels, contexts.labels)
            own = np.where(seen[rows, own], own, -1)
            partners = self.partners(contexts, (rows, labels, own), seen, step)
            some = (own >= 0) & (partners >= 0)
            share = step.draw.beta(self.settings.alpha, self.settings.alpha, len(rows))[some].astype(np.float32)
            device = targets.device
            of, here, there = (torch.from_numpy(a[some]).to(device) for a in (rows, own, partners))
            lam = torch.from_numpy(share).to(device)
            weights = contexts.weights
            mixed = lam[:, None] * weights[of, here] + (1 - lam)[:, None] * weights[of, there]
            contexts = replace(contexts, weights=weights.index_put((of, here), mixed))
            targets[of, here] *= lam
            targets[of, there] = 1 - lam if self.settings.literal else torch.maximum(targets[of, there], 1 - lam)
        return contexts

    def partners(
        self, contexts: Contexts, of: tuple[NDArray[Any], ...], seen: NDArray[np.bool_], step: Step
    ) -> NDArray[Any]:
        """Return the place of each target's partner among the candidates that its point sees, -1 where there is none.

        Targets are given by their rows, labels and places.
        """
        rows, labels, own = of
        choices = self._choices(contexts.labels, labels)
        allowed = (choices >= 0) & (choices != own[:, None]) & seen[rows[:, None], choices]
        if self.settings.similar:
            distances = self._distances(contexts, rows, own, choices)
            best = np.where(allowed, distances, np.inf).argmin(axis=1)
        else:
            best = np.where(allowed, step.draw.random(choices.shape), -1.0).argmax(axis=1)
        found = np.take_along_axis(choices, best[:, None], axis=1)[:, 0]
        return np.where(allowed.any(axis=1), found, -1)

    def _choices(self, candidates: NDArray[np.int64], labels: NDArray[Any]) -> NDArray[np.int64]:
        """List the places of possible partners of each target: (P, M), -1 where there are fewer."""
        if not self.settings.graph:
            return np.tile(np.arange(len(candidates)), (len(labels), 1))
        near = self.graph[labels]
        return laid_out(near, places_of(near.indices, candidates), -1)

    @staticmethod
    def _distances(contexts: Contexts, rows: NDArray[Any], own: NDArray[Any], choices: NDArray[Any]) -> Floats:
        """Return how far the contexts of possible partners are from those of the targets: (P, M)."""
        import torch  # noqa: PLC0415

        with torch.no_grad():
            of = torch.from_numpy(rows).to(contexts.weights.device)
            places = torch.from_numpy(np.maximum(np.column_stack([own, choices]), 0)).to(of.device)
            vectors = contexts.vectors(of, places)
            distances: Floats = (vectors[:, 1:] - vectors[:, :1]).norm(dim=2).cpu().numpy()
        return distances


def drawn_targets(targets: LabelMatrix, inverse: NDArray[np.float64], most: int, draw: np.random.Generator) -> Drawn:
    """Draw up to `most` positives of each point, without replacement, with probability ∝ exp(inverse propensity).

    >>> targets = sp.csr_array(np.array([[1.0, 1.0], [0, 1.0], [0, 0]]))
    >>> drawn = drawn_targets(targets, np.array([0.0, 50.0]), 2, np.random.default_rng(0))
    >>> [(rows.tolist(), labels.tolist()) for rows, labels in drawn]
    [([0, 1], [1, 1]), ([0], [0])]
    """
    rows = edge_rows(targets)
    keys = inverse[targets.indices] + draw.gumbel(size=targets.nnz)  # the largest of such keys are such draws
    order = np.lexsort((-keys, rows))
    rank = np.arange(targets.nnz) - targets.indptr[rows[order]]
    rounds = [order[rank == place] for place in range(min(most, int(rank.max(initial=-1)) + 1))]
    return [(rows[some].astype(np.int64), targets.indices[some].astype(np.int64)) for some in rounds]


def places_of(labels: NDArray[Any], candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where labels stand among ascending candidates, -1 where they do not."""
    if len(candidates) == 0:
        return np.full(len(labels), -1, np.int64)
    places = np.searchsorted(candidates, labels).clip(max=len(candidates) - 1)
    return np.where(candidates[places] == labels, places, -1).astype(np.int64)
