"""MODEL FOLDER + STORE → LABEL VECTORS ELSEWHERE: `longtail index RUN --store qdrant:///path`, and what serves it.

A store holds the vectors of any number of models, each under the hash of its files: a model that is replaced has
another place, so that a swap is one step, and no process ever searches the vectors of another model. Which store is
read is said by whoever runs the process (LONGTAIL_STORE), never by a model folder, which may come from a stranger.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longtail.artefact import BEST_EFFORTS, OWN, IndexInfo, Trial, info_of
from longtail.errors import DataError, ModelError
from longtail.files import read_json, write_json
from longtail.folder import REPLACED, read_config, verify_files
from longtail.model import Model
from longtail.stores.memory import MemoryStore
from longtail.stores.qdrant import QdrantStore, build_qdrant
from longtail.types import Progress

STORE = "LONGTAIL_STORE"  # the variable that names the store
SCHEME = "qdrant://"


def place_of(store: str, config: Mapping[str, Any]) -> Path:
    """Return the folder of a model's vectors in a store."""
    path = Path(store.removeprefix(SCHEME))
    if not store.startswith(SCHEME) or not path.is_absolute():
        raise DataError(f"{store!r} is not a store", remedy="write qdrant:///whole/path/of/a/folder")
    files = {name: value for name, value in config["files"].items() if name not in REPLACED and not OWN.fullmatch(name)}
    return path / hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:32]


def build_store(
    path: Path, store: str, *, recall: float = 0.98, progress: Progress | None = None
) -> tuple[Path, IndexInfo] | None:
    """Hand the label vectors of a model over to a store, and measure the recall; None where it has none to search."""
    config = read_config(path)
    verify_files(path, {name: value for name, value in config["files"].items() if not OWN.fullmatch(name)})
    model, place = Model.opened(path, config), place_of(store, config)
    own = None if model.vectors is None or not model.vectors.searchable else model.vectors.store
    if not isinstance(own, MemoryStore):
        return None
    if not place.exists():
        build_qdrant(place, own, progress=progress)
    trial, value = Trial(model), 0.0
    opened = QdrantStore.open(place, own)
    try:
        for effort in (*BEST_EFFORTS, 0):  # none: all labels are looked at
            value = trial.recall(opened.searching(effort))
            if value >= recall:
                break
    finally:
        opened.close()
    info = IndexInfo("fp32", "qdrant", round(value, 4), recall, len(trial.texts), effort)
    write_json(_facts(place), asdict(info))
    return place, info


def _facts(place: Path) -> Path:
    """Name the file that says what was measured."""
    return place.with_name(f"{place.name}.json")


def open_store(folder: Path, model: Model, config: Mapping[str, Any], store: str) -> tuple[Any, IndexInfo | None]:
    """Return the vectors of a model as they are searched in a store."""
    scorer = model.vectors
    if scorer is None or not scorer.searchable or not isinstance(scorer.store, MemoryStore):
        return scorer, None
    place = place_of(store, config)
    if not _facts(place).is_file():
        raise ModelError(f"{folder}: not in the store {store}; run: longtail index {folder} --store {store}")
    info = info_of(folder, read_json(_facts(place)))
    return scorer.with_store(QdrantStore.open(place, scorer.store).searching(info.ef_search)), info
