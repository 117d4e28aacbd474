"""Batch prediction: every row of every file once, on every engine, whatever is killed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killing import Killed
from typer.testing import CliRunner

from longtail.answering import PredictSettings
from longtail.cli import app
from longtail.data.dataset import from_rows
from longtail.engines import batches, pools
from longtail.engines.batches import PredictShard, model_hash, predict_shards
from longtail.engines.places import Place, is_many, shards
from longtail.engines.pools import Cluster, Result, Task
from longtail.errors import DataError, LongtailError, MissingExtra, ModelError, ResourceError
from longtail.index import Index
from longtail.pipeline import fit

SHARDS, ROWS = 5, 30
WORDS = [f"word{n}" for n in range(20)]


def here(task: Task, items: Sequence[str], _cluster: Cluster) -> Iterator[Result]:
    """Run everything in this process: an engine for tests of what is the same on all of them."""
    return map(task, items)


@pytest.fixture(autouse=True)
def engine_here(monkeypatch: pytest.MonkeyPatch, no_fsync: None) -> None:
    monkeypatch.setattr(pools, "ENGINES", {**pools.ENGINES, "here": here})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "run"
    rows = from_rows({"train": ([f"{word} thing" for word in WORDS], [[n] for n in range(20)])}, label_texts=WORDS)
    fit("knn", rows.train).save(folder)
    return folder


def texts_of(shard: int) -> list[dict[str, Any]]:
    return [{"title": f"item {n} {WORDS[(n + shard) % 20]}", "number": shard * ROWS + n} for n in range(ROWS)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for shard in range(SHARDS):
        pq.write_table(pa.Table.from_pylist(texts_of(shard)), folder / f"part-{shard}.parquet")
    return folder


def task_of(model: Path, source: str, out: object, kind: str = "parquet", **settings: Any) -> PredictShard:
    place = Place.of(str(out))
    return PredictShard(
        str(model), model_hash(model), shards(source)[0], place, PredictSettings(**{"k": 2} | settings), kind
    )  # fmt: skip


def predicted(out: Path, kind: str = "parquet") -> list[tuple[int, list[str]]]:
    """Read (number, labels) of all answers, in the order of the files."""
    rows = []
    for file in sorted(out.glob(f"*.{kind}")):
        if kind == "parquet":
            rows += [(row["number"], row["labels"]) for row in pq.read_table(file).to_pylist()]
        else:
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            rows += [(line["number"], [label["text"] for label in line["labels"]]) for line in lines]
    return rows


def expected(model: Path) -> list[tuple[int, list[str]]]:
    rows = [row for shard in range(SHARDS) for row in texts_of(shard)]
    top = Index.load(model).predict([row["title"] for row in rows], k=2)
    return [(row["number"], [text for _, text, _ in top[place]]) for place, row in enumerate(rows)]


def check_all(out: Path, model: Path) -> None:
    """Compare all answers with those of one process, and the manifest with the files."""
    assert predicted(out) == expected(model)
    manifest = json.loads((out / "_manifest.json").read_text())
    assert (manifest["shards"], manifest["rows"]) == (SHARDS, SHARDS * ROWS)
    for file in manifest["files"]:
        content = (out / file["output"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["bytes"], file["sha256"])
        assert file["rows"] == ROWS
    hidden = {file.name for file in out.rglob(".*")}
    assert not hidden, "what killed workers left is swept"


def killed_run(engine: str, moments: dict[str, str], model: Path, source: Path, tmp_path: Path) -> None:
    notes, out = tmp_path / "notes", tmp_path / "out"
    notes.mkdir()
    task = task_of(model, str(source), out)
    with_kills = Killed(task, moments, notes)
    real = batches.run

    def run(engine: str, task: Task, items: Sequence[str], cluster: Cluster) -> Iterator[Result]:
        return real(engine, with_kills, items, cluster)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "run", run)
        done = predict_shards(task, shards(str(source))[1], engine, Cluster(2))
    assert {note.name for note in notes.iterdir()} == moments.keys(), "every kill has happened"
    assert done == (SHARDS, SHARDS * ROWS, 0, "text: title")
    check_all(out, model)


def test_a_killed_worker_loses_and_repeats_nothing(model: Path, source: Path, tmp_path: Path) -> None:
    killed_run("local", {"part-1.parquet": "rename"}, model, source, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "dask", "ray", "spark"])
def test_workers_killed_at_every_moment(
    engine: str, model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = {"dask": "distributed", "ray": "ray", "spark": "pyspark"}.get(engine)
    if package is not None:
        pytest.importorskip(package)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent), prepend=":")
    moments = {"part-0.parquet": "begin", "part-2.parquet": "rename", "part-4.parquet": "note"}
    killed_run(engine, moments, model, source, tmp_path)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_stopped_run_goes_on_with_what_is_missing(kind: str, model: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    task, files = task_of(model, f"{source}/*.parquet", out, kind), shards(f"{source}/*.parquet")[1]

    def stopping(task: Task, items: Sequence[str], _cluster: Cluster) -> Iterator[Result]:
        yield from map(task, items[:2])
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pools.ENGINES, "here", stopping)
        with pytest.raises(KeyboardInterrupt):
            predict_shards(task, files, "here", Cluster(1))
    assert not (out / "_manifest.json").exists()
    times = {file.name: file.stat().st_mtime_ns for file in out.glob(f"*.{kind}")}
    assert len(times) == 2
    steps: list[tuple[str, int, int]] = []
    done = predict_shards(task, files, "here", Cluster(1), progress=lambda *step: steps.append(step))
    assert done.skipped == 2 and done.rows == SHARDS * ROWS
    assert steps[-1][1] == steps[-1][2] and steps[-1][0] == "5 of 5 shards, 150 rows"
    assert all((out / name).stat().st_mtime_ns == time for name, time in times.items())
    if kind != "csv":
        assert predicted(out, kind) == expected(model)
    assert predict_shards(task, files, "here", Cluster(1)).skipped == SHARDS


def test_answers_are_never_mixed_with_others(model: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    task, files = task_of(model, str(source), out), shards(str(source))[1]
    predict_shards(task, files, "here", Cluster(1))
    other = task_of(model, str(source), out, k=1)
    with pytest.raises(DataError, match="another model or of other settings"):
        predict_shards(other, files, "here", Cluster(1))
    fewer = files[1:]
    assert predict_shards(other, fewer, "here", Cluster(1), force=True).skipped == 0
    assert sorted(file.name for file in out.glob("*.parquet")) == [entry.name for entry in fewer]
    assert {len(labels) for _, labels in predicted(out)} == {1}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(DataError, match="other things are here"):
        predict_shards(replace(task, out=Place.of(str(tmp_path / "mine"))), files, "here", Cluster(1))
    with pytest.raises(DataError, match="the texts are here"):
        predict_shards(replace(task, out=task.source), files, "here", Cluster(1))


def test_a_changed_file_a_lost_answer_and_a_new_file_are_predicted(model: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    task = task_of(model, str(source), out)
    predict_shards(task, shards(str(source))[1], "here", Cluster(1))
    (out / "part-0.parquet").unlink()
    pq.write_table(pa.Table.from_pylist(texts_of(1)[:7]), source / "part-1.parquet")
    pq.write_table(pa.Table.from_pylist(texts_of(9)), source / "part-9.parquet")
    done = predict_shards(task, shards(str(source))[1], "here", Cluster(1))
    assert done.skipped == 3 and done.rows == SHARDS * ROWS + 7


def test_files_that_cannot_be_read_do_not_stop_the_others(model: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole = (source / "part-2.parquet").read_bytes()
    (source / "part-2.parquet").write_bytes(whole[:100])
    task, files = task_of(model, str(source), out), shards(str(source))[1]
    with pytest.raises(DataError, match=r"1 of 5 shards failed: part-2\.parquet: .*the others are done"):
        predict_shards(task, files, "here", Cluster(1))
    assert not (out / "_manifest.json").exists()
    (source / "part-2.parquet").write_bytes(whole)
    assert predict_shards(task, shards(str(source))[1], "here", Cluster(1)).skipped == SHARDS - 1
    check_all(out, model)


def test_files_without_rows_have_answers_without_rows(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(
        pa.table({"title": pa.array([], pa.string()), "n": pa.array([], pa.int8())}), tmp_path / "in/a.parquet"
    )
    for kind in ("parquet", "jsonl"):
        task = task_of(model, str(tmp_path / "in"), tmp_path / kind, kind)
        assert predict_shards(task, shards(str(tmp_path / "in"))[1], "here", Cluster(1)).rows == 0
    names = pq.read_schema(tmp_path / "parquet/a.parquet").names
    assert names == ["id", "title", "n", "labels", "label_ids", "scores"]
    assert (tmp_path / "jsonl/a.jsonl").read_bytes() == b""


def test_folders_keep_their_names_and_names_do_not_collide(model: Path, tmp_path: Path) -> None:
    for name in ("in/a/x.jsonl", "in/b/x.jsonl", "in/b/_x.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "word3"}\n')
    pattern = f"{tmp_path}/in/*/*.jsonl"
    predict_shards(task_of(model, pattern, tmp_path / "out", "jsonl"), shards(pattern)[1], "here", Cluster(1))
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").glob("?/*")) == [
        "a/x.jsonl",
        "b/x.jsonl",
    ]
    (tmp_path / "in/a/x.csv").write_text("title\nword3\n")
    with pytest.raises(DataError, match=r"would both become a/x\.jsonl"):
        both = f"{tmp_path}/in/*/*"
        predict_shards(task_of(model, both, tmp_path / "more", "jsonl"), shards(both)[1], "here", Cluster(1))


def test_far_away_files_are_fetched_and_sent(model: Path, source: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for file in source.iterdir():
        memory.pipe(f"/lake/texts/{file.name}", file.read_bytes())
    pattern = "memory://lake/texts/*.parquet"
    assert is_many(pattern)
    task, files = task_of(model, pattern, "memory://lake/answers"), shards(pattern)[1]
    assert predict_shards(task, files, "here", Cluster(1)).rows == SHARDS * ROWS
    assert predict_shards(task, files, "here", Cluster(1)).skipped == SHARDS
    table = pq.read_table(pa.BufferReader(memory.cat("/lake/answers/part-3.parquet")))
    assert table["number"].to_pylist() == [row["number"] for row in texts_of(3)]
    assert not [name for name in memory.find("/lake/answers") if name.endswith(".tmp")]
    memory.rm("/lake", recursive=True)


def test_a_worker_refuses_another_model(model: Path, source: Path, tmp_path: Path) -> None:
    batches.opened.cache_clear()
    task = replace(task_of(model, str(source), tmp_path / "out"), hash="0" * 64)
    with pytest.raises(ModelError, match="not the model that the job began with"):
        task("part-0.parquet")


def test_the_command(model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pools.ENGINES, "local", here)
    monkeypatch.chdir(tmp_path)

    def command(*args: str) -> str:
        result = CliRunner().invoke(app, ["predict", str(model), *args])
        if isinstance(result.exception, LongtailError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stderr

    assert "150 rows in 5 shards; _manifest.json" in command("texts/*.parquet", "--out", "out", "-k", "2")
    check_all(tmp_path / "out", model)
    told = command("texts", "--engine", "local", "--out", "out", "-k", "2")
    assert "150 rows in 5 shards, 5 of them before" in told
    with pytest.raises(DataError, match="give a folder with --out"):
        command("texts/*.parquet")
    with pytest.raises(DataError, match="names one file"):
        command("texts/*.parquet", "--out", "out.csv")
    with pytest.raises(DataError, match="no such files"):
        command("texts/*.csv", "--out", "other")
    monkeypatch.setattr("longtail.machine.find_spec", lambda _name: None)
    for engine in ("dask", "ray", "spark"):
        with pytest.raises(MissingExtra, match=rf'pip install "longtail\[{engine}\]"'):
            command("texts", "--engine", engine, "--out", f"out-{engine}")
    with pytest.raises(ResourceError, match="not an engine"):
        list(pools.run("sparc", str, ["a"], Cluster(1)))
