"""NUMBERS OF AN EPOCH → CSV AND TENSORBOARD."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from longtail.errors import MissingExtra
from longtail.files import whole_file

FIXED = ["stage", "epoch", "step", "loss", "rate", "time"]
MEASURED = ["P@1+3+5", "P@1", "meta P@1"]  # of held-out points; empty where a stage does not measure them


class Log:
    """Lines in log.csv, and the same numbers for TensorBoard if wanted; nothing without a folder.

    `done` steps were made before: what a killed run noted about later ones is forgotten, for they are made again.
    """

    def __init__(self, folder: Path | None, name: str, *, done: int = 0, tensorboard: bool = False) -> None:
        self.folder, self.name, self.done, self.board = folder, name, done, tensorboard
        self.writer: Any = None

    def __enter__(self) -> Self:
        if self.board and self.folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
            except ImportError:
                raise MissingExtra("TensorBoard logs", "report") from None
            self.writer = SummaryWriter(str(self.folder / "tensorboard" / self.name), purge_step=self.done + 1)
        if self.folder is not None:
            self._forget(self.folder / "log.csv")
        return self

    def _forget(self, file: Path) -> None:
        """Begin the file, without lines of this stage that will be written again."""
        lines = [[*FIXED, *MEASURED]]
        if file.exists():
            with file.open(newline="", encoding="utf-8") as held:
                kept = [line for line in csv.reader(held) if len(line) == len(lines[0])]
            lines += [line for line in kept[1:] if line[0] != self.name or int(line[2]) <= self.done]
        with whole_file(file) as new, new.open("w", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows(lines)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            self.writer.close()

    def note(self, epoch: int, step: int, loss: float, rate: float, measured: dict[str, float]) -> None:
        """Write the numbers of one epoch."""
        if self.folder is None:
            return
        if self.writer is not None:
            for name, value in {"loss": loss, "rate": rate, **measured}.items():
                self.writer.add_scalar(name, value, step)
        fixed = [self.name, epoch, step, f"{loss:.6f}", f"{rate:.6g}", f"{time.time():.1f}"]
        found = [f"{measured[name]:.2f}" if name in measured else "" for name in MEASURED]
        with (self.folder / "log.csv").open("a", newline="", encoding="utf-8") as lines:
            csv.writer(lines).writerow(fixed + found)
