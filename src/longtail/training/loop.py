"""NETWORK + POINTS → WEIGHTS: the only training loop.

All chance in a step depends on (seed, step) alone, and in an epoch on (seed, epoch). So a checkpoint needs no state of
a random generator, and a run that was killed ends with the same weights as one that was not.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.errors import ResourceError
from longtail.machine import keep_freed_memory, release_freed_memory
from longtail.parts import below
from longtail.records import StageDone
from longtail.shards import Shard
from longtail.training.checkpoint import Checkpoint
from longtail.training.logs import Log
from longtail.training.network import TrainedNetwork
from longtail.training.settings import LoopSettings
from longtail.training.shared import reduce_gradients
from longtail.training.tables import Adam

Validate = Callable[[], dict[str, float]]
NORMS = 5  # lengths of gradients that a longer one is compared with


def run_loop(
    network: TrainedNetwork, name: str, settings: LoopSettings, *, patience: int | None = None,
    validate: Validate | None = None,
) -> None:  # fmt: skip
    """Run a stage, from its checkpoint if there is one."""
    keep_freed_memory()
    fit, checkpoint = network.fit, None
    if fit.scratch is not None:
        identity = {"recipe": fit.recipe.dump(), "data": fit.fingerprint, "stage": name}
        checkpoint = Checkpoint(fit.scratch / f"{name}.safetensors", identity, network.group)
    loop = Loop(network, settings, patience=patience)
    loop.run(name, checkpoint=checkpoint, validate=validate)
    fit.done.append(StageDone(name, loop.steps // loop.per_epoch, loop.steps, settings.batch_size))
    for table in network.tables.values():
        table.finish()
    release_freed_memory()


class Loop:
    """One run of the loop, with what it remembers between steps."""

    def __init__(self, network: TrainedNetwork, settings: LoopSettings, *, patience: int | None = None) -> None:
        self.network, self.settings, self.seed, self.patience = network, settings, network.fit.seed, patience
        self.group = network.group
        points = len(network.points.inputs)
        alone = points > settings.batch_size > 1 and points % settings.batch_size == 1
        # A last point that would be alone joins the batch before it: batch norms need two.
        self.per_epoch = math.ceil(points / settings.batch_size) - alone
        self.epochs = max(settings.epochs, math.ceil(settings.min_steps / self.per_epoch))
        self.total = self.epochs * self.per_epoch
        self.steps = 0  # done: fewer than all of them where patience ends it
        recipe = network.fit.recipe
        self.followed = len(recipe.stages) > 1 or recipe.ensemble > 1  # by trainings that are lost with this one
        trained = [part for part in network.dense.parameters() if part.requires_grad]
        self.optimizer = Adam(trained, self._scales())
        self.best, self.stale, self.kept = -math.inf, 0, dict[str, NDArray[Any]]()
        self.norms = deque[float](maxlen=NORMS)
        self.averaged, self.averages = 0, dict[str, Tensor]()
        self.saved, self.due = time.monotonic(), False  # when a checkpoint was written, and whether it is time for one

    def _scales(self) -> dict[nn.Parameter, float]:
        """Return what the rate of the encoder's layers is multiplied with, where it has one of its own."""
        rate: float | None = self.network.fit.recipe.encoder.own_rate
        if rate is None:
            return {}
        return dict.fromkeys(self.network.tower.module.parameters(), rate / self.settings.dense_learning_rate)

    def run(self, name: str, *, checkpoint: Checkpoint | None = None, validate: Validate | None = None) -> None:
        """Train until the last epoch, or until validation says that it is enough; from the checkpoint if any."""
        network, settings, fit = self.network, self.settings, self.network.fit
        done = self._resume(checkpoint)
        self.saved, order, losses = time.monotonic(), np.zeros(0, np.int64), list[float]()
        network.dense.train()
        with Log(fit.scratch if self.group.first else None, name, done=done, tensorboard=settings.tensorboard) as log:
            for step in range(done, self.total):
                epoch, place = divmod(step, self.per_epoch)
                if place == 0:
                    network.on_epoch(epoch)
                if place == 0 or len(order) == 0:
                    order = network.order.rows(epoch, np.random.default_rng([self.seed, 1, epoch]))
                factor = rate_factor(settings, step, self.total)
                first, last_of_epoch = place * settings.batch_size, place + 1 == self.per_epoch
                rows = order[first:] if last_of_epoch else order[first : first + settings.batch_size]
                losses.append(self._step(rows, step, factor))
                self.steps = step + 1
                enough = False
                if last_of_epoch:
                    self._average(epoch + 1)
                    measured = self._validated(validate) if validate else {}
                    log.note(epoch + 1, step + 1, float(np.mean(losses)), settings.learning_rate * factor, measured)
                    losses.clear()
                    enough = self._enough()
                if fit.progress:
                    fit.progress(f"{name}, epoch {epoch + 1} of {self.epochs}", step + 1, self.total)
                last = enough or step + 1 == self.total
                if checkpoint and (self.due or enough or (last and self.followed)):
                    at = self.total if last else step + 1
                    checkpoint.save(at, network.tables, network.dense, self.optimizer, self._remembered())
                    self.saved = time.monotonic()
                if enough:
                    break
        if not self.kept:
            self._swap()  # the averages, where there are any
        self._restore_best()
        network.dense.eval()

    def _step(self, rows: NDArray[np.int64], step: int, factor: float) -> float:
        """Change the weights by the gradient of one batch; returns its loss."""
        settings, network = self.settings, self.network
        number = (self.seed << 32) + step
        torch.default_generator.manual_seed(number)  # torch.manual_seed remembers every call where there is no GPU yet
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(number)
        half = settings.precision == "bf16-mixed"
        with torch.autocast(network.device.type, torch.bfloat16, enabled=half):
            loss = network.loss(rows, np.random.default_rng([self.seed, 2, step]), step / self.total)
        value = self._told(network.counted, last=step + 1 == self.total)
        if not math.isfinite(value):
            rate = settings.learning_rate
            raise ResourceError(
                f"the loss is {value} at step {step + 1} of {self.total} with a learning rate of {rate * factor:.2g}; "
                f"try --set training.learning_rate={rate / 4:g}"
            )
        self.optimizer.clear()
        loss.backward()  # type: ignore[no-untyped-call]
        reduce_gradients(network.summed, self.group)
        for table in network.tables.values():
            table.reduce()
        if settings.clip is not None:
            self._clip(settings.clip)
        for table in network.tables.values():
            table.step(settings.learning_rate * factor, step + 1)
        self.optimizer.step(settings.dense_learning_rate * factor)
        return value

    def _told(self, counted: float, *, last: bool) -> float:
        """Add up what the processes have of a loss; the first of them says whether it is time for a checkpoint.

        What took only a few seconds more to come to the last step is not saved again.
        """
        limit = self.settings.save_seconds / (2 if last else 1)
        due = self.group.first and time.monotonic() - self.saved >= limit
        told = self.group.sum_(torch.tensor([counted, float(due)], dtype=torch.float64))
        self.due = bool(told[1])
        return float(told[0])

    @torch.no_grad()
    def _clip(self, factor: float) -> None:
        """Shorten the gradient where it is far longer than the last ones."""
        parts = [part.grad for part in self.optimizer.parameters if part.grad is not None]
        tables = self.network.tables.values()
        parts += [part for table in tables if table.labels is None for part in table.gradients()]
        own = [part for table in tables if table.labels is not None for part in table.gradients()]
        squares = torch.tensor(sum(float(part.square().sum()) for part in own), dtype=torch.float64)
        length = math.sqrt(sum(float(part.square().sum()) for part in parts) + float(self.group.sum_(squares)))
        parts += own
        limit = factor * max(self.norms, default=math.inf)
        if length > limit:
            for part in parts:
                part.mul_(limit / length)
        if length > 0:
            self.norms.append(min(length, limit))

    def _weights(self) -> dict[str, Tensor]:
        """Name all weights: those of tables and those that every step changes."""
        tables = {f"table.{name}": table.values for name, table in self.network.tables.items()}
        return tables | {f"dense.{name}": value for name, value in self.network.dense.state_dict().items()}

    @torch.no_grad()
    def _average(self, epochs: int) -> None:
        """Add the weights after so many epochs to their average, where it has begun."""
        if self.settings.average is None or epochs <= self.settings.average * self.epochs:
            return
        self.averaged += 1
        for name, value in self._weights().items():
            if name not in self.averages:
                self.averages[name] = value.clone()
            elif value.is_floating_point():
                self.averages[name].lerp_(value, 1 / self.averaged)
            else:
                self.averages[name].copy_(value)

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange the weights for their averages, or back."""
        weights = self._weights()
        for name, average in self.averages.items():
            now = weights[name].clone()
            weights[name].copy_(average)
            average.copy_(now)

    def _validated(self, validate: Validate) -> dict[str, float]:
        """Measure validation points by the averages, where there are any; keep the weights if they are the best."""
        self._swap()
        with self.network.assembled():
            measured = validate()
        value = next(iter(measured.values()), -math.inf)
        if self.patience is not None and measured:
            self.stale = 0 if value > self.best else self.stale + 1
            if value > self.best:
                self.best = value
                self.kept = {name: weights.cpu().numpy().copy() for name, weights in self._weights().items()}
        self._swap()
        return measured

    def _enough(self) -> bool:
        """Return whether patience is over."""
        return self.patience is not None and self.stale >= self.patience

    def _restore_best(self) -> None:
        """Go back to the best weights, where they were kept."""
        for name, value in self._weights().items() if self.kept else ():
            value.copy_(torch.from_numpy(np.array(self.kept[name])).reshape(value.shape))

    def _whole(self, name: str, values: Tensor) -> NDArray[Any] | Shard:
        """Return weights for a checkpoint."""
        table = self.network.tables.get(name.removeprefix("table.")) if name.startswith("table.") else None
        return values.cpu().numpy() if table is None else table.kept(values)

    def _own(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Take the weights that this process has from those of a checkpoint."""
        tables = {f"table.{name}": table for name, table in self.network.tables.items()}
        return {n: tables[n].own(array).numpy() if n in tables else np.array(array) for n, array in arrays.items()}

    def _remembered(self) -> dict[str, NDArray[Any] | Shard]:
        """Name what the next step depends on besides weights."""
        arrays: dict[str, NDArray[Any] | Shard] = {}
        arrays |= {"best": np.array([self.best, self.stale]), "steps": np.array([self.steps])}
        arrays |= {f"kept.{name}": self._whole(name, torch.from_numpy(array)) for name, array in self.kept.items()}
        if self.norms:
            arrays["norms"] = np.array(self.norms)
        if self.averaged:
            arrays["averaged"] = np.array([self.averaged])
            arrays |= {f"averages.{name}": self._whole(name, value) for name, value in self.averages.items()}
        return arrays | {f"sampler.{name}": array for name, array in self.network.state().items()}

    def _resume(self, checkpoint: Checkpoint | None) -> int:
        """Continue from the checkpoint; returns the steps that are done."""
        if checkpoint is None:
            return 0
        done, more = checkpoint.restore(self.network.tables, self.network.dense, self.optimizer)
        if more:
            self.best, self.stale = float(more["best"][0]), int(more["best"][1])
            self.steps = int(more["steps"][0]) if "steps" in more else done
            self.kept = self._own(below(more, "kept."))
            self.norms.extend(more.get("norms", np.zeros(0)).tolist())
            self.averaged = int(more["averaged"][0]) if "averaged" in more else 0
            weights = self._weights()
            for name, array in self._own(below(more, "averages.")).items():
                self.averages[name] = torch.from_numpy(np.array(array)).reshape(weights[name].shape).to(weights[name])
            self.network.restore({name: np.array(array) for name, array in below(more, "sampler.").items()})
        return done


def rate_factor(settings: LoopSettings, step: int, total: int) -> float:
    """Scale the learning rate: up during the warm-up, then down to zero, or as the schedule says.

    >>> [round(rate_factor(LoopSettings(warmup=0.5), step, 4), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    >>> [rate_factor(LoopSettings(schedule="step", decay_every=0.5), step, 4) for step in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """
    if settings.schedule == "step":
        return 0.5 ** math.floor(step / (settings.decay_every * total))
    rising = settings.warmup * total
    if settings.schedule == "onecycle":  # from a tenth up and down to 1e-5, both along a cosine
        low, part = (0.1, step / max(rising, 1)) if step < rising else (1e-5, (step - rising) / max(total - rising, 1))
        up = 0.5 * (1 - math.cos(math.pi * part))
        return low + (1 - low) * (up if step < rising else 1 - up)
    if step < rising:
        return (step + 1) / max(rising, 1)
    part = (step - rising) / max(total - rising, 1)
    return {"cosine": 0.5 * (1 + math.cos(math.pi * part)), "linear": 1 - part, "constant": 1.0}[settings.schedule]
