"""RUN → FOLDER OF AN UNFINISHED RUN: one training at a time writes a model, and the same command continues it.

The folder `RUN.unfinished` holds run.json (what is trained) and checkpoints. Whoever trains holds its lock.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from longtail.errors import DataError, Occupied
from longtail.files import read_json, write_json
from longtail.whole import check_target, discard, hold, sweep

FILE = "run.json"


@contextmanager
def training(out: Path, scratch: Path, *, force: bool) -> Iterator[None]:
    """Keep other trainings away from a model folder; remove the scratch folder when the block succeeds.

    What stands in the way of the model is refused here, before anything is fitted.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    handle = None
    while handle is None:
        with suppress(FileExistsError):  # also where another one removes it at this moment
            scratch.mkdir()
        handle = hold(scratch)
        if handle is None and scratch.exists():
            raise DataError(
                "another training is writing here", file=out, remedy="wait for it, or choose another folder"
            )
    try:
        sweep(out.parent, out.name)
        sweep(out.parent, scratch.name)
        try:
            _check(out, force=force)
        except DataError:
            if not _is_forced(scratch):
                discard(scratch)  # nothing to continue: of the run that made the model, or of none
            raise
        yield
        discard(scratch)
    finally:
        os.close(handle)


def _check(out: Path, *, force: bool) -> None:
    """Refuse a finished model, and what is no model."""
    if (out / "config.json").exists() and not force:
        raise Occupied("a finished model is here", file=out, remedy="choose another folder, or replace it: force=True")
    check_target(out, force=force)


def _is_forced(scratch: Path) -> bool:
    """Return whether the unfinished run is to replace a finished model."""
    return (scratch / FILE).exists() and bool(read_json(scratch / FILE, DataError).get("force"))


def begin(scratch: Path, run: dict[str, Any]) -> bool:
    """Note what is trained; return whether an unfinished run of the same goes on.

    An unfinished run of something else is refused, or forgotten if this one is to replace (`force`) what is there.
    """
    sweep(scratch)
    before = read_json(scratch / FILE, DataError) if (scratch / FILE).exists() else None
    if before is not None and all(before.get(name) == run.get(name) for name in ("recipe", "data", "earlier")):
        return True
    if before is not None and not run["force"]:
        raise Occupied(
            "an unfinished run with other settings or data is here, and only those continue it", file=scratch,
            remedy="choose another folder, or begin anew: force=True",
        )  # fmt: skip
    for entry in scratch.iterdir() if run["force"] else ():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    write_json(scratch / FILE, run)
    return False
