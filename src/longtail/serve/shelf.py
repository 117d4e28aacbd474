"""MODEL FOLDERS → MODELS IN SERVICE: open, take over changes, open again when the folder was replaced."""

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
from longtail.serve.messages import Refusal
from longtail.serve.protocol import Index, Opener
from longtail.types import TopK

log = logging.getLogger("longtail.serve")
BINS = ("head", "torso", "tail")
WATCH = 0.5  # seconds between two looks for a replaced folder


class Served:
    """One model in service. The index is read once per piece of work: a new one may take its place at any time."""

    def __init__(self, name: str, folder: Path, index: Index, stamp: object) -> None:
        self.name, self.folder, self.index, self.stamp = name, folder, index, stamp
        self._binned: tuple[Index, int, NDArray[np.int32]] | None = None

    def rows(self, top: TopK, index: Index, details: bool) -> list[list[dict[str, Any]]]:
        """Write predictions as rows of labels with id, text and score."""
        texts = top.names or index.labels.texts
        out = []
        for labels, scores in zip(top.labels.tolist(), top.scores.tolist(), strict=True):
            row = []
            for label, score in zip(labels, scores, strict=True):
                if label >= 0:
                    text = texts[label] if texts is not None else str(label)
                    row.append({"id": label, "text": text, "score": round(score, 6)})
            out.append(row)
        if details:
            for row in out:
                for entry in row:
                    entry.update(self.about(index, entry["id"]))
        return out

    def entry(self, index: Index, label: int) -> dict[str, Any]:
        """Describe a label in one line."""
        texts = index.labels.texts
        return {"id": label, "text": str(label) if texts is None else texts[label], **self.about(index, label)}

    def about(self, index: Index, label: int) -> dict[str, Any]:
        """Tell raw id, frequency and bin of a label."""
        raw = {} if index.labels.ids is None else {"raw_id": index.labels.ids[label]}
        where = BINS[self._bins(index)[label]]
        return {**raw, "frequency": int(index.frequencies[label]), "bin": where}

    def _bins(self, index: Index) -> NDArray[np.int32]:
        """Cut the labels into head, torso and tail, again only when there are other labels."""
        count = len(index.labels)
        if self._binned is None or self._binned[0] is not index or self._binned[1] != count:
            self._binned = (index, count, bins(index.frequencies, len(BINS)))
        return self._binned[2]


class Shelf:
    """The models in service by name."""

    def __init__(self, folders: Sequence[Path], opener: Opener, gauges: Gauges) -> None:
        self._opener, self._gauges = opener, gauges
        self.models: dict[str, Served] = {}
        for folder in folders:
            stamp = _stamp(folder)
            index = opener(folder)
            name = index.name
            if name in self.models:
                name = folder.resolve().name
            while name in self.models:
                name += "'"
            self.models[name] = Served(name, folder, index, stamp)
        self.count()

    def find(self, name: str | None) -> Served:
        """Find a model by name; the first one has no need of a name."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Refusal(404, "there is no such model; the models are: " + ", ".join(self.models))
        return self.models[name]

    def refresh(self) -> None:
        """Take over labels that another process changed. Called in the thread that uses the indexes."""
        for served in self.models.values():
            try:
                served.index.refresh()
            except Exception:  # whatever happened, the service goes on with the labels it has
                log.exception("%s: the changed labels could not be read; the known ones stay", served.folder)

    async def watch(self) -> None:
        """Open folders again when they were replaced, for ever."""
        while True:
            await asyncio.sleep(WATCH)
            await self.reload()
            self.count()

    async def reload(self, *, force: bool = False) -> None:
        """Open replaced folders beside the running models, and swap; a folder that cannot be opened changes nothing."""
        for served in self.models.values():
            stamp = _stamp(served.folder)
            if stamp is None or (stamp == served.stamp and not force):
                continue
            served.stamp = stamp  # a bad folder is reported once, and tried again when it changes again
            try:
                served.index = await asyncio.to_thread(self._whole, served.folder)
            except Exception as reason:  # whatever the folder holds, the service goes on
                log.error("%s: not reloaded, the old model stays: %s", served.folder, reason)
                self._gauges.reloads.labels(served.name, "failed").inc()
                continue
            log.info("%s: reloaded", served.folder)
            self._gauges.reloads.labels(served.name, "done").inc()

    def _whole(self, folder: Path) -> Index:
        """Open a folder and compare all its files first: the model in service can wait."""
        index = self._opener(folder)
        index.verify()
        return index

    def damage(self) -> Exception | None:
        """Tell what is wrong with a model in service."""
        return next((served.index.damage for served in self.models.values() if served.index.damage), None)

    def count(self) -> None:
        """Publish how many labels there are."""
        for served in self.models.values():
            self._gauges.labels.labels(served.name).set(len(served.index.labels))


def _stamp(folder: Path) -> object:
    """Tell one state of a folder from another; None while it is being replaced."""
    try:
        state = (folder / "config.json").stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino, state.st_size
