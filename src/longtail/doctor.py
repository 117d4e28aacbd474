"""MODEL FOLDER → FINDINGS: what is wrong with it, what was repaired, and what only another copy mends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.artefact import OWN
from longtail.errors import LongtailError, ModelError
from longtail.folder import read_config, verify_files, write_config
from longtail.index import Index
from longtail.signatures import FILE, stale
from longtail.whole import EARLIER, TEMPORARY, held, restored, sweep

TEXTS = 20  # training texts that a folder is asked


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and how it was mended; empty: it was not."""

    wrong: str
    mended: str = ""


def examine(path: str | Path, *, repair: bool = True) -> list[Finding]:
    """Check a model folder: leftovers, checksums, every array, the journal, a few answers; mend what can be mended."""
    folder = Path(path).resolve()
    findings = []
    if repair and restored(folder):
        findings.append(Finding(f"{folder} was being replaced when a process was killed", "put the old folder back"))
    try:
        with held(folder):
            config = read_config(folder)
            findings += _leftovers(folder, config, repair=repair)
            findings += _index(folder, config, repair=repair)
            if stale(folder, read_config(folder)):
                findings.append(Finding(f"{folder / FILE}: signed before the model or its labels were changed"))
        index = Index.load(folder, verify=True)
        texts = index.labels.texts if index.model.examples is None else index.model.examples.texts
        index.predict([] if texts is None else texts[:TEXTS].tolist())
    except LongtailError as reason:
        findings.append(Finding(str(reason)))
    return findings


def _leftovers(folder: Path, config: dict[str, Any], *, repair: bool) -> list[Finding]:
    """Remove what killed processes left in the folder and beside it."""
    inside = [entry for entry in folder.iterdir() if TEMPORARY.fullmatch(entry.name) or EARLIER.fullmatch(entry.name)]
    unlisted = [file for file in folder.iterdir() if OWN.fullmatch(file.name) and file.name not in config["files"]]
    beside = [entry for entry in folder.parent.glob(f".{folder.name}.*.tmp*") if TEMPORARY.fullmatch(entry.name)]
    if repair:
        sweep(folder)
        sweep(folder.parent, folder.name)
        for entry in (*unlisted, *(entry for entry in inside if EARLIER.fullmatch(entry.name))):
            entry.unlink()
    found = sorted({*inside, *unlisted, *beside})
    return [Finding(f"{entry}: left by a process that was killed", _gone(entry)) for entry in found]


def _gone(entry: Path) -> str:
    """Say whether something was removed."""
    return "" if entry.exists() else "removed"


def _index(folder: Path, config: dict[str, Any], *, repair: bool) -> list[Finding]:
    """Drop an index file that is damaged: labels are searched without it, and it can be made again."""
    own = {name: value for name, value in config["files"].items() if OWN.fullmatch(name)}
    wrong = _refused(lambda: verify_files(folder, own))
    if wrong is None:
        return []
    if repair:
        files = {name: value for name, value in config["files"].items() if name not in own}
        write_config(folder, {name: value for name, value in config.items() if name != "index"} | {"files": files})
        for name in own:
            (folder / name).unlink(missing_ok=True)
    return [Finding(wrong, "took the index out of the folder" if repair else "")]


def _refused(check: Callable[[], None]) -> str | None:
    """Return why a check refuses, if it does."""
    try:
        check()
    except ModelError as reason:
        return str(reason)
    return None
