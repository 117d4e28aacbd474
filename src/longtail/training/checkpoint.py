"""WEIGHTS ↔ CHECKPOINT: one file, replaced whole, that a killed run continues from.

It is the same however many processes wrote it: the first one writes, and gets the rows of the others block by block.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from longtail.errors import Occupied
from longtail.files import read_arrays, write_blocks
from longtail.parts import Table, below
from longtail.shards import Group, Shard
from longtail.training.tables import Adam


class Checkpoint:
    """A checkpoint of the run that `identity` describes; one of another run is refused."""

    def __init__(self, path: Path, identity: dict[str, Any], group: Group) -> None:
        self.path, self.identity, self.group = path, json.dumps(identity, sort_keys=True), group

    def save(
        self, step: int, tables: Mapping[str, Table], dense: nn.Module, optimizer: Adam,
        more: Mapping[str, NDArray[Any] | Shard],
    ) -> None:  # fmt: skip
        """Write everything that the next step depends on; `more` is what the loop itself remembers."""
        arrays: dict[str, NDArray[Any] | Shard] = {"step": np.array([step])}
        arrays |= {f"more.{name}": array for name, array in more.items()}
        arrays["identity"] = np.frombuffer(self.identity.encode(), np.uint8)
        for name, table in tables.items():
            arrays |= table.arrays(f"table.{name}")
        arrays |= {f"dense.{name}": value.cpu().numpy() for name, value in dense.state_dict().items()}
        arrays |= optimizer.arrays("adam")
        if self.group.first:
            write_blocks(self.path, {name: self._described(array) for name, array in arrays.items()})
        else:
            for array in arrays.values():
                for _ in self.group.blocks(array) if isinstance(array, Shard) else ():
                    pass

    def _described(self, array: NDArray[Any] | Shard) -> tuple[np.dtype[Any], tuple[int, ...], Iterator[NDArray[Any]]]:
        """Return the type and the shape of an array, and what gives it block by block."""
        if isinstance(array, Shard):
            return array.part.dtype, (array.labels, *array.part.shape[1:]), self.group.blocks(array)
        whole = np.atleast_1d(array)
        return whole.dtype, whole.shape, iter([whole])

    def restore(
        self, tables: Mapping[str, Table], dense: nn.Module, optimizer: Adam
    ) -> tuple[int, dict[str, NDArray[Any]]]:
        """Continue from the file, if there is one; returns the steps that are done and what the loop remembered."""
        if not self.path.exists():
            return 0, {}
        arrays = read_arrays(self.path)  # mapped: a process reads the rows that it owns
        if arrays["identity"].tobytes() != self.identity.encode():
            raise Occupied(
                "an unfinished run with other settings or data is here", file=self.path.parent,
                remedy="run it again with the same settings, remove the folder, or choose another one",
            )  # fmt: skip
        for name, table in tables.items():
            table.restore(arrays, f"table.{name}")
        shapes = {name: value.shape for name, value in dense.state_dict().items()}
        found = {name: torch.from_numpy(np.array(arrays[f"dense.{name}"])) for name in shapes}
        dense.load_state_dict({name: value.reshape(shapes[name]) for name, value in found.items()})
        optimizer.restore(arrays, "adam")
        return int(arrays["step"][0]), below(arrays, "more.")
