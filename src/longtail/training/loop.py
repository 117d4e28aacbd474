"""NETWORK + POINTS → WEIGHTS: the only training loop.

All chance in a step depends on (seed, step) alone, and in an epoch on (seed, epoch). So a checkpoint needs no state of
a random generator, and a run that was killed ends with the same weights as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.errors import ResourceError
from longtail.files import matrix_arrays, matrix_of
from longtail.training.checkpoint import Checkpoint
from longtail.training.logs import Log
from longtail.training.settings import Training
from longtail.training.tables import Adam, Table
from longtail.types import LabelMatrix, Progress

Validate = Callable[[], dict[str, float]]


class Trained(Protocol):
    """What the loop trains."""

    mined: LabelMatrix | None

    @property
    def tables(self) -> dict[str, Table]:
        """The tables that are changed row by row."""

    @property
    def dense(self) -> nn.Module:
        """The small parameters that every step changes."""

    def loss(self, points: NDArray[np.int64], draw: np.random.Generator, part: float) -> Tensor:
        """Gather what the points need and compute their loss."""

    def mine(self) -> None:
        """Look for hard negatives."""


class Loop:
    """One run of the loop, with what it remembers between steps."""

    def __init__(
        self, network: Trained, points: int, settings: Training, *, seed: int, similar: NDArray[np.int64] | None = None
    ) -> None:
        self.network, self.points, self.settings, self.seed, self.similar = network, points, settings, seed, similar
        alone = points > settings.batch > 1 and points % settings.batch == 1
        # A last point that would be alone joins the batch before it: batch norms need two.
        self.per_epoch = math.ceil(points / settings.batch) - alone
        self.epochs = max(settings.epochs, math.ceil(settings.least / self.per_epoch))
        self.total = self.epochs * self.per_epoch
        self.optimiser = Adam(network.dense.parameters())
        self.best, self.stale, self.kept = -math.inf, 0, dict[str, NDArray[Any]]()

    def run(
        self,
        *,
        name: str = "training",
        checkpoint: Checkpoint | None = None,
        folder: Path | None = None,
        progress: Progress | None = None,
        validate: Validate | None = None,
        refresh: int = 0,
    ) -> None:
        """Train until the last epoch, or until held-out points say that it is enough; from the checkpoint if any."""
        fabric = fabric_of(self.settings)
        done = self._resume(checkpoint)
        saved, order, losses = time.monotonic(), np.zeros(0, np.int64), list[float]()
        network, settings = self.network, self.settings
        network.dense.train()
        with Log(folder, name, done=done, tensorboard=settings.tensorboard) as log:
            for step in range(done, self.total):
                epoch, place = divmod(step, self.per_epoch)
                if place == 0 or len(order) == 0:
                    order = self._order(epoch)
                    if refresh and place == 0 and epoch and epoch % refresh == 0:
                        network.mine()
                factor = rate_factor(settings, step, self.total)
                first, last_of_epoch = place * settings.batch, place + 1 == self.per_epoch
                some = order[first:] if last_of_epoch else order[first : first + settings.batch]
                losses.append(self._step(fabric, some, step, factor))
                enough = False
                if last_of_epoch:
                    measured = validate() if validate else {}
                    log.note(epoch + 1, step + 1, float(np.mean(losses)), settings.rate * factor, measured)
                    losses.clear()
                    enough = self._enough(measured)
                if progress:
                    progress(f"{name}, epoch {epoch + 1} of {self.epochs}", step + 1, self.total)
                last = enough or step + 1 == self.total
                if checkpoint and (last or time.monotonic() - saved >= settings.save_seconds):
                    at = self.total if last else step + 1
                    checkpoint.save(at, network.tables, network.dense, self.optimiser, self._remembered())
                    saved = time.monotonic()
                if enough:
                    break
        self._restore_best()
        network.dense.eval()

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Shuffle the points, or groups of similar points."""
        draw = np.random.default_rng([self.seed, 1, epoch])
        if self.similar is None:
            return draw.permutation(self.points)
        shifted = np.roll(self.similar, -int(draw.integers(0, self.settings.clustered)))
        groups = np.array_split(shifted, math.ceil(self.points / self.settings.clustered))
        return np.concatenate([groups[place] for place in draw.permutation(len(groups))])

    def _step(self, fabric: Any, some: NDArray[np.int64], step: int, factor: float) -> float:
        """Change the weights by the gradient of one batch."""
        settings, network = self.settings, self.network
        number = (self.seed << 32) + step
        torch.default_generator.manual_seed(number)  # torch.manual_seed remembers every call where there is no GPU yet
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(number)
        with fabric.autocast():
            loss = network.loss(some, np.random.default_rng([self.seed, 2, step]), step / self.total)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ResourceError(
                f"the loss is {value} at step {step + 1} of {self.total} with rate {settings.rate * factor:.2g}; "
                f"try --set training.rate={settings.rate / 4:g}"
            )
        self.optimiser.clear()
        fabric.backward(loss)
        for table in network.tables.values():
            table.step(settings.rate * factor, step + 1)
        self.optimiser.step(settings.dense_rate * factor)
        return value

    def _enough(self, measured: dict[str, float]) -> bool:
        """Keep the weights if they are the best so far; tell whether patience is over."""
        if self.settings.patience is None or not measured:
            return False
        value = next(iter(measured.values()))
        if value > self.best:
            self.best, self.stale = value, 0
            self.kept = {
                f"table.{name}": table.values.cpu().numpy().copy() for name, table in self.network.tables.items()
            }
            self.kept |= {f"dense.{n}": v.cpu().numpy().copy() for n, v in self.network.dense.state_dict().items()}
        else:
            self.stale += 1
        return self.stale >= self.settings.patience

    def _restore_best(self) -> None:
        """Go back to the best weights, where they were kept."""
        if not self.kept:
            return
        for name, table in self.network.tables.items():
            table.values.copy_(torch.from_numpy(np.array(self.kept[f"table.{name}"])))
        state = self.network.dense.state_dict()
        for name, value in state.items():
            value.copy_(torch.from_numpy(np.array(self.kept[f"dense.{name}"])).reshape(value.shape))

    def _remembered(self) -> dict[str, NDArray[Any]]:
        """Name what the next step depends on besides weights."""
        held: dict[str, NDArray[Any]] = {"best": np.array([self.best, self.stale])}
        held |= {f"kept.{name}": array for name, array in self.kept.items()}
        return held if self.network.mined is None else held | matrix_arrays("mined", self.network.mined)

    def _resume(self, checkpoint: Checkpoint | None) -> int:
        """Continue from the checkpoint; returns the steps that are done."""
        if checkpoint is None:
            return 0
        done, more = checkpoint.restore(self.network.tables, self.network.dense, self.optimiser)
        if more:
            self.best, self.stale = float(more["best"][0]), int(more["best"][1])
            self.kept = {name.removeprefix("kept."): more[name] for name in more if name.startswith("kept.")}
        if "mined.indptr" in more:
            self.network.mined = matrix_of(more, "mined")
        return done


