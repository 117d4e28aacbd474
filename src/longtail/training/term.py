"""OBJECTIVE → TERM OF THE LOSS: head, sampler, classifier and loss, made ready, and what a step does with them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.errors import RecipeError
from longtail.labels.tree import Clusters
from longtail.parts import (
    OWN,
    TARGETS,
    Batch,
    BuiltSampler,
    Candidates,
    FrozenHead,
    FrozenTower,
    Inputs,
    Network,
    Objective,
    Scorer,
    States,
    Step,
)
from longtail.shards import ALONE, Group, splitting
from longtail.training.shared import columns, other_chance, scaled, summed
from longtail.types import Floats, LabelMatrix


class Surroundings(Network, Protocol):
    """What a term needs of the network that it is a part of."""

    group: Group
    width: int

    @property
    def partial(self) -> bool:
        """Whether a process has but a part of the encoder's gradient."""

    @property
    def partition(self) -> Clusters:
        """The clusters of the labels."""

    def states(self, inputs: Inputs, step: Step) -> States:
        """Encode texts."""

    def frozen_tower(self) -> FrozenTower:
        """Give the tower as it is served."""

    def sharing_out(self, group: Group) -> AbstractContextManager[None]:
        """Let a group of processes share the labels whose tables are made inside the block."""


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of a batch against its candidates, and what they should be."""

    scores: Tensor  # (B, K)
    targets: Tensor  # (B, K)
    mask: Tensor | None  # (B, K) False where a pair must not be learnt from


class Encoded:
    """A batch that is encoded when a sampler or a classifier first asks for it: a pool is drawn before."""

    def __init__(self, encode: Callable[[], States]) -> None:
        self.encode, self.states = encode, list[States]()

    @property
    def done(self) -> bool:
        """Whether it is encoded."""
        return bool(self.states)

    def __call__(self) -> States:
        """Return the encoded batch."""
        if not self.states:
            self.states.append(self.encode())
        return self.states[0]


class Term:
    """One objective made ready: head, sampler, classifier and loss."""

    def __init__(self, objective: Objective, network: Surroundings) -> None:
        self.objective, self.network = objective, network
        # Clusters are few, and samplers look at all of them: every process has them all.
        self.group = network.group if objective.over == "labels" and objective.classifier.can_split else ALONE
        width, points = network.width, network.points
        self.partition: Clusters | None = network.partition if objective.over == "clusters" else None
        self.head = None if objective.head is None else objective.head.build(width, network)
        # One pool for all who want the same.
        same = [term for term in network.terms if term.objective.over == objective.over]
        shared: list[BuiltSampler] = [t.sampler for t in same if t.objective.sampler == objective.sampler]
        self.sampler: BuiltSampler = shared[0] if shared else objective.sampler.build(network)
        with network.sharing_out(self.group):
            self.classifier = objective.classifier.build(
                points if self.partition is None else points.clustered(self.partition),
                width if objective.head is None else objective.head.out_width(width),
                network,
                self.head,
            )

    @cached_property
    def names(self) -> Inputs | None:
        """The texts of what is scored, as the classifier wants them; clusters have only bags of words."""
        names = self.network.points.names
        if names is None or self.classifier.texts_as != "words":
            return names if self.partition is None else None
        return self.network.tower.bags(names, self.partition)

    def take_over(self, other: Term, *, rows: bool = True) -> None:
        """Start from another term's weights, wherever there is one of the same name and shape; rows too, or layers."""
        ours, theirs = (dict(nn.ModuleDict(term.modules()).state_dict()) for term in (self, other))
        for name, value in ours.items():
            if name in theirs and theirs[name].shape == value.shape:
                value.copy_(theirs[name])
        for name, table in self.classifier.tables.items() if rows else ():
            found = other.classifier.tables.get(name)
            if found is not None and found.shape == table.shape:
                table.take(found.values)

    def modules(self) -> dict[str, nn.Module]:
        """Name the parameters that every step changes."""
        modules = {"head": self.head, "classifier": self.classifier.module}
        return {name: module for name, module in modules.items() if isinstance(module, nn.Module)}

    @cached_property
    def reads(self) -> bool:
        """Whether the texts of labels are encoded in its steps."""
        return self.names is not None and self.classifier.texts(np.zeros(1, np.int64)) is not None

    def __call__(self, batch: Batch, states: Encoded, step: Step) -> Tensor:
        """Compute the weighted loss of a batch; where processes share labels, what its own add to it."""
        weights, loss = torch.from_numpy(batch.weights).to(self.network.device), self.objective.loss
        with splitting(self.group if loss.adds_up else ALONE):
            if loss.by_rows and self.objective.classifier.has_factors and (self.group.alone or loss.adds_up):
                value = self._by_rows(batch, states, step, weights)
                if value is not None:
                    return self.objective.weight * value
            scored = self.scored(batch, states, step)
            return self.objective.weight * loss(scored.scores, scored.targets, scored.mask, weights)

    def counts(self) -> bool:
        """Return whether its loss counts once a process: what each has is a part of it, or this is the first one."""
        return self.network.group.first or (not self.group.alone and self.objective.loss.adds_up)

    def scored(self, batch: Batch, states: Encoded, step: Step) -> Scored:
        """Score a batch against its candidates, once a step."""
        if self not in step.memory:
            step.memory[self] = self._scored(batch, states, step)
        scored: Scored = step.memory[self]
        return scored

    def _scored(self, batch: Batch, states: Encoded, step: Step) -> Scored:
        batch = batch if self.partition is None else batch.clustered(self.partition)
        targets, excluded = batch.targets, batch.excluded
        candidates = self.candidates(batch, states, step)
        device, whole = self.network.device, not self.objective.loss.adds_up  # whether its loss needs all scores
        places = self.group.owned(candidates.labels)
        own = candidates.labels[places]
        labels = candidates.labels if whole else own
        mask = candidates.mask
        if mask is not None:
            mask = (mask if len(labels) == mask.shape[1] else mask[:, torch.from_numpy(places)]).to(device)
        if excluded.nnz:
            allowed = to_dense(excluded, labels, device) == 0
            mask = allowed if mask is None else mask & allowed
        wanted = to_dense(targets, labels, device)
        if self.partition is None:
            step.memory[TARGETS] = wanted, mask
        scores = self.classifier(*self.encoded(batch.inputs, own, states, step, candidates.labels), step)
        step.memory.pop(TARGETS, None)
        return Scored(columns(scores, places, len(labels), self.group) if whole else scores, wanted, mask)

    def _by_rows(self, batch: Batch, states: Encoded, step: Step, weights: Tensor) -> Tensor | None:
        """Compute the loss of a batch from what its scores are the products of; None: points differ in candidates."""
        batch = batch if self.partition is None else batch.clustered(self.partition)
        candidates, loss = self.candidates(batch, states, step), self.objective.loss
        if candidates.mask is not None:
            if loss.needs_rows:
                raise RecipeError(f"{loss.part} needs candidates that all points of a batch share, such as all_labels")
            return None
        labels = candidates.labels[self.group.owned(candidates.labels)]
        targets, excluded = batch.targets, batch.excluded
        if len(labels) < targets.shape[1]:
            targets, excluded = among(targets, labels), among(excluded, labels)
        given = self.encoded(batch.inputs, labels, states, step, candidates.labels)
        factors = replace(self.classifier.factors(*given, step), half=self.network.half)
        return loss.of_rows(factors, targets, excluded, weights)

    def candidates(self, batch: Batch, states: Encoded, step: Step) -> Candidates:
        """Choose the labels of a batch, once a step for all terms that share a sampler."""
        if self.sampler not in step.memory:
            proposed = self.sampler.propose(batch, states, step)
            step.memory[self.sampler] = proposed if self.partition else step.apply("candidates", proposed)
        candidates: Candidates = step.memory[self.sampler]
        return candidates

    def encoded(
        self, inputs: Inputs, labels: NDArray[np.int64], states: Encoded, step: Step,
        every: NDArray[np.int64] | None = None,
    ) -> tuple[States, NDArray[np.int64], States | None]:  # fmt: skip
        """Return what the classifier takes: points behind the head, labels, and the texts of these if it wants them.

        `every` are the labels of all processes, where they have shared them.
        """
        everything = labels if every is None else every
        wanted = self.classifier.texts(labels)
        texts = None if wanted is None or self.names is None else self.names.take(wanted)
        if texts is not None and not states.done:
            self.network.tower.expect(inputs, texts)
        points = self._points(states().detach() if step.progress < self.objective.detach else states(), step)
        step.memory[OWN] = self._among(labels, everything)
        if wanted is None or texts is None:
            return points, labels, None
        if self.classifier.texts_as == "words":
            return points, labels, self._shared(States(self.network.tower.sums(texts)))
        whole = wanted if self.group.alone else self.classifier.texts(everything)
        named = replace(step.plain(), own=None if whole is None else self._among(wanted, whole))
        key = "texts", wanted.tobytes()  # what several heads read is encoded once
        if key not in step.memory:
            with other_chance(self.group):
                step.memory[key] = self.network.states(texts, named)
        names: States = self._shared(step.memory[key])
        return points, labels, self._headed(names, named) if self.classifier.texts_as == "head" else names

    def _among(self, own: NDArray[np.int64], whole: NDArray[np.int64]) -> tuple[NDArray[np.int64], int] | None:
        """Return where what this process has stands in the whole, and how much that is; None: it has all."""
        return None if self.group.alone else (np.searchsorted(whole, own), len(whole))

    def _points(self, states: States, step: Step) -> States:
        """Pass points through the head; gradients are added up there, unless they are further down."""
        headed = self._headed(self._shared(states), step)
        return headed if self.group.alone or self.network.partial else summed(headed, self.group)

    def _shared(self, states: States) -> States:
        """Keep what every process computes from being added up several times."""
        return scaled(states, self.network.group) if self.group.alone and self.network.partial else states

    def _headed(self, states: States, step: Step) -> States:
        """Pass pooled vectors through the head."""
        return states if self.head is None else States(self.head(states.pooled, step), states.tokens, states.mask)

    @torch.no_grad()
    def freeze(self, tower: FrozenTower | None = None, *, own: bool = False) -> Scorer:
        """Give what is served of this objective, without what its sampler proposes; or the part of the own labels."""
        network, group = self.network, self.group if own else ALONE
        tower = tower or network.frozen_tower()
        head = None if self.head is None else self.head.freeze()
        if not group.alone and self.objective.classifier.mixes_labels:
            raise RecipeError(
                f"{self.objective.classifier.part} mixes the texts of labels that several processes own, and hard "
                "negatives are mined among those of each: --set sampler.hard=0, or train with one process"
            )
        names = None if self.names is None else Names(self, self.names, tower, head, group)
        return self.classifier.freeze(tower, head, names)


