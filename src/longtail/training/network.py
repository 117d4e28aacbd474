"""TOWER + OBJECTIVES → NETWORK: what the loop trains, and what it leaves behind as a scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.errors import RecipeError
from longtail.labels.tree import Clusters
from longtail.parts import (
    TARGETS,
    Arrays,
    Batch,
    BuiltSampler,
    Candidates,
    Fit,
    FrozenTower,
    Inputs,
    Noise,
    Objective,
    Place,
    Points,
    Prepared,
    Remembers,
    Scorer,
    States,
    Step,
    Table,
    Tower,
    below,
)
from longtail.training.noise import StoredNoise
from longtail.training.settings import LoopSettings
from longtail.training.tables import LocalTable
from longtail.types import Floats, LabelMatrix

CHUNK = 4096  # texts that are encoded at once outside of training


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


class Probe:
    """Keeps the embeddings of a batch, for the gradient of its loss."""

    acts_on: tuple[Place, ...] = ("embeddings",)
    embedded: Tensor

    def apply(self, place: Place, value: Tensor, step: Step) -> Tensor:
        """Cut the embeddings from the words that they are of."""
        self.embedded = value.detach().requires_grad_()
        return self.embedded


class Term:
    """One objective made ready: head, sampler, classifier and loss."""

    def __init__(self, objective: Objective, network: TrainedNetwork) -> None:
        self.objective, self.network = objective, network
        width, points = network.width, network.points
        self.partition: Clusters | None = network.partition if objective.over == "clusters" else None
        self.head = None if objective.head is None else objective.head.build(width, network)
        # One pool for all who want the same.
        same = [term for term in network.terms if term.objective.over == objective.over]
        shared: list[BuiltSampler] = [t.sampler for t in same if t.objective.sampler == objective.sampler]
        self.sampler: BuiltSampler = shared[0] if shared else objective.sampler.build(network)
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
            if found is not None and found.values.shape == table.values.shape:
                table.values.copy_(found.values)

    def modules(self) -> dict[str, nn.Module]:
        """Name the parameters that every step changes."""
        modules = {"head": self.head, "classifier": self.classifier.module}
        return {name: module for name, module in modules.items() if isinstance(module, nn.Module)}

    def __call__(self, batch: Batch, states: Encoded, step: Step) -> Tensor:
        """Compute the weighted loss of a batch."""
        weights, loss = torch.from_numpy(batch.weights).to(self.network.device), self.objective.loss
        if loss.by_rows and self.objective.classifier.has_factors:
            value = self._by_rows(batch, states, step, weights)
            if value is not None:
                return self.objective.weight * value
        scored = self.scored(batch, states, step)
        return self.objective.weight * loss(scored.scores, scored.targets, scored.mask, weights)

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
        labels, device = candidates.labels, self.network.device
        mask = None if candidates.mask is None else candidates.mask.to(device)
        if excluded.nnz:
            allowed = to_dense(excluded, labels, device) == 0
            mask = allowed if mask is None else mask & allowed
        wanted = to_dense(targets, labels, device)
        if self.partition is None:
            step.memory[TARGETS] = wanted, mask
        scores = self.classifier(*self.encoded(batch.inputs, labels, states, step), step)
        step.memory.pop(TARGETS, None)
        return Scored(scores, wanted, mask)

    def _by_rows(self, batch: Batch, states: Encoded, step: Step, weights: Tensor) -> Tensor | None:
        """Compute the loss of a batch from what its scores are the products of; None: points differ in candidates."""
        batch = batch if self.partition is None else batch.clustered(self.partition)
        candidates, loss = self.candidates(batch, states, step), self.objective.loss
        if candidates.mask is not None:
            if loss.needs_rows:
                raise RecipeError(f"{loss.part} needs candidates that all points of a batch share, such as all_labels")
            return None
        labels, targets, excluded = candidates.labels, batch.targets, batch.excluded
        if len(labels) < targets.shape[1]:
            targets, excluded = among(targets, labels), among(excluded, labels)
        factors = self.classifier.factors(*self.encoded(batch.inputs, labels, states, step), step)
        return loss.of_rows(factors, targets, excluded, weights)

    def candidates(self, batch: Batch, states: Encoded, step: Step) -> Candidates:
        """Choose the labels of a batch, once a step for all terms that share a sampler."""
        if self.sampler not in step.memory:
            proposed = self.sampler.propose(batch, states, step)
            step.memory[self.sampler] = proposed if self.partition else step.apply("candidates", proposed)
        candidates: Candidates = step.memory[self.sampler]
        return candidates

    def encoded(
        self, inputs: Inputs, labels: NDArray[np.int64], states: Encoded, step: Step
    ) -> tuple[States, NDArray[np.int64], States | None]:
        """Return what the classifier takes: points behind the head, labels, and the texts of these if it wants them."""
        wanted = self.classifier.texts(labels)
        texts = None if wanted is None or self.names is None else self.names.take(wanted)
        if texts is not None and not states.done:
            self.network.tower.expect(inputs, texts)
        points = self._headed(states().detach() if step.progress < self.objective.detach else states(), step)
        if wanted is None or texts is None:
            return points, labels, None
        if self.classifier.texts_as == "words":
            return points, labels, States(self.network.tower.sums(texts))
        key = "texts", wanted.tobytes()  # what several heads read is encoded once
        if key not in step.memory:
            step.memory[key] = self.network.states(texts, step.plain())
        names: States = step.memory[key]
        return points, labels, self._headed(names, step) if self.classifier.texts_as == "head" else names

    def _headed(self, states: States, step: Step) -> States:
        """Pass pooled vectors through the head."""
        return states if self.head is None else States(self.head(states.pooled, step), states.tokens, states.mask)

    @torch.no_grad()
    def freeze(self, tower: FrozenTower | None = None) -> Scorer:
        """Give what is served of this objective, without what its sampler proposes."""
        network = self.network
        tower = tower or network.frozen_tower()
        head = None if self.head is None else self.head.freeze()
        inputs, texts_as = self.names, self.classifier.texts_as
        if inputs is None:
            return self.classifier.freeze(tower, head, None)

        def names(some: slice) -> Floats:
            rows = inputs.take(np.arange(some.start, some.stop))
            if texts_as == "words":
                return np.asarray(network.tower.sums(rows).cpu().numpy(), np.float32)
            vectors = tower.encode_inputs(rows)
            return head(vectors) if texts_as == "head" and head is not None else vectors

        return self.classifier.freeze(tower, head, names)


class TrainedNetwork:
    """A tower and the objectives that it is trained for."""

    def __init__(
        self, fit: Fit, objectives: Sequence[Objective], settings: LoopSettings, *,
        augmentations: Sequence[Prepared] = (), partition: Clusters | None = None,
        frozen: bool = False, fresh: bool = False,
    ) -> None:  # fmt: skip
        self.fit, self.settings, self.frozen, self.given = fit, settings, frozen, partition
        before: Any = None if fresh else fit.before
        self.points: Points = fit.points
        self.augmentations = augmentations
        self.device = device_of(settings)
        self.noise: Noise = StoredNoise(fit.seed)
        self.order = settings.order.build(fit, settings.batch_size)
        torch.manual_seed(fit.seed)
        self.tower: Tower = fit.recipe.encoder.build(fit.start, self)
        if before is not None:
            self.tower.take_over(before.tower)
        self.width: int = fit.recipe.encoder.width
        self.terms: list[Term] = []
        for objective in objectives:
            self.terms.append(term := Term(objective, self))
            if before is not None:
                same = [old for old in before.terms if old.objective.over == objective.over]
                same = [old for old in same if old.partition is term.partition]
                if same:
                    term.take_over(same[0])
                elif objective.classifier.hands_down:
                    for old in [old for old in before.terms if old.objective.classifier == objective.classifier][:1]:
                        term.take_over(old, rows=False)
        self.tower.module.requires_grad_(not frozen)
        self.dense = nn.ModuleDict({"tower": self.tower.module})
        for place, term in enumerate(self.terms):
            self.dense.update({f"{name}{place}": module for name, module in term.modules().items()})
        self.dense.to(self.device)
        self.tables: dict[str, Table] = dict(self.tower.tables)
        for place, term in enumerate(self.terms):
            self.tables |= {f"{name}{place}": table for name, table in term.classifier.tables.items()}

    def table(self, values: Any, *, frozen: bool = False) -> LocalTable:
        """Make a table whose rows are trained as the settings say."""
        return LocalTable(torch.from_numpy(values).to(self.device), self.settings.optimizer, frozen)

    @property
    def partition(self) -> Any:
        """The clusters of the labels that a sampler has made."""
        if self.given is not None:
            return self.given
        found = [term.sampler.partition for term in self.terms if term.sampler.partition is not None]
        if not found:
            raise RecipeError(f"{self.fit.recipe.name}: an objective over clusters needs a sampler that makes them")
        return found[0]

    def over(self, name: str) -> Term:
        """Return the objective over something else than labels."""
        return next(term for term in self.terms if term.objective.over == name)

    def loss(self, rows: NDArray[np.int64], draw: np.random.Generator, progress: float = 1.0) -> Tensor:
        """Compute the loss of some points; `progress` is the share of the steps that is done."""
        step = Step(draw, progress, self, self.augmentations)
        loss = self._sum(step.apply("batch", step.apply("words", self.points.take(rows))), step)
        self.tower.expect()  # nothing more: what was read for this step is old after it
        return loss

    def _sum(self, batch: Batch, step: Step) -> Tensor:
        """Add up the losses of the objectives."""
        states = Encoded(lambda: self.states(batch.inputs, step))
        return reduce(torch.add, [term(batch, states, step) for term in self.terms if term.objective.weight])

    def saliency(self, batch: Batch, draw: np.random.Generator) -> Floats:
        """Return how much the loss of a batch depends on each word: (B, T), the most of each text is one."""
        probe = Probe()
        step = Step(draw, 1.0, self, (probe,))
        self.tower.expect()
        loss = self._sum(batch, step)
        (gradient,) = torch.autograd.grad(loss, probe.embedded)
        sizes = gradient.square().mean(dim=2).sqrt()
        found: Floats = (sizes / sizes.amax(dim=1, keepdim=True).clamp_min(1e-12)).cpu().numpy()
        return found

    def states(self, inputs: Inputs, step: Step) -> States:
        """Encode texts."""
        states: States = step.apply("states", self.tower(inputs, step))
        return states

    @cached_property
    def remembering(self) -> list[Remembers]:
        """What changes between epochs: the order of points, and each sampler once."""
        return list(dict.fromkeys([self.order, *(term.sampler for term in self.terms)]))

    def on_epoch(self, epoch: int) -> None:
        """Let the order and the samplers cluster or mine again."""
        for part in self.remembering:
            part.on_epoch(epoch, self)

    def state(self) -> Arrays:
        """Name what they remember."""
        return {f"{i}.{name}": array for i, part in enumerate(self.remembering) for name, array in part.state().items()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Let them take what they remembered from a checkpoint."""
        for place, part in enumerate(self.remembering):
            part.restore(below(arrays, f"{place}."))

    def frozen_tower(self) -> FrozenTower:
        """Give the tower as it is served."""
        return self.tower.freeze(self.fit.tokenizer)

    def vectors(self, inputs: Inputs) -> Floats:
        """Encode texts outside of training, up to the heads."""
        tower, blocks = self.frozen_tower(), range(0, len(inputs), CHUNK)
        parts = [tower.encode_inputs(inputs.take(np.arange(i, min(i + CHUNK, len(inputs))))) for i in blocks]
        return np.concatenate(parts)

    def scorer(self) -> Any:
        """Turn what was learnt into what is served."""
        tower = self.frozen_tower()
        scorers, weights = [], []
        for term in self.terms:
            if term.objective.over == "labels" and term.objective.share:
                scorer, retriever = term.freeze(tower), term.sampler.freeze(self)
                scorers.append(scorer if retriever is None else scorer.led(retriever))
                weights.append(term.objective.share)
        return scorers[0] if len(scorers) == 1 else scorers[0].join(scorers[1:], weights)


def device_of(settings: LoopSettings) -> torch.device:
    """Find the device of a training."""
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as reason:  # torch has an assertion for a missing GPU
        what = str(reason).splitlines()[0]
        raise RecipeError(f"training.device is {device!r}: {what}; use auto, cpu, cuda or cuda:0") from None
    return torch.device(device)


def among(matrix: LabelMatrix, labels: NDArray[np.int64]) -> LabelMatrix:
    """Keep the entries of a batch (B, L) that are among its candidates: (B, K)."""
    places = np.searchsorted(labels, matrix.indices)
    mask = np.append(labels, -1)[places] == matrix.indices
    starts = np.concatenate([[0], np.cumsum(mask)])[matrix.indptr]
    return sp.csr_array((matrix.data[mask], places[mask], starts), shape=(matrix.shape[0], len(labels)))


def to_dense(matrix: sp.csr_array, labels: NDArray[np.int64], device: torch.device) -> Tensor:
    """Lay the entries of a batch (B, L) out over its candidates: (B, K); what is not among them is left out."""
    return torch.from_numpy(among(matrix, labels).toarray().astype(np.float32, copy=False)).to(device)
