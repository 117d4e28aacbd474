"""WEIGHTS ↔ CHECKPOINT: one file, replaced whole, that a killed run continues from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from longtail.errors import Occupied
from longtail.files import read_arrays, write_arrays
from longtail.parts import Table, below
from longtail.training.tables import Adam


class Checkpoint:
    """A checkpoint of the run that `identity` describes; one of another run is refused."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity = path, json.dumps(identity, sort_keys=True)

    def save(
        self, step: int, tables: Mapping[str, Table], dense: nn.Module, optimizer: Adam,
        more: dict[str, NDArray[Any]],
    ) -> None:  # fmt: skip
        """Write everything that the next step depends on; `more` is what the loop itself remembers."""
        arrays: dict[str, NDArray[Any]] = {"step": np.array([step])} | {f"more.{n}": a for n, a in more.items()}
        arrays["identity"] = np.frombuffer(self.identity.encode(), np.uint8)
        for name, table in tables.items():
            arrays |= table.arrays(f"table.{name}")
        arrays |= {f"dense.{name}": value.cpu().numpy() for name, value in dense.state_dict().items()}
        arrays |= optimizer.arrays("adam")
        write_arrays(self.path, {name: np.atleast_1d(array) for name, array in arrays.items()})

    def restore(
        self, tables: Mapping[str, Table], dense: nn.Module, optimizer: Adam
    ) -> tuple[int, dict[str, NDArray[Any]]]:
        """Continue from the file, if there is one; returns the steps that are done and what the loop remembered."""
        if not self.path.exists():
            return 0, {}
        arrays = {name: np.array(array) for name, array in read_arrays(self.path).items()}
        if arrays["identity"].tobytes() != self.identity.encode():
            raise Occupied(
                "an unfinished run with other settings or data is here", file=self.path.parent,
                remedy="run it again with the same settings, remove the folder, or choose another one",
            )  # fmt: skip
        for name, table in tables.items():
            table.restore(arrays, f"table.{name}")
        shapes = {name: value.shape for name, value in dense.state_dict().items()}
        dense.load_state_dict({n: torch.from_numpy(arrays[f"dense.{n}"]).reshape(shape) for n, shape in shapes.items()})
        optimizer.restore(arrays, "adam")
        return int(arrays["step"][0]), below(arrays, "more.")