@dataclass(frozen=True, eq=False)
class Names:
    """The texts of the labels of a term, or of those that this process owns, encoded as they are served."""

    term: Term
    inputs: Inputs
    tower: FrozenTower
    head: FrozenHead | None
    group: Group

    def __len__(self) -> int:
        return self.group.count(len(self.inputs))

    def __call__(self, some: slice) -> Floats:
        """Encode some."""
        rows = self.inputs.take(np.arange(some.start, some.stop) * self.group.size + self.group.rank)
        texts_as = self.term.classifier.texts_as
        if texts_as == "words":
            return np.asarray(self.term.network.tower.sums(rows).cpu().numpy(), np.float32)
        vectors = self.tower.encode_inputs(rows)
        return self.head(vectors) if texts_as == "head" and self.head is not None else vectors


def among(matrix: LabelMatrix, labels: NDArray[np.int64]) -> LabelMatrix:
    """Keep the entries of a batch (B, L) that are among its candidates: (B, K)."""
    places = np.searchsorted(labels, matrix.indices)
    mask = np.append(labels, -1)[places] == matrix.indices
    starts = np.concatenate([[0], np.cumsum(mask)])[matrix.indptr]
    return sp.csr_array((matrix.data[mask], places[mask], starts), shape=(matrix.shape[0], len(labels)))


def to_dense(matrix: sp.csr_array, labels: NDArray[np.int64], device: torch.device) -> Tensor:
    """Lay the entries of a batch (B, L) out over its candidates: (B, K); what is not among them is left out."""
    return torch.from_numpy(among(matrix, labels).toarray().astype(np.float32, copy=False)).to(device)
