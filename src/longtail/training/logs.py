"""NUMBERS OF AN EPOCH → CSV AND TENSORBOARD."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from longtail.errors import MissingExtra
from longtail.whole import whole_file

FIXED = ["stage", "epoch", "step", "loss", "learning_rate", "time"]


class Log:
    """Lines in log.csv, and the same numbers for TensorBoard if wanted; nothing without a folder.

    What is measured on validation points gets a column each, whatever its name; a new one widens the file. `done` steps
    were made before: what a killed run noted about later ones is forgotten, for they are made again.
    """

    def __init__(self, folder: Path | None, name: str, *, done: int = 0, tensorboard: bool = False) -> None:
        self.folder, self.name, self.done, self.board = folder, name, done, tensorboard
        self.columns = list(FIXED)
        self.writer: Any = None

    def __enter__(self) -> Self:
        if self.board and self.folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
            except ImportError:
                raise MissingExtra("TensorBoard logs", "report") from None
            self.writer = SummaryWriter(str(self.folder / "tensorboard" / self.name), purge_step=self.done + 1)
        if self.folder is not None:
            lines = [line for line in self._lines() if line["stage"] != self.name or int(line["step"]) <= self.done]
            self._write(lines)
        return self

    def _lines(self) -> list[dict[str, str]]:
        """Read the whole lines of the file, and its columns."""
        file = self._file
        if not file.exists():
            return []
        with file.open(newline="", encoding="utf-8") as text:
            header, *lines = list(csv.reader(text)) or [FIXED]
        self.columns = [*FIXED, *(name for name in header if name not in FIXED)]
        return [dict(zip(header, line, strict=True)) for line in lines if len(line) == len(header)]

    def _write(self, lines: list[dict[str, str]]) -> None:
        """Write the file, whole."""
        with whole_file(self._file) as partial, partial.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, self.columns, restval="")
            writer.writeheader()
            writer.writerows(lines)

    @property
    def _file(self) -> Path:
        """The file, where there is a folder."""
        return (self.folder or Path()) / "log.csv"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            self.writer.close()

    def note(self, epoch: int, step: int, loss: float, learning_rate: float, measured: dict[str, float]) -> None:
        """Write the numbers of one epoch."""
        if self.folder is None:
            return
        if self.writer is not None:
            for name, value in {"loss": loss, "learning_rate": learning_rate, **measured}.items():
                self.writer.add_scalar(name, value, step)
        if fresh := [name for name in measured if name not in self.columns]:
            lines = self._lines()
            self.columns += fresh
            self._write(lines)
        fixed = [self.name, str(epoch), str(step), f"{loss:.6f}", f"{learning_rate:.6g}", f"{time.time():.1f}"]
        line = dict(zip(FIXED, fixed, strict=True)) | {name: f"{value:.2f}" for name, value in measured.items()}
        with self._file.open("a", newline="", encoding="utf-8") as out:
            csv.DictWriter(out, self.columns, restval="").writerow(line)
