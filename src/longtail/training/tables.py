"""ROWS + GRADIENTS → ROWS: tables of which a step reads and changes only the rows that it uses.

`adam` keeps two moments per entry and updates them lazily, `adagrad` keeps one number per row. Cost and memory traffic
of a step grow with the rows of the batch, never with the table. Where there is a compiler, each row is read and written
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.machine import compiles
from longtail.shards import ALONE, Group, Shard

Optimizer = Literal["adam", "adagrad"]
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class LocalTable:
    """A matrix (R, D), or a vector (R,), in the memory of this process, with the state of its optimizer."""

    labels: int | None = None  # whose rows the processes of a training have shared out; None: each has all rows

    def __init__(self, values: Tensor, optimizer: Optimizer = "adam", frozen: bool = False) -> None:
        self.values, self.optimizer, self.frozen = values.contiguous(), optimizer, frozen  # one row after the other
        self.group = ALONE  # among whom gradients are added up
        if frozen:
            self.state = []
        elif optimizer == "adam":
            self.state = [torch.zeros_like(values), torch.zeros_like(values)]
        else:
            self.state = [torch.zeros(len(values), device=values.device)]
        self.gathered: list[tuple[Tensor, Tensor]] = []  # rows and the leaf that was made of them, in this step
        # Kept until the next step gathers: memory that is free between two steps would go back to the system.
        self.spent = False

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Take rows for one step; their gradient is wanted unless the table is frozen. Several gathers add up."""
        places = torch.from_numpy(rows).to(self.values.device)
        leaf = self.values.index_select(0, places)
        if not self.frozen and torch.is_grad_enabled():
            leaf.requires_grad_(True)
            before = [] if self.spent else self.gathered
            self.gathered, self.spent = [*before, (places, leaf)], False
        return leaf

    @torch.no_grad()
    def step(self, learning_rate: float, number: int) -> None:
        """Change the gathered rows by their gradient; `number` counts the steps from one."""
        rows, gradient = self.gradient()
        self.spent = True
        if rows is None or gradient is None or learning_rate == 0 or len(rows) == 0:
            return
        change = self._compiled if compiles() and self.values.device.type == "cpu" else self._change
        change(rows, gradient, learning_rate, number)

    def _compiled(self, rows: Tensor, gradient: Tensor, learning_rate: float, number: int) -> None:
        """Change rows in one pass."""
        from longtail import kernels  # noqa: PLC0415  (numba is an extra)

        values, slopes = (part.reshape(len(part), -1).numpy() for part in (self.values, gradient.contiguous()))
        if self.optimizer == "adam":
            first, second = (part.reshape(len(part), -1).numpy() for part in self.state)
            rate = _corrected(learning_rate, number)
            fades = (np.float32(value) for value in (rate, BETA1, BETA2, EPS))
            kernels.adam(values, first, second, rows.numpy(), slopes, *fades)
        else:
            total = self.state[0].numpy()
            kernels.adagrad(values, total, rows.numpy(), slopes, np.float32(learning_rate), np.float32(EPS))

    def _change(self, rows: Tensor, gradient: Tensor, learning_rate: float, number: int) -> None:
        """Change rows on any device."""
        old = self.values.index_select(0, rows)
        if self.optimizer == "adam":
            first, second = (part.index_select(0, rows) for part in self.state)
            first.lerp_(gradient, 1 - BETA1)
            second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            self.state[0].index_copy_(0, rows, first)
            self.state[1].index_copy_(0, rows, second)
            new = old.addcdiv(first, second.sqrt_().add_(EPS), value=-_corrected(learning_rate, number))
        else:
            squares = gradient.square()
            total = self.state[0].index_select(0, rows) + (squares.mean(dim=1) if squares.dim() > 1 else squares)
            self.state[0].index_copy_(0, rows, total)
            divisor = total.sqrt().add_(EPS)
            new = old.addcdiv(gradient, divisor[:, None] if squares.dim() > 1 else divisor, value=-learning_rate)
        self.values.index_copy_(0, rows, new)

    @torch.no_grad()
    def gradient(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the rows that were gathered in this step, each once, and their gradients."""
        gathered = [] if self.spent else reversed(self.gathered)  # the last first, as autograd adds
        parts = [(rows, leaf.grad) for rows, leaf in gathered if leaf.grad is not None]
        if len(parts) < 2:
            return parts[0] if parts else (None, None)
        rows, places = torch.unique(torch.cat([rows for rows, _ in parts]), return_inverse=True)
        total = torch.zeros((len(rows), *self.values.shape[1:]), dtype=self.values.dtype, device=self.values.device)
        return rows, total.index_add_(0, places, torch.cat([gradient for _, gradient in parts]))

    @torch.no_grad()
    def reduce(self) -> None:
        """Add up the gradients of all processes, where each has but a part; their rows may differ."""
        if self.group.alone or self.spent:
            return
        summed = []
        for places, leaf in self.gathered:
            counted = self.group.sum_(torch.tensor([leaf.grad is not None], dtype=torch.float32))
            if not counted.item():
                continue
            rows = torch.unique(torch.cat(self.group.gather(places)))
            total = leaf.new_zeros((len(rows), *leaf.shape[1:]))
            if leaf.grad is not None:
                total.index_copy_(0, torch.searchsorted(rows, places), leaf.grad)
            whole = torch.empty_like(total)  # a leaf that no step reads any more
            whole.grad = self.group.sum_(total)
            summed.append((rows, whole))
        self.gathered = summed

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all gathers of this step, as they are kept."""
        return [] if self.spent else [leaf.grad for _, leaf in self.gathered if leaf.grad is not None]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows, wherever they are."""
        return tuple(self.values.shape)

    def take(self, values: Tensor) -> None:
        """Start from other values of all rows."""
        self.values.copy_(values)

    def finish(self) -> None:
        """Forget what only training needs: the next stage reads values alone."""
        self.state, self.gathered, self.spent = [], [], False

    def kept(self, values: Tensor) -> NDArray[Any] | Shard:
        """Return values of these rows for a checkpoint."""
        return values.cpu().numpy()

    def own(self, values: NDArray[Any]) -> Tensor:
        """Take the values of these rows from those of a checkpoint."""
        return torch.from_numpy(np.array(values))

    def arrays(self, name: str) -> dict[str, NDArray[Any] | Shard]:
        """Name values and state for a checkpoint."""
        arrays = {f"{name}.values": self.kept(self.values)}
        return arrays | {f"{name}.state{place}": self.kept(part) for place, part in enumerate(self.state)}

    def restore(self, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        """Take values and state from a checkpoint."""
        self.values.copy_(self.own(arrays[f"{name}.values"]))
        for place, part in enumerate(self.state):
            part.copy_(self.own(arrays[f"{name}.state{place}"]))


class ShardedTable(LocalTable):
    """A table with a row for each label, of which this process has those of the labels that it owns."""

    labels: int

    def __init__(
        self, values: Tensor, labels: int, world: Group, optimizer: Optimizer = "adam", frozen: bool = False
    ) -> None:
        super().__init__(values, optimizer, frozen)
        self.labels, self.world = labels, world

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows, wherever they are."""
        return (self.labels, *self.values.shape[1:])

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Take the rows of labels that this process owns."""
        assert (rows % self.world.size == self.world.rank).all(), "a process gathers the rows that it owns"
        return super().gather(rows // self.world.size)

    def take(self, values: Tensor) -> None:
        """Start from other values of all labels."""
        self.values.copy_(values[self.world.rank :: self.world.size])

    def kept(self, values: Tensor) -> Shard:
        """Return values of these rows for a checkpoint, which has them all."""
        return Shard(values.cpu().numpy(), self.labels)

    def own(self, values: NDArray[Any]) -> Tensor:
        """Take the values of these rows from those of all labels."""
        return torch.from_numpy(np.array(values[self.world.rank :: self.world.size]))

    @contextmanager
    def assembled(self) -> Iterator[None]:
        """Have the values of all labels, inside the block."""
        part, self.values = self.values, self.world.whole(self.values, self.labels)
        try:
            yield
        finally:
            self.values = part

    def finish(self) -> None:
        """Put all rows together: what comes next reads them all."""
        super().finish()
        self.values, self.world = self.world.whole(self.values, self.labels), ALONE


def _corrected(learning_rate: float, number: int) -> float:
    """Return the rate of a step, by which the first moments are corrected for their start at zero."""
    return learning_rate * float((1 - BETA2**number) ** 0.5 / (1 - BETA1**number))


class Adam:
    """Adam for the small parameters, which every step changes.

    As torch.optim.Adam, whose first use imports torch's compiler: that takes longer than a hundred steps.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], scales: Mapping[nn.Parameter, float] | None = None) -> None:
        self.parameters = list(parameters)
        self.scales = [(scales or {}).get(part, 1.0) for part in self.parameters]  # of the rate of each
        self.state = [(torch.zeros_like(part), torch.zeros_like(part)) for part in self.parameters]
        self.counts = [0] * len(self.parameters)  # steps in which each had a gradient

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        for part in self.parameters:
            part.grad = None

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Change the parameters that have a gradient."""
        for place, (part, (first, second)) in enumerate(zip(self.parameters, self.state, strict=True)):
            if part.grad is None:
                continue
            self.counts[place] += 1
            first.lerp_(part.grad, 1 - BETA1)
            second.mul_(BETA2).addcmul_(part.grad, part.grad, value=1 - BETA2)
            divisor = (second.sqrt() / (1 - BETA2 ** self.counts[place]) ** 0.5).add_(EPS)
            rate = learning_rate * self.scales[place]
            part.addcdiv_(first, divisor, value=-rate / (1 - BETA1 ** self.counts[place]))

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Name the state for a checkpoint."""
        arrays: dict[str, NDArray[Any]] = {f"{name}.counts": np.array(self.counts, np.int64)}
        for place, (first, second) in enumerate(self.state):
            arrays |= {f"{name}.{place}.first": first.cpu().numpy(), f"{name}.{place}.second": second.cpu().numpy()}
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        """Take the state from a checkpoint."""
        self.counts = arrays[f"{name}.counts"].tolist()
        for place, moments in enumerate(self.state):
            for key, moment in zip(("first", "second"), moments, strict=True):
                moment.copy_(torch.from_numpy(np.array(arrays[f"{name}.{place}.{key}"])).reshape(moment.shape))
