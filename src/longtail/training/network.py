"""TOWER + OBJECTIVES → NETWORK: what the loop trains, and what it leaves behind as a scorer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.errors import RecipeError
from longtail.labels.tree import Clusters
from longtail.parts import (
    Arrays,
    Batch,
    Fit,
    FrozenTower,
    Inputs,
    Noise,
    Objective,
    Place,
    Points,
    Prepared,
    Remembers,
    States,
    Step,
    Table,
    Tower,
    below,
)
from longtail.shards import ALONE, Group, world
from longtail.training.noise import StoredNoise
from longtail.training.settings import LoopSettings
from longtail.training.tables import LocalTable, ShardedTable
from longtail.training.term import Encoded, Term
from longtail.types import Floats

CHUNK = 4096  # texts that are encoded at once outside of training


class Probe:
    """Keeps the embeddings of a batch, for the gradient of its loss."""

    acts_on: tuple[Place, ...] = ("embeddings",)
    embedded: Tensor

    def apply(self, place: Place, value: Tensor, step: Step) -> Tensor:
        """Cut the embeddings from the words that they are of."""
        self.embedded = value.detach().requires_grad_()
        return self.embedded


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
        self.device, self.group, self.sharing = device_of(settings), world(), ALONE
        self.half = half_of(settings, self.device) if self.group.alone else None  # processes cut other blocks
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
        if frozen:
            self.tower.module.requires_grad_(False)
        self.dense = nn.ModuleDict({"tower": self.tower.module})
        for place, term in enumerate(self.terms):
            self.dense.update({f"{name}{place}": module for name, module in term.modules().items()})
        self.dense.to(self.device)
        self.tables: dict[str, Table] = dict(self.tower.tables)
        for place, term in enumerate(self.terms):
            self.tables |= {f"{name}{place}": table for name, table in term.classifier.tables.items()}
        self.summed = self._sum_gradients()
        inside = [part for part in augmentations if {"contexts", "hidden"} & {*part.acts_on}]
        if inside and not self.group.alone:
            raise RecipeError(
                f"{fit.recipe.name}: an augmentation at {', '.join(inside[0].acts_on)} looks at the labels of other "
                "processes; train with one process, or leave it out"
            )

    def table(self, values: Any, *, frozen: bool = False, of_labels: bool = False) -> LocalTable:
        """Make a table whose rows are trained as the settings say; processes share out those of labels."""
        if of_labels and not self.sharing.alone:
            rows = torch.from_numpy(values[self.sharing.rank :: self.sharing.size].copy()).to(self.device)
            return ShardedTable(rows, len(values), self.sharing, self.settings.optimizer, frozen)
        return LocalTable(torch.from_numpy(values).to(self.device), self.settings.optimizer, frozen)

    @contextmanager
    def sharing_out(self, group: Group) -> Iterator[None]:
        """Let a group of processes share the labels whose tables are made inside the block."""
        self.sharing = group
        try:
            yield
        finally:
            self.sharing = ALONE

    @cached_property
    def partial(self) -> bool:
        """Whether a process has but a part of the encoder's gradient: that of the label texts that it encodes."""
        return any(term.reads and not term.group.alone for term in self.terms)

    def _sum_gradients(self) -> list[nn.Parameter]:
        """Find what the processes have a part of the gradient of: its parameters are returned, its tables know it."""
        shared = [term for term in self.terms if not term.group.alone]
        modules = [term.modules().get("classifier") for term in shared]
        tables = [table for term in shared for table in term.classifier.tables.values()]
        if self.partial:
            modules += [self.tower.module, *(term.modules().get("head") for term in shared)]
            tables += self.tower.tables.values()
        for table in tables:
            table.group = self.group if table.labels is None else ALONE
        return [part for module in modules if module is not None for part in module.parameters()]

    @contextmanager
    def assembled(self) -> Iterator[None]:
        """Have the rows of all labels in every process, inside the block."""
        with ExitStack() as stack:
            for table in self.tables.values():
                if isinstance(table, ShardedTable):
                    stack.enter_context(table.assembled())
            yield

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
        losses = {term: term(batch, states, step) for term in self.terms if term.objective.weight}
        total: Tensor = reduce(torch.add, losses.values())
        counted = [loss for term, loss in losses.items() if term.counts()]
        self.counted = float(total.detach()) if self.group.alone else sum(float(loss.detach()) for loss in counted)
        return total

    def saliency(self, batch: Batch, draw: np.random.Generator) -> Floats:
        """Return how much the loss of a batch depends on each word: (B, T), the most of each text is one."""
        probe = Probe()
        step = Step(draw, 1.0, self, (probe,))
        self.tower.expect()
        loss = self._sum(batch, step)
        (gradient,) = torch.autograd.grad(loss, probe.embedded)
        if self.partial:
            self.group.sum_(gradient)
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


def half_of(settings: LoopSettings, device: torch.device) -> torch.dtype | None:
    """Find in what scores are multiplied, if not in full precision: bfloat16, where that is asked for and quick."""
    if settings.precision != "bf16-products":
        return None
    if device.type == "cuda":
        quick = torch.cuda.is_bf16_supported()
    else:
        can = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        quick = bool({"avx512_bf16", "amx_bf16"} & {name for name, there in can.items() if there})
    return torch.bfloat16 if quick else None
