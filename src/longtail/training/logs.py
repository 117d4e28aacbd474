"""NUMBERS OF AN EPOCH → CSV AND TENSORBOARD."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from longtail.errors import MissingExtra

FIXED = ["stage", "epoch", "step", "loss", "rate", "time"]


class Log:
    """Lines in log.csv, and the same numbers for TensorBoard if wanted; nothing without a folder."""

    def __init__(self, folder: Path | None, name: str, *, tensorboard: bool = False) -> None:
        self.folder, self.name, self.board = folder, name, tensorboard
        self.writer: Any = None

    def __enter__(self) -> Self:
        if self.board and self.folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
            except ImportError:
                raise MissingExtra("TensorBoard logs", "report") from None
            self.writer = SummaryWriter(str(self.folder / "tensorboard" / self.name))
        return self

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
        file = self.folder / "log.csv"
        fresh = not file.exists()
        with file.open("a", newline="", encoding="utf-8") as lines:
            writer: Any = csv.writer(lines)
            if fresh:
                writer.writerow([*FIXED, *measured])
            fixed = [self.name, epoch, step, f"{loss:.6f}", f"{rate:.6g}", f"{time.time():.1f}"]
            writer.writerow(fixed + [f"{value:.2f}" for value in measured.values()])
