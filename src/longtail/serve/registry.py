"""MODEL FOLDERS → SERVED MODELS: open them, pick up changed labels, reload a folder that was replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.labels.propensity import bins
from longtail.serve.gauges import Gauges
from longtail.serve.messages import HTTPError
from longtail.serve.protocol import Index, Opener
from longtail.signatures import FILE
from longtail.types import TopK

log = logging.getLogger("longtail.serve")
BINS = ("head", "torso", "tail")
WATCH_INTERVAL = 0.5  # seconds between two checks for a replaced folder


class ServedModel:
    """One model that is served. Read `index` once per task: a reload may replace it at any time."""

    def __init__(self, name: str, folder: Path, index: Index, stamp: object) -> None:
        self.name, self.folder, self.index, self.stamp = name, folder, index, stamp
        self.refused = ""  # why the labels were last not read anew
        self._bins_cache: tuple[Index, int, NDArray[np.int32]] | None = None

    def rows(self, top: TopK, index: Index, details: bool) -> list[list[dict[str, Any]]]:
        """Turn predictions into rows of labels with id, text and score."""
        texts = top.names or index.labels.texts
        rows = []
        for labels, scores in zip(top.labels.tolist(), top.scores.tolist(), strict=True):
            row = []
            for label, score in zip(labels, scores, strict=True):
                if label >= 0:
                    text = texts[label] if texts is not None else str(label)
                    row.append({"id": label, "text": text, "score": round(score, 6)})
            rows.append(row)
        if details:
            for row in rows:
                for entry in row:
                    entry.update(self.about(index, entry["id"]))
        return rows

    def entry(self, index: Index, label: int) -> dict[str, Any]:
        """Describe a label: id, text, raw id, frequency and bin."""
        texts = index.labels.texts
        return {"id": label, "text": str(label) if texts is None else texts[label], **self.about(index, label)}

    def about(self, index: Index, label: int) -> dict[str, Any]:
        """Return raw id, frequency and bin of a label."""
        raw = {} if index.labels.ids is None else {"raw_id": index.labels.ids[label]}
        name = BINS[self._bins(index)[label]]
        return {**raw, "frequency": int(index.frequencies[label]), "bin": name}

    def _bins(self, index: Index) -> NDArray[np.int32]:
        """Bin the labels into head, torso and tail; cached until the labels change."""
        count = len(index.labels)
        if self._bins_cache is None or self._bins_cache[0] is not index or self._bins_cache[1] != count:
            self._bins_cache = (index, count, bins(index.frequencies, len(BINS)))
        return self._bins_cache[2]


class Registry:
    """The served models by name."""

    def __init__(self, folders: Sequence[Path], opener: Opener, gauges: Gauges) -> None:
        self._opener, self._gauges = opener, gauges
        self.models: dict[str, ServedModel] = {}
        for folder in folders:
            stamp = _stamp(folder)
            index = opener(folder)
            name = index.name
            if name in self.models:
                name = folder.resolve().name
            while name in self.models:
                name += "'"
            self.models[name] = ServedModel(name, folder, index, stamp)
        self.count()

    def find(self, name: str | None) -> ServedModel:
        """Return a model by name; without a name, the first one."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise HTTPError(404, "there is no such model; the models are: " + ", ".join(self.models))
        return self.models[name]

    def refresh(self) -> None:
        """Pick up labels that another process changed. Called in the thread that uses the indexes."""
        for model in self.models.values():
            try:
                model.index.refresh()
                model.refused = ""
            except Exception as reason:  # the service goes on with the labels it has
                if model.refused != str(reason):  # told once, not with every request
                    log.error("%s: the changed labels are not used, the known ones stay: %s", model.folder, reason)
                model.refused = str(reason)

    async def watch(self) -> None:
        """Reload replaced folders, for ever."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            await self.reload()
            self.count()

    async def reload(self, *, force: bool = False) -> None:
        """Open replaced folders while the old models serve, then swap; one that cannot be opened changes nothing."""
        for model in self.models.values():
            stamp = _stamp(model.folder)
            if stamp is None or (stamp == model.stamp and not force):
                continue
            model.stamp = stamp  # a bad folder is reported once, and retried when it changes again
            try:
                model.index = await asyncio.to_thread(self._open_verified, model.folder)
            except Exception as reason:  # whatever the folder holds, the service goes on
                log.error("%s: not reloaded, the old model stays: %s", model.folder, reason)
                self._gauges.reloads.labels(model.name, "failed").inc()
                continue
            log.info("%s: reloaded", model.folder)
            self._gauges.reloads.labels(model.name, "done").inc()

    def _open_verified(self, folder: Path) -> Index:
        """Open a folder and verify all its files, before it replaces the served model."""
        index = self._opener(folder)
        index.verify()
        return index

    def damage(self) -> Exception | None:
        """Return what is wrong with one of the served models, if anything."""
        return next((model.index.damage for model in self.models.values() if model.index.damage), None)

    def count(self) -> None:
        """Publish the number of labels of each model."""
        for model in self.models.values():
            self._gauges.labels.labels(model.name).set(len(model.index.labels))


def _stamp(folder: Path) -> object:
    """Return a value that changes with the folder, or when it is signed; None while it is being replaced."""
    config = _state(folder / "config.json")
    return None if config is None else (config, _state(folder / FILE))


def _state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file does; None where there is none."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino, state.st_size
