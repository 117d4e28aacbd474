"""ROWS + GRADIENTS → ROWS: tables of which a step reads and changes only the rows that it uses.

`adam` keeps two moments per entry and updates them lazily, `adagrad` keeps one number per row. Cost and memory traffic
of a step grow with the rows of the batch, never with the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Optimiser = Literal["adam", "adagrad"]
FADE, FADE_SQUARE, TINY = 0.9, 0.999, 1e-8


class Table:
    """A matrix (R, D), or a vector (R,), with the state of its optimiser."""

    def __init__(self, values: Tensor, optimiser: Optimiser = "adam", frozen: bool = False) -> None:
        self.values, self.optimiser, self.frozen = values, optimiser, frozen
        if frozen:
            self.state = []
        elif optimiser == "adam":
            self.state = [torch.zeros_like(values), torch.zeros_like(values)]
        else:
            self.state = [torch.zeros(len(values), device=values.device)]
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.leaf = values[:0]

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Take rows for one step; their gradient is wanted unless the table is frozen."""
        self.rows = torch.from_numpy(rows).to(self.values.device)
        self.leaf = self.values.index_select(0, self.rows).requires_grad_(not self.frozen)
        return self.leaf

    @torch.no_grad()
    def step(self, rate: float, number: int) -> None:
        """Change the gathered rows by their gradient; `number` counts the steps from one."""
        gradient = self.leaf.grad
        if gradient is None or rate == 0 or self.frozen:
            return
        old = self.leaf.detach()
        if self.optimiser == "adam":
            first, second = (part.index_select(0, self.rows) for part in self.state)
            first.lerp_(gradient, 1 - FADE)
            second.mul_(FADE_SQUARE).addcmul_(gradient, gradient, value=1 - FADE_SQUARE)
            self.state[0].index_copy_(0, self.rows, first)
            self.state[1].index_copy_(0, self.rows, second)
            scale = rate * (1 - FADE_SQUARE**number) ** 0.5 / (1 - FADE**number)
            new = old.addcdiv(first, second.sqrt_().add_(TINY), value=-scale)
        else:
            squares = gradient.square()
            total = self.state[0].index_select(0, self.rows) + (squares.mean(dim=1) if squares.dim() > 1 else squares)
            self.state[0].index_copy_(0, self.rows, total)
            divisor = total.sqrt().add_(TINY)
            new = old.addcdiv(gradient, divisor[:, None] if squares.dim() > 1 else divisor, value=-rate)
        self.values.index_copy_(0, self.rows, new)

    def arrays(self, name: str) -> dict[str, NDArray[np.float32]]:
        """Name values and state for a checkpoint."""
        held = {f"{name}.values": self.values.cpu().numpy()}
        return held | {f"{name}.state{place}": part.cpu().numpy() for place, part in enumerate(self.state)}

    def restore(self, held: dict[str, NDArray[np.float32]], name: str) -> None:
        """Take values and state from a checkpoint."""
        self.values.copy_(torch.from_numpy(np.array(held[f"{name}.values"])))
        for place, part in enumerate(self.state):
            part.copy_(torch.from_numpy(np.array(held[f"{name}.state{place}"])))


class Adam:
    """Adam for the small parameters, which every step changes.

    As torch.optim.Adam, whose first use imports torch's compiler: that takes longer than a hundred steps.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.state = [(torch.zeros_like(part), torch.zeros_like(part)) for part in self.parameters]
        self.counts = [0] * len(self.parameters)  # steps in which each had a gradient

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        for part in self.parameters:
            part.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Change the parameters that have a gradient."""
        for place, (part, (first, second)) in enumerate(zip(self.parameters, self.state, strict=True)):
            if part.grad is None:
                continue
            self.counts[place] += 1
            first.lerp_(part.grad, 1 - FADE)
            second.mul_(FADE_SQUARE).addcmul_(part.grad, part.grad, value=1 - FADE_SQUARE)
            divisor = (second.sqrt() / (1 - FADE_SQUARE ** self.counts[place]) ** 0.5).add_(TINY)
            part.addcdiv_(first, divisor, value=-rate / (1 - FADE ** self.counts[place]))

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Name the state for a checkpoint."""
        held: dict[str, NDArray[Any]] = {f"{name}.counts": np.array(self.counts, np.int64)}
        for place, (first, second) in enumerate(self.state):
            held |= {f"{name}.{place}.first": first.cpu().numpy(), f"{name}.{place}.second": second.cpu().numpy()}
        return held

    def restore(self, held: Mapping[str, NDArray[Any]], name: str) -> None:
        """Take the state from a checkpoint."""
        self.counts = held[f"{name}.counts"].tolist()
        for place, moments in enumerate(self.state):
            for key, moment in zip(("first", "second"), moments, strict=True):
                moment.copy_(torch.from_numpy(held[f"{name}.{place}.{key}"]).reshape(moment.shape))
