"""NETWORK + POINTS → WEIGHTS: the only training loop.

All chance in a step depends on (seed, step) alone, and in an epoch on (seed, epoch). So a checkpoint needs no state of
a random generator, and a run that was killed ends with the same weights as one that was not.
"""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.errors import ResourceError
from longtail.training.checkpoint import Checkpoint
from longtail.training.settings import Training
from longtail.training.tables import Table
from longtail.types import Progress


class Network(Protocol):
    """What the loop trains."""

    @property
    def tables(self) -> dict[str, Table]:
        """The tables that are changed row by row."""

    @property
    def dense(self) -> nn.Module:
        """The small parameters that every step changes."""

    def loss(self, points: NDArray[np.int64], draw: np.random.Generator) -> Tensor:
        """Gather what the points need and compute their loss."""


def train(
    network: Network,
    points: int,
    settings: Training,
    *,
    seed: int,
    checkpoint: Checkpoint | None = None,
    log: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Train until the last epoch, from the checkpoint if there is one."""
    per_epoch = math.ceil(points / settings.batch)
    total = settings.epochs * per_epoch
    dense = torch.optim.Adam(network.dense.parameters(), lr=settings.dense_rate)
    done = checkpoint.restore(network.tables, network.dense, dense) if checkpoint else 0
    saved, order, losses = time.monotonic(), np.zeros(0, np.int64), []
    network.dense.train()
    for step in range(done, total):
        epoch, place = divmod(step, per_epoch)
        if place == 0 or len(order) == 0:
            order = np.random.default_rng([seed, 1, epoch]).permutation(points)
        factor = rate_factor(settings, step, total)
        torch.manual_seed((seed << 32) + step)
        some = order[place * settings.batch : (place + 1) * settings.batch]
        loss = network.loss(some, np.random.default_rng([seed, 2, step]))
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise ResourceError(
                f"the loss is {losses[-1]} at step {step + 1} of {total} with rate {settings.rate * factor:.2g}; "
                f"try --set training.rate={settings.rate / 4:g}"
            )
        dense.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for table in network.tables.values():
            table.step(settings.rate * factor, step + 1)
        for group in dense.param_groups:
            group["lr"] = settings.dense_rate * factor
        dense.step()
        if place + 1 == per_epoch:
            _note(log, epoch + 1, step + 1, float(np.mean(losses)), settings.rate * factor)
            losses.clear()
        if progress:
            progress(f"epoch {epoch + 1} of {settings.epochs}", step + 1, total)
        if checkpoint and (time.monotonic() - saved >= settings.save_seconds):
            checkpoint.save(step + 1, network.tables, network.dense, dense)
            saved = time.monotonic()
    network.dense.eval()


def rate_factor(settings: Training, step: int, total: int) -> float:
    """Scale the rate: up during the warm-up, then down to zero.

    >>> [round(rate_factor(Training(warmup=0.5), step, 4), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    rising = settings.warmup * total
    if step < rising:
        return (step + 1) / max(rising, 1)
    part = (step - rising) / max(total - rising, 1)
    return {"cosine": 0.5 * (1 + math.cos(math.pi * part)), "linear": 1 - part, "constant": 1.0}[settings.schedule]


def _note(log: Path | None, epoch: int, step: int, loss: float, rate: float) -> None:
    """Append one line to the CSV log."""
    if log is None:
        return
    fresh = not log.exists()
    with log.open("a", newline="", encoding="utf-8") as file:
        writer: Any = csv.writer(file)
        if fresh:
            writer.writerow(["epoch", "step", "loss", "rate", "time"])
        writer.writerow([epoch, step, f"{loss:.6f}", f"{rate:.6g}", f"{time.time():.1f}"])
