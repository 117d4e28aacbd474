"""LABEL MATRIX → GRAPH FILE, on an engine: runs of label rows are handed out, spilled to disk, and joined.

A worker holds one block of rows and the labels of its points. Finished rows are in a file of their own, whole or not
there, so that a killed worker costs one run of rows, and the same command goes on after any kill. All workers see the
folder of the result.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from longtail.engines.pools import Cluster, Result, run
from longtail.errors import DataError, Occupied, ResourceError
from longtail.files import read_json, write_json
from longtail.labels.blocks import check_cut
from longtail.labels.spilled import Entries, GraphSettings, head_of, join_rows, write_entries, write_rows
from longtail.machine import memory_usage
from longtail.types import LabelMatrix, Progress

JOB, ENTRIES = "job.json", "entries.safetensors"


@dataclass(frozen=True)
class BuildRows:
    """A task: build a run of rows and write them to a file."""

    folder: str
    settings: GraphSettings

    def path(self, item: str) -> Path:
        """Name the file of a run of rows, `first-last`."""
        return Path(self.folder) / f"rows-{item}.safetensors"

    def __call__(self, item: str) -> Result:
        """Build rows; return how many edges they have, and the most memory that this process ever used."""
        start, stop = map(int, item.split("-"))
        edges = write_rows(
            self.path(item), opened(self.folder).rows(start, stop, self.settings), self.settings.kind
        )  # fmt: skip
        return {"item": item, "edges": edges, "peak": (memory_usage() or (0, 0))[1]}


@lru_cache(maxsize=1)
def opened(folder: str) -> Entries:
    """Map the entries of a label matrix once in a process."""
    return Entries.open(Path(folder) / ENTRIES)


def build_graph(
    targets: LabelMatrix, data: str, settings: GraphSettings, out: Path, engine: str, cluster: Cluster, *,
    force: bool = False, progress: Progress | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Build a graph on an engine; return its edges and the most memory of a worker. `data` is the hash of the data."""
    check_cut(settings.threshold, settings.top)
    scratch = out.resolve().with_name(out.name + ".unfinished")
    _begin(scratch, {"data": data, **asdict(settings)}, force)
    task = BuildRows(str(scratch), settings)
    if not (scratch / ENTRIES).is_file():
        write_entries(scratch / ENTRIES, targets, head_of(settings.kind))
    items = [f"{start}-{stop}" for start, stop in Entries.open(scratch / ENTRIES).parts(settings.kind)]
    left = [item for item in items if not task.path(item).is_file()]
    done, peak = len(items) - len(left), 0
    for result in run(engine, task, left, cluster):
        if "error" in result:
            raise ResourceError(f"labels {result['item']}: {result['error']}; the same command goes on")
        done, peak = done + 1, max(peak, result["peak"])
        if progress is not None:
            progress(f"labels {result['item']}", done, len(items))
    edges = join_rows([task.path(item) for item in items], out, targets.shape[1])
    shutil.rmtree(scratch)
    return edges, peak


def _begin(scratch: Path, job: dict[str, Any], force: bool) -> None:
    """Open the folder of what is unfinished: of the same job go on, else refuse, or begin anew."""
    if scratch.exists():
        before = read_json(scratch / JOB, DataError)
        if before == job and not force:
            return
        if not force:
            raise Occupied(
                "an unfinished graph of other data or settings is here, and only those continue it", file=scratch,
                remedy="choose another place, or begin anew: force=True",
            )  # fmt: skip
        shutil.rmtree(scratch)
    write_json(scratch / JOB, job)
