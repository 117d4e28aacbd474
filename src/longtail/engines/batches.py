"""MODEL + SHARDS OF TEXTS → SHARDS OF ANSWERS: billions of texts, one file of answers for each file of texts.

A shard is predicted by one worker, written whole, and then noted in `_done/`: what was killed is found by what is
missing there, so that the same command loses and repeats nothing, on whichever engine it runs. When all shards are
there, `_manifest.json` lists them with their rows and checksums.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from longtail.answering import PredictSettings
from longtail.answers import KINDS, identity, write_shard
from longtail.data.formats.columns import Reading
from longtail.data.queries import Feed, Queries, open_feed
from longtail.engines.places import HIDDEN, Entry, Place
from longtail.engines.pools import Cluster, Result, run
from longtail.errors import DataError, ModelError, Occupied
from longtail.folder import answers_by, checksum, read_config
from longtail.index import Index
from longtail.labels.journal import FILE
from longtail.types import Progress, counted

JOB, DONE, MANIFEST = "_job.json", "_done", "_manifest.json"
NAMED = 3  # failed shards that an error names


@dataclass(frozen=True)
class PredictShard:
    """A task: predict one file of texts, write its answers whole, note it, and return the note."""

    model: str  # the folder; every machine sees it under this name
    hash: str  # of the model: a worker refuses another one
    source: Place
    out: Place
    settings: PredictSettings
    kind: str  # jsonl, csv, tsv or parquet
    text: str | None = None  # the column of texts
    format: str | None = None  # of the input
    trusted: tuple[str, ...] | None = None  # keys that must have signed the model

    @property
    def job(self) -> dict[str, Any]:
        """Tell one job from another: what the answers depend on, but not where anything is."""
        asked = {"text": self.text, "format": self.format, **asdict(self.settings)}
        return {"model": self.hash, "kind": self.kind, "settings": asked}

    @property
    def number(self) -> str:
        """Hash the job."""
        return hashlib.sha256(json.dumps(self.job, sort_keys=True).encode()).hexdigest()

    def output(self, name: str) -> str:
        """Name the answers of a file.

        >>> place = Place(".")
        >>> PredictShard("run", "", place, place, PredictSettings(), "jsonl").output("a/part-0.csv.gz")
        'a/part-0.jsonl'
        """
        path = PurePosixPath(name.removesuffix(".gz"))
        return str(path.with_suffix(f".{self.kind}"))

    def note(self, name: str) -> str:
        """Name the note of a file that is done."""
        return f"{DONE}/{self.output(name)}.json"

    def is_done(self, entry: Entry, note: dict[str, Any] | None, sizes: dict[str, int]) -> bool:
        """Return whether the answers of a file are there, of this job and of the file as it is now."""
        if note is None or [note.get(key) for key in ("job", "input", "size", "time")] != [self.number, *entry]:
            return False
        return sizes.get(self.output(entry.name)) == note.get("bytes")

    def __call__(self, name: str) -> Result:
        """Predict a shard."""
        index = opened(self.model, self.hash, self.trusted)
        reading = replace(Reading.of(self.text), usual=index.model.columns)
        find, output = self.settings.find(index), self.output(name)
        entry = self.source.entry(name)
        with self.source.fetched(name) as path, self.out.whole(output) as partial:
            with open_feed(path, reading, format=self.format, find=find) as feed:
                blocks = _some(feed, path)
                answer = self.settings.answer(index)
                rows = write_shard(partial, blocks, answer, index.labels, self.kind, {}, lambda _rows: None)
            facts = {"rows": rows, "bytes": partial.stat().st_size, "sha256": checksum(partial)}
        note = {"input": name, "size": entry.size, "time": entry.time, "output": output, **facts, "job": self.number}
        self.out.write(self.note(name), note)
        return note | {"columns": feed.note}


def _some(feed: Feed, path: Path) -> Iterator[Queries]:
    """Yield the blocks of a feed; of one without rows an empty block, so that a table has its columns all the same."""
    first = next(feed.blocks, None)
    if first is not None:
        return chain([first], feed.blocks)
    parquet = path.name.endswith(".parquet")
    return iter([Queries([], [], [], pa.RecordBatch.from_pylist([], pq.read_schema(path)) if parquet else [])])


def model_hash(folder: Path) -> str:
    """Hash what the answers of a folder depend on: its files, and labels that were added and removed."""
    return str(identity(None, answers_by(read_config(folder)), folder / FILE)["model"])


@lru_cache(maxsize=1)
def opened(model: str, expected: str, trusted: tuple[str, ...] | None) -> Index:
    """Open a model once in a process; its files are memory-mapped, so that processes share them."""
    index = Index.load(model, verify=True, trusted=trusted)
    if model_hash(Path(model)) != expected:
        raise ModelError(f"{model}: not the model that the job began with; copy that one here, or begin with --force")
    return index


class Batch(NamedTuple):
    """What a run has done."""

    shards: int
    rows: int
    skipped: int  # shards that were there already
    columns: str  # which columns were read, "" where that is clear


def predict_shards(
    task: PredictShard, files: list[Entry], engine: str, cluster: Cluster, *, force: bool = False,
    progress: Progress | None = None,
) -> Batch:  # fmt: skip
    """Predict all files on an engine; the same call goes on where another was stopped."""
    _check(task, files)
    notes = _begin(task, files, force)
    sizes = {entry.name: entry.size for entry in files}
    done = {name: note for name, note in notes.items() if name in sizes}
    skipped, failed, columns = len(done), list[Result](), ""
    left = [entry.name for entry in files if entry.name not in done]
    rows, read = sum(note["rows"] for note in done.values()), sum(sizes[name] for name in done)
    for result in run(engine, task, left, cluster):
        if "error" in result:
            failed.append(result)
            continue
        columns = result.pop("columns") or columns
        done[result["input"]] = result
        rows, read = rows + result["rows"], read + sizes[result["input"]]
        if progress is not None:
            progress(f"{len(done):,} of {counted(len(files), 'shard')}, {rows:,} rows", read, sum(sizes.values()))
    task.out.sweep()  # of workers that were killed over a shard which another had already, or has now
    if failed:
        some = "; ".join(f"{result['item']}: {result['error']}" for result in failed[:NAMED])
        found = f"{len(failed)} of {counted(len(files), 'shard')} failed: {some}"
        raise DataError(found, remedy="mend them and repeat the command: the others are done")
    listed = [{key: value for key, value in done[entry.name].items() if key != "job"} for entry in files]
    task.out.write(MANIFEST, task.job | {"shards": len(files), "rows": rows, "files": listed})
    return Batch(len(files), rows, skipped, columns)


def _check(task: PredictShard, files: list[Entry]) -> None:
    """Refuse inputs whose answers would have one name, and the folder of the texts itself."""
    seen: dict[str, str] = {}
    for entry in files:
        before = seen.setdefault(task.output(entry.name), entry.name)
        if before != entry.name:
            found = f"{before} and {entry.name} would both become {task.output(entry.name)}"
            raise DataError(found, file=task.source.address, remedy="choose one of them by a pattern")
    if task.kind not in KINDS.values():
        raise DataError(f"{task.kind} is not written", remedy="choose jsonl, csv, tsv or parquet")
    if task.out.address.rstrip("/") == task.source.address.rstrip("/"):
        raise DataError("the texts are here", file=task.out.address, remedy="choose another place")


def _begin(task: PredictShard, files: list[Entry], force: bool) -> dict[str, Result]:
    """Open the folder of answers; return the notes of the shards that are done."""
    there = {entry.name: entry.size for entry in task.out.entries()}
    before = task.out.read(JOB)
    if before is None and any(not HIDDEN.search(name) for name in there):
        raise DataError("other things are here", file=task.out.address, remedy="choose another place")
    if before is not None and before != task.job and not force:
        raise Occupied(
            "answers of another model or of other settings are here", file=task.out.address,
            remedy="choose another place, or replace them: force=True",
        )  # fmt: skip
    if force:
        for noted in [name for name in there if name.startswith(f"{DONE}/")]:
            for name in (noted, noted.removeprefix(f"{DONE}/").removesuffix(".json")):
                if name in there:
                    task.out.remove(name)
    if MANIFEST in there:
        task.out.remove(MANIFEST)  # until all shards are there again
    if before != task.job:
        task.out.write(JOB, task.job)
    if force:
        return {}
    notes = {entry.name: task.out.read(task.note(entry.name)) for entry in files if task.note(entry.name) in there}
    return {
        entry.name: note for entry in files
        if (note := notes.get(entry.name)) is not None and task.is_done(entry, note, there)
    }  # fmt: skip
