"""MODEL FOLDER ↔ CONFIG: the settings of a folder with their seal, a checksum of each file, and changes under a lock.

A folder is written whole. Only its figures and its card are replaced later, when the model is evaluated, and its index,
when one is made: config.json names both the old and the new checksum while that happens, so that a crash at any moment
leaves a folder that opens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longtail.card import write_card
from longtail.errors import ModelError, one_line
from longtail.files import indented, read_json, regular, write_json
from longtail.whole import held, whole_file

SCHEMA = 5
METRICS, CARD = "metrics.json", "README.md"
REPLACED = (METRICS, CARD)  # no answer depends on them
NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)  # of a file of a model folder


def read_config(folder: Path) -> dict[str, Any]:
    """Read the settings of a model folder and check their seal, their version and the names of the files."""
    config = read_json(folder / "config.json")
    if config.get("schema") != SCHEMA:
        raise ModelError(
            f"{folder}: written by another version of longtail (schema {config.get('schema')!r}, this one reads "
            f"{SCHEMA}); try `longtail upgrade {folder}`, or train again"
        )
    check_seal(folder, config)
    return config


def check_seal(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse settings that were changed since they were written, and names of files outside of the folder."""
    if config.get("checksum") != _seal({name: value for name, value in config.items() if name != "checksum"}):
        raise ModelError(f"{folder / 'config.json'}: changed since it was written; train again or copy it again")
    files = config.get("files")
    if not isinstance(files, dict) or not all(NAME.fullmatch(name) for name in files):
        raise ModelError(f"{folder / 'config.json'}: names files outside of the folder; do not use this model")
    for name in files:
        if (folder / name).exists():
            try:
                regular(folder / name)
            except OSError as reason:
                raise ModelError(f"{folder / name}: {reason.strerror}; do not use this model") from None


def answers_by(config: Mapping[str, Any]) -> str:
    """Hash what the answers of a model depend on: its settings and its files, but not its figures and its card."""
    files = {name: value for name, value in config["files"].items() if name not in REPLACED}
    return _seal({name: value for name, value in config.items() if name != "checksum"} | {"files": files})


def labels_of(config: Mapping[str, Any]) -> str:
    """Return which labels a folder has: what the numbers of a journal mean."""
    return str(config["files"].get("labels.parquet", ""))


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the settings of a model folder with their seal, whole or not at all."""
    config = {name: value for name, value in config.items() if name != "checksum"}
    write_json(folder / "config.json", config | {"checksum": _seal(config)})


def verify_files(folder: Path, files: Mapping[str, str]) -> None:
    """Read files whole and compare their checksums."""
    for name, expected in files.items():
        remedy = f"make it again: longtail index {folder}" if name.startswith("index_") else "copy the folder again"
        try:
            sound = checksum(folder / name) in str(expected).split()  # two while a file is being replaced
        except OSError as reason:
            raise ModelError(f"{folder / name}: cannot be read ({reason.strerror}); {remedy}") from None
        if not sound:
            raise ModelError(f"{folder / name}: changed since it was written; {remedy}")


def read_evaluations(folder: Path) -> tuple[dict[str, Any], ...]:
    """Read the figures that are kept with a model."""
    figures = read_json(folder / METRICS)
    kept = figures.get("evaluations", [{"split": "validation", **figures}] if figures else [])
    if not isinstance(kept, list) or not all(isinstance(one, dict) for one in kept):
        raise ModelError(f"{folder / METRICS}: not a list of evaluations; copy the folder again")
    return tuple(kept)


def with_evaluation(kept: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Add figures, with the date, to others; earlier ones of the same points give way."""
    where = ("dataset", "split", "fingerprint")
    others = [dict(one) for one in kept if any(one.get(name) != new.get(name) for name in where)]
    return (*others, {**new, "date": datetime.now(UTC).isoformat(timespec="seconds")})


def without_texts(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the few points of an evaluation to try a model with."""
    return {name: value for name, value in evaluation.items() if name != "examples"}


def keep_evaluation(folder: Path, facts: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Keep figures with the model whose facts are given, in metrics.json and its card."""
    with changing(folder) as config:
        if any(config.get(name) != facts[name] for name in ("recipe", "labels", "points", "dataset")):
            raise ModelError(f"{folder}: the model was replaced while it was evaluated; evaluate it again")
        if not config.get("examples"):  # a folder that was asked to keep no texts
            new = without_texts(new)
        kept = with_evaluation(read_evaluations(folder), new)
        try:
            contents = {METRICS: indented({"evaluations": kept}), CARD: write_card(config, kept)}
        except (LookupError, TypeError, ValueError, AttributeError) as reason:
            why = f"{type(reason).__name__}: {one_line(reason)}"
            raise ModelError(f"{folder}: holds figures that longtail does not write ({why}); none were added") from None
        replace_files(folder, config, contents)


@contextmanager
def changing(folder: Path) -> Iterator[dict[str, Any]]:
    """Keep other writers of a folder away and yield its settings as they are now."""
    with held(folder):
        yield read_config(folder)


def replace_files(folder: Path, config: Mapping[str, Any], contents: Mapping[str, str]) -> None:
    """Replace text files of a folder whose lock is held; a crash in between leaves a folder that opens."""
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in contents.items()}
    both = {name: f"{config['files'].get(name, '')} {value}".strip() for name, value in sums.items()}
    write_config(folder, {**config, "files": config["files"] | both})
    for name, text in contents.items():
        with whole_file(folder / name) as partial:
            partial.write_bytes(text.encode())
    write_config(folder, {**config, "files": config["files"] | sums})


def _seal(config: dict[str, Any]) -> str:
    """Hash the settings that a folder was written with."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def checksum(path: Path) -> str:
    """Hash a file."""
    regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
