"""WHAT EACH PROCESS HAS OF A STEP → WHAT ALL OF THEM HAVE: sums of gradients, and scores of all labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.parts import States
from longtail.shards import Group


def summed(states: States, group: Group) -> States:
    """Pass vectors on, and add up on the way back what the labels of all processes say about them."""
    return _through(states, lambda values: _Summed.apply(values, group))  # type: ignore[no-untyped-call]


def scaled(states: States, group: Group) -> States:
    """Pass vectors on, and give back a share of the gradient: every process computes the whole, and all are added."""
    return _through(states, lambda values: _Scaled.apply(values, group))  # type: ignore[no-untyped-call]


def _through(states: States, change: Any) -> States:
    tokens = None if states.tokens is None else change(states.tokens)
    return States(change(states.pooled), tokens, states.mask)


class _Summed(torch.autograd.Function):
    """The same vectors; the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        """Pass them on."""
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Add up."""
        group: Group = ctx.group
        return group.sum_(upstream.clone()), None


class _Scaled(torch.autograd.Function):
    """The same vectors; a share of their gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        """Pass them on."""
        ctx.share = 1 / group.size
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Take the share."""
        return upstream * ctx.share, None


def columns(scores: Tensor, places: NDArray[Any], count: int, group: Group) -> Tensor:
    """Put the scores of the labels at `places` into those of all candidates: (B, count)."""
    if group.alone:
        return scores
    whole: Tensor = _Columns.apply(scores, torch.from_numpy(places), count, group)  # type: ignore[no-untyped-call]
    return whole


class _Columns(torch.autograd.Function):
    """Scores that every process has in full; each follows the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, places: Tensor, count: int, group: Group) -> Tensor:
        """Add up what each has, zero elsewhere."""
        ctx.places = places.to(scores.device)
        whole = scores.new_zeros((len(scores), count))
        whole[:, ctx.places] = scores
        return group.sum_(whole)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        """Take the own ones."""
        return upstream[:, ctx.places], None, None, None


@torch.no_grad()
def reduce_gradients(parameters: Iterable[nn.Parameter], group: Group) -> None:
    """Add up the gradients of all processes; what has none in any of them keeps none."""
    parts = list(parameters)
    if group.alone or not parts:
        return
    known = torch.tensor([float(part.grad is not None) for part in parts], device=parts[0].device)
    flat = torch.cat([known, *((torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parts)])
    place = len(parts)
    for part, processes in zip(parts, group.sum_(flat)[:place].tolist(), strict=True):
        gradient = flat[place : place + part.numel()].reshape(part.shape)
        part.grad, place = gradient.clone() if processes else None, place + part.numel()


@contextmanager
def other_chance(group: Group) -> Iterator[None]:
    """Draw from other chance, inside the block: processes encode texts of different labels there."""
    if group.alone:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(torch.initial_seed() + 1 + group.rank)
        yield
