"""MODEL FOLDER + STORE → LABEL VECTORS ELSEWHERE: `longtail index RUN --store postgresql://…`, and what serves it.

A store holds the vectors of any number of models, each under the hash of its files: a model that is replaced has
another place, so that a swap is one step, and no process ever searches the vectors of another model. Which store is
read is said by whoever runs the process (LONGTAIL_STORE), never by a model folder, which may come from a stranger.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from longtail.artefact import BEST_EFFORTS, OWN, IndexInfo, Trial, info_of
from longtail.errors import DataError, ModelError
from longtail.folder import REPLACED, read_config, verify_files
from longtail.labels.journal import Journal
from longtail.model import Model
from longtail.stores.engine import Place
from longtail.stores.memory import MemoryStore
from longtail.stores.milvus import MilvusPlace
from longtail.stores.postgres import PostgresPlace
from longtail.stores.qdrant import QdrantPlace
from longtail.stores.qdrant_server import SECURE, QdrantServerPlace
from longtail.stores.shards import ShardsPlace
from longtail.types import Progress

STORE = "LONGTAIL_STORE"  # the variable that names the store
REMEDY = (
    "write qdrant:///whole/path, qdrant://host, postgresql://user@host/database, milvus://host or "
    "shards://host1:8000,host2:8000"
)


def hash_of(config: Mapping[str, Any]) -> str:
    """Return what a model is called in every store."""
    files = {name: value for name, value in config["files"].items() if name not in REPLACED and not OWN.fullmatch(name)}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:32]


def place_of(store: str, config: Mapping[str, Any]) -> Place:
    """Return where a store keeps the vectors of a model."""
    name = hash_of(config)
    scheme, _, rest = store.partition("://")
    if scheme == "qdrant" and Path(rest).is_absolute():
        return QdrantPlace(Path(rest) / name)
    if scheme in ("qdrant", SECURE) and _is_host(store):
        return QdrantServerPlace(store, name)
    if scheme == "postgresql":
        return PostgresPlace(store, name)
    if scheme == "milvus" and rest:
        return MilvusPlace(store, name)
    if scheme == "shards":
        return ShardsPlace(store, name)
    raise DataError(f"{shown(store)!r} is not a store", remedy=REMEDY)


def _is_host(store: str) -> bool:
    """Return whether an address names a host and nothing on it."""
    try:
        parts = urlsplit(store)
    except ValueError:
        return False
    return bool(parts.hostname) and parts.path in ("", "/")


def shown(store: str) -> str:
    """Return the address of a store as it may be printed, without a password.

    >>> shown("postgresql://me:secret@host/labels"), shown("qdrant:///srv/labels")
    ('postgresql://me@host/labels', 'qdrant:///srv/labels')
    """
    try:
        password = urlsplit(store).password
    except ValueError:
        return "?"
    return store if password is None else store.replace(f":{password}@", "@", 1)


def build_store(
    path: Path, store: str, *, recall: float = 0.98, progress: Progress | None = None
) -> tuple[str, IndexInfo] | None:
    """Hand the label vectors of a model over to a store, and measure the recall; None where it has none to search."""
    config = read_config(path)
    verify_files(path, {name: value for name, value in config["files"].items() if not OWN.fullmatch(name)})
    model, place = Model.opened(path, config), place_of(store, config)
    own = None if model.vectors is None or not model.vectors.searchable else model.vectors.store
    if not isinstance(own, MemoryStore):
        return None
    place.build(own, progress)
    trial, value = Trial(model), 0.0
    opened = place.open(own)
    try:
        for effort in (*(BEST_EFFORTS if opened.has_graph else ()), 0):  # none: all labels are looked at
            value = trial.recall(opened.searching(effort))
            if value >= recall:
                break
    finally:
        opened.close()
    info = IndexInfo("fp32", place.name, round(value, 4), recall, len(trial.texts), effort)
    place.keep(asdict(info))
    return str(place), info


def open_store(folder: Path, model: Model, config: Mapping[str, Any], store: str) -> tuple[Any, IndexInfo | None]:
    """Return the vectors of a model as they are searched in a store."""
    scorer = model.vectors
    if scorer is None or not scorer.searchable or not isinstance(scorer.store, MemoryStore):
        return scorer, None
    place = place_of(store, config)
    facts = place.facts()
    if facts is None:
        where = shown(store)
        raise ModelError(f"{folder}: not in the store {where}; run: longtail index {folder} --store {where}")
    info = info_of(folder, facts)
    return scorer.with_store(place.open(scorer.store).searching(info.ef_search)), info


def open_journal(
    folder: Path, config: Mapping[str, Any], store: str | None, model: str, current: Callable[[], str]
) -> Journal:
    """Open the changes of a model's labels: in the store, where it keeps them, or beside the model."""
    if not store:
        return Journal(folder, model, current)
    return place_of(store, config).journal(folder, model, current)
