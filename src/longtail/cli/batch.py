"""Options of commands that run on engines, and `longtail predict` of many files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longtail.cli.console import continues, progress, say
from longtail.errors import DataError
from longtail.types import counted

if TYPE_CHECKING:
    from longtail.answering import PredictSettings
    from longtail.engines.pools import Cluster

AnEngine = Annotated[
    Literal["local", "dask", "ray", "spark"] | None,
    typer.Option("--engine", help="Where workers run: processes of this machine (local), Dask, Ray or Spark."),
]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Processes of this machine; one a core.")]
Address = Annotated[
    str | None,
    typer.Option("--address", help="A cluster that runs already: Dask's scheduler, Ray's head, Spark's master."),
]


@dataclass(frozen=True)
class Machines:
    """What does the work."""

    engine: str
    workers: int | None
    address: str | None

    def cluster(self) -> Cluster:
        """Return where the workers are."""
        from longtail.engines.pools import Cluster
        from longtail.machine import processors

        return Cluster(self.workers or processors(), self.address)


@dataclass(frozen=True)
class Files:
    """How files are read and written."""

    text: str | None
    format: str | None
    kind: str | None
    force: bool
    trusted: list[str] | None


def predict_many(
    run: Path, source: str, out: str | None, settings: PredictSettings, machines: Machines, files: Files
) -> None:
    """Predict the texts of many files into a folder."""
    from longtail.answers import KINDS
    from longtail.data.formats.single import OTHERS
    from longtail.engines.batches import MANIFEST, PredictShard, model_hash, opened, predict_shards
    from longtail.engines.places import Place, shards

    if out is None or Path(out).suffix.lower() in {*KINDS, *OTHERS}:
        found = "many files need a folder for their answers" if out is None else f"{out} names one file"
        raise DataError(found, remedy="give a folder with --out")
    place, entries = shards(source)
    kind = files.kind or KINDS.get(Path(entries[0].name.removesuffix(".gz")).suffix, "jsonl")
    trusted = None if files.trusted is None else tuple(str(Path(key).resolve()) for key in files.trusted)
    model = str(run.resolve())
    task = PredictShard(
        model, model_hash(run), place, Place.of(out), settings, kind, files.text, files.format, trusted
    )  # fmt: skip
    settings.answer(opened(model, task.hash, trusted))  # what is wrong with the model is told here, once
    with continues(), progress(f"predicting {counted(len(entries), 'shard')} of {source}") as step:
        done = predict_shards(
            task, entries, machines.engine, machines.cluster(), force=files.force, progress=step
        )  # fmt: skip
    if done.columns:
        say(done.columns)
    before = f", {done.skipped:,} of them before" if done.skipped else ""
    say(f"wrote {out}: {counted(done.rows, 'row')} in {counted(done.shards, 'shard')}{before}; {MANIFEST} lists them")