def fabric_of(settings: Training) -> Any:
    """Set up device and precision."""
    import logging  # noqa: PLC0415

    from lightning_fabric import Fabric  # noqa: PLC0415  (a second, which only training should pay)

    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    return Fabric(accelerator=settings.device, devices=1, precision=settings.precision)


def rate_factor(settings: Training, step: int, total: int) -> float:
    """Scale the rate: up during the warm-up, then down to zero, or as the schedule says.

    >>> [round(rate_factor(Training(warmup=0.5), step, 4), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    >>> [rate_factor(Training(schedule="step", halved=0.5), step, 4) for step in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """
    if settings.schedule == "step":
        return 0.5 ** math.floor(step / (settings.halved * total))
    rising = settings.warmup * total
    if settings.schedule == "onecycle":  # from a tenth up and down to 1e-5, both along a cosine
        low, part = (0.1, step / max(rising, 1)) if step < rising else (1e-5, (step - rising) / max(total - rising, 1))
        up = 0.5 * (1 - math.cos(math.pi * part))
        return low + (1 - low) * (up if step < rising else 1 - up)
    if step < rising:
        return (step + 1) / max(rising, 1)
    part = (step - rising) / max(total - rising, 1)
    return {"cosine": 0.5 * (1 + math.cos(math.pi * part)), "linear": 1 - part, "constant": 1.0}[settings.schedule]
