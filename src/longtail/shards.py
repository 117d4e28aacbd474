"""PROCESSES → ONE TRAINING: which labels each of them owns, and what they tell each other.

Label l and the state of its optimizer live in process l mod P. Everything else is the same in all of them: points,
encoder, chance. A process alone, which is the default, owns all labels and tells nobody anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ResourceError
from longtail.system import end_with

if TYPE_CHECKING:
    from torch import Tensor

PARENT = "LONGTAIL_PARENT"  # the process that has started this one, with which it ends
BLOCK = 2**24  # bytes of a table that are sent to the process that writes it at once


class Group:
    """The processes of a training, as one of them sees them."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.sent, self.calls = 0, 0  # bytes by this process, as rings send them, and how often it told the others

    @property
    def alone(self) -> bool:
        """Whether there is one process."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def owned(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return at which places of `labels` this process owns one."""
        return np.arange(len(labels)) if self.alone else np.flatnonzero(labels % self.size == self.rank)

    def count(self, labels: int, rank: int | None = None) -> int:
        """Count the labels that a process owns, this one if none is given."""
        return len(range(self.rank if rank is None else rank, labels, self.size))

    def sum_(self, values: Tensor) -> Tensor:
        """Add up the values of all processes, in place."""
        return values if self.alone else self._reduced(values, "SUM")

    def max_(self, values: Tensor) -> Tensor:
        """Take the largest of the values of all processes, in place."""
        return values if self.alone else self._reduced(values, "MAX")

    def _reduced(self, values: Tensor, how: str) -> Tensor:
        from torch import distributed  # noqa: PLC0415

        self._count(2 * (self.size - 1) / self.size * values.nbytes)
        whole = values if values.is_contiguous() else values.contiguous()
        told(lambda: distributed.all_reduce(whole, getattr(distributed.ReduceOp, how)))
        return values if whole is values else values.copy_(whole)

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return what each process has; their lengths may differ."""
        if self.alone:
            return [values]
        import torch  # noqa: PLC0415
        from torch import distributed  # noqa: PLC0415

        lengths = torch.zeros(self.size, dtype=torch.int64, device=values.device)
        lengths[self.rank] = len(values)
        each = self.sum_(lengths).tolist()
        padded = values.new_zeros((max(each), *values.shape[1:]))
        padded[: len(values)] = values
        found = [torch.empty_like(padded) for _ in each]
        self._count((self.size - 1) * padded.nbytes)
        told(lambda: distributed.all_gather(found, padded))
        return [part[:length] for part, length in zip(found, each, strict=True)]

    def whole(self, part: Tensor, labels: int) -> Tensor:
        """Put the rows of all labels together, in every process."""
        if self.alone:
            return part
        whole = part.new_empty((labels, *part.shape[1:]))
        for rank, rows in enumerate(self.gather(part)):
            whole[rank :: self.size] = rows
        return whole

    def blocks(self, shard: Shard) -> Iterator[NDArray[Any]]:
        """Send rows to the first process, where blocks of the whole come out; elsewhere empty ones do."""
        import torch  # noqa: PLC0415
        from torch import distributed  # noqa: PLC0415

        part, most = shard.part, self.count(shard.labels, 0)
        size = max(1, BLOCK // max(1, part[:1].nbytes * self.size))
        for start in range(0, most, size):
            rows = np.zeros((min(size, most - start), *part.shape[1:]), part.dtype)
            own = part[start : start + size]
            rows[: len(own)] = own
            sent = torch.from_numpy(rows)
            found = [torch.empty_like(sent) for _ in range(self.size)] if self.first else None
            self._count(0 if self.first else sent.nbytes)
            told(lambda sent=sent, found=found: distributed.gather(sent, found))  # type: ignore[misc]
            if found is not None:
                whole = np.stack([rows.numpy() for rows in found], axis=1).reshape(-1, *part.shape[1:])
                yield whole[: shard.labels - start * self.size]

    def wait(self) -> None:
        """Wait until all are here."""
        if not self.alone:
            from torch import distributed  # noqa: PLC0415

            told(distributed.barrier)

    def _count(self, bytes_: float) -> None:
        self.sent, self.calls = self.sent + int(bytes_), self.calls + 1


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows of an array (L, …) that this process owns."""

    part: NDArray[Any]
    labels: int  # of the whole


ALONE = Group()
_world, _split = [ALONE], [ALONE]


def world() -> Group:
    """Return the processes of this training."""
    return _world[-1]


def split() -> Group:
    """Return the processes among which the labels of the loss at hand are split."""
    return _split[-1]


@contextmanager
def splitting(group: Group) -> Iterator[None]:
    """Let losses know, inside the block, that a process sees the labels that it owns only."""
    _split.append(group)
    try:
        yield
    finally:
        _split.pop()


def told(call: Callable[[], Any]) -> Any:
    """Tell the others something; say so in words where one of them has ended."""
    try:
        return call()
    except RuntimeError as reason:
        what = str(reason).splitlines()[0].rpartition("] ")[2].partition(". ")[0]  # without the lines of its source
        raise ResourceError(
            f"another process of this training has ended, and none can go on without it ({what}); "
            "the same command continues from the last checkpoint, with any number of processes"
        ) from None


def started() -> bool:
    """Return whether this process was started as one of several, by `--processes` or by torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def local_size() -> int:
    """Count the processes of this training on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if started() else 1


@contextmanager
def joined() -> Iterator[Group]:
    """Join the processes that were started together, inside the block; alone where this one was started alone."""
    if not started():
        yield ALONE
        return
    import torch  # noqa: PLC0415
    from torch import distributed  # noqa: PLC0415

    if os.environ.get(PARENT) == str(os.getppid()):
        end_with(os.getppid())
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    told(lambda: distributed.init_process_group(backend))
    _world.append(Group(distributed.get_rank(), distributed.get_world_size()))
    try:
        yield _world[-1]
    finally:
        _world.pop()
        distributed.destroy_process_group()
