"""Predictions for files: every row once and in order, whatever is stopped; in bounded memory; its columns kept."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longtail import answers
from longtail.answers import Target, identity, write_answers
from longtail.data import queries as reading
from longtail.data.dataset import Labels, from_rows
from longtail.data.formats import write
from longtail.data.queries import Queries, open_feed
from longtail.errors import DataError
from longtail.pipeline import fit
from longtail.types import Texts, TopK

LABELS = Labels(3, Texts(["even", "odd", "a|b"]))


def answer(queries: Queries) -> TopK:
    """Answer with the number that ends each text."""
    numbers = np.array([int(text.split()[-1]) for text in queries.texts], np.int32)
    labels = np.stack([numbers % 2, np.where(numbers % 5 == 0, 2, -1)], axis=1).astype(np.int32)
    return TopK(labels, np.where(labels < 0, -np.inf, 0.5).astype(np.float32), LABELS.texts)


def stopping(after: int) -> Callable[[Queries], TopK]:
    """Answer, but break off after so many blocks."""
    left = [after]

    def stop(queries: Queries) -> TopK:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return answer(queries)

    return stop


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch, no_fsync: None) -> None:
    monkeypatch.setattr(reading, "BLOCK", 7)


ROWS = 100


def table(folder: Path, kind: str) -> Path:
    """Write a table of numbered rows with a column of true labels and another one."""
    path = folder / f"items.{kind}"
    rows = [{"title": f"item {n}", "labels": f"true {n}", "price": n * 1.5} for n in range(ROWS)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=30)
    elif kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(path: Path, target: Target, answering: Callable[[Queries], TopK] = answer, **more: Any) -> int:
    with open_feed(path) as feed:
        return write_answers(feed, answering, LABELS, target, identity(path), **{"shard": 10} | more)


def read(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (title, predicted labels) of every row of one file."""
    if path.suffix == ".parquet":
        for row in pq.read_table(path).to_pylist():
            yield row["title"], row["labels"]
    elif path.suffix == ".csv":
        with path.open(newline="") as file:
            for cells in csv.DictReader(file):
                cell = cells["labels"]
                yield cells["title"], json.loads(cell) if cell.startswith("[") else cell.split("|")
    else:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            yield row["title"], [label["text"] for label in row["labels"]]


def expected() -> list[tuple[str, list[str]]]:
    return [(f"item {n}", [("even", "odd")[n % 2]] + ["a|b"] * (n % 5 == 0)) for n in range(ROWS)]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("source", ["jsonl", "csv", "parquet"])
def test_every_row_comes_once_after_any_number_of_stops(tmp_path: Path, source: str, kind: str) -> None:
    path, target = table(tmp_path, source), Target.of(tmp_path / f"out.{kind}")
    for blocks in (0, 1, 3, 5):
        with pytest.raises(KeyboardInterrupt):
            run(path, target, stopping(blocks))
        assert not target.out.exists()
    (target.scratch / ".part-00009.x").touch()  # of a process that was killed
    assert run(path, target) == ROWS
    assert list(read(target.out)) == expected()
    assert not target.scratch.exists()


def test_columns_are_kept(tmp_path: Path) -> None:
    path = table(tmp_path, "parquet")
    run(path, Target.of(tmp_path / "out.parquet"))
    kept = pq.read_table(tmp_path / "out.parquet")
    assert kept.column_names == ["id", "title", "given_labels", "price", "labels", "label_ids", "scores"]
    assert kept["price"].to_pylist()[:2] == [0.0, 1.5] and kept["given_labels"][3].as_py() == "true 3"
    assert kept["label_ids"][5].as_py() == ["1", "2"] and kept["id"].to_pylist() == list(range(1, ROWS + 1))
    run(path, Target.of(tmp_path / "out.jsonl"))
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[1])
    assert first == {
        "id": 2, "title": "item 1", "given_labels": "true 1", "price": 1.5,
        "labels": [{"id": 1, "text": "odd", "score": 0.5}],
    }  # fmt: skip


def test_a_folder_of_shards(tmp_path: Path) -> None:
    path, target = table(tmp_path, "csv"), Target.of(tmp_path / "out", "csv")
    with pytest.raises(KeyboardInterrupt):
        run(path, target, stopping(4))
    assert run(path, target) == ROWS
    shards = sorted(target.out.iterdir())
    assert [shard.name for shard in shards] == [f"part-{n:05d}.csv" for n in range(10)]
    assert [row for shard in shards for row in read(shard)] == expected()
    with pytest.raises(DataError, match="exists already"):
        run(path, target)
    assert run(path, target, force=True) == ROWS
    (target.out / "mine.txt").touch()
    with pytest.raises(DataError, match="other things"):
        run(path, target, force=True)


@pytest.mark.parametrize("shard", [10, 30])  # 100 rows: ten whole shards, or the last one is short
@pytest.mark.parametrize("counted", [True, False])
def test_a_kill_between_the_last_shard_and_the_file(tmp_path: Path, shard: int, counted: bool) -> None:
    path, target = table(tmp_path, "jsonl"), Target.of(tmp_path / "out.csv")
    with patch.object(answers, "_finish", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        run(path, target, shard=shard)
    job = json.loads((target.scratch / "job.json").read_text())
    assert job["rows"] == ROWS and job["columns"] == ["title", "labels", "price"]
    if not counted:
        (target.scratch / "job.json").write_text(json.dumps({key: job[key] for key in job if key != "rows"}))
    assert run(path, target, stopping(0), shard=shard) == ROWS  # nothing is asked again
    assert list(read(target.out)) == expected()


def test_a_stopped_run_is_never_mixed_with_another(tmp_path: Path) -> None:
    path, target = table(tmp_path, "csv"), Target.of(tmp_path / "out.jsonl")
    with pytest.raises(KeyboardInterrupt):
        run(path, target, stopping(4))
    with path.open("a") as file:
        file.write("item 100,x,1\n")
    with pytest.raises(DataError, match="another input, model or settings"):
        run(path, target)
    assert run(path, target, force=True) == ROWS + 1
    with pytest.raises(DataError, match="exists already"):
        run(path, target)


def test_what_is_not_ours_is_never_removed(tmp_path: Path) -> None:
    path, target = table(tmp_path, "csv"), Target.of(tmp_path / "out")
    target.scratch.mkdir()
    (target.scratch / "checkpoint.safetensors").touch()  # of a training with the same name
    with pytest.raises(DataError, match="other things are here"):
        run(path, target, force=True)
    assert (target.scratch / "checkpoint.safetensors").exists()


def test_a_split_of_a_folder_continues_too(tmp_path: Path) -> None:
    rows = [f"item {n}" for n in range(50)]
    write(from_rows({"test": (rows, [[0]] * 50)}, label_texts=["x"]), tmp_path / "d", "arrow")
    target = Target.of(tmp_path / "out.jsonl")
    for stop in (stopping(4), answer):
        try:
            with open_feed(tmp_path / "d") as feed:
                count = write_answers(feed, stop, LABELS, target, identity(feed.path), shard=10)
        except KeyboardInterrupt:
            assert sum(file.suffix == ".jsonl" for file in target.scratch.iterdir()) == 2
    assert count == 50
    assert [json.loads(line)["text"] for line in target.out.read_text().splitlines()] == rows


def test_what_came_through_a_pipe_is_not_continued(tmp_path: Path) -> None:
    path, target = table(tmp_path, "jsonl"), Target.of(tmp_path / "out.jsonl")
    for stop in (stopping(4), answer):
        with open_feed(path) as feed:
            try:
                rows = write_answers(feed, stop, LABELS, target, identity(None), shard=10)
            except KeyboardInterrupt:
                assert sum(file.suffix == ".jsonl" for file in target.scratch.iterdir()) == 2
    assert rows == ROWS and list(read(target.out)) == expected()


def test_json_rows_with_other_keys_are_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a 1", "x": [1]}\n' * 8 + '{"text": "b 2", "y": 1}\n')
    assert run(path, Target.of(tmp_path / "out.jsonl")) == 9
    with pytest.raises(DataError, match="a row has y"):
        run(path, Target.of(tmp_path / "out.csv"))


def test_names_of_files_say_their_kind(tmp_path: Path) -> None:
    assert Target.of(Path("a.PARQUET")) == Target(Path("a.PARQUET"), "parquet", True)
    assert Target.of(Path("a.v2")).kind == "jsonl" and not Target.of(Path("a.v2")).single
    for name in ("o.xlsx", "o.json", "o.txt", "o.csv.gz"):
        with pytest.raises(
            DataError, match=r"is not written; end the name with \.jsonl, \.ndjson, \.csv, \.tsv, \.parquet"
        ):
            Target.of(Path(name))
    with pytest.raises(DataError, match=r"a\.csv is not parquet"):
        Target.of(Path("a.csv"), "parquet")
    (tmp_path / "empty.csv").write_text("title\n")
    with pytest.raises(DataError, match="no texts in the input"):
        run(tmp_path / "empty.csv", Target.of(tmp_path / "out.csv"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_only_a_shard_is_held(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK", 100)
    rows, long = 10_000, "x" * 2000  # 20 MB
    path, out = tmp_path / f"items.{kind}", Target.of(tmp_path / f"out.{kind}")
    if kind == "csv":
        with path.open("w") as file:
            file.write("title,note\n")
            file.writelines(f"item {n},{long}{n}\n" for n in range(rows))
    else:
        notes = [f"{long}{n}" for n in range(rows)]
        pq.write_table(pa.table({"title": [f"item {n}" for n in range(rows)], "note": notes}), path, row_group_size=500)
        del notes
    usual, told = pa.default_memory_pool(), []
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        with open_feed(path) as feed:
            write_answers(
                feed, answer, LABELS, out, identity(path), shard=500, progress=lambda *step: told.append(step)
            )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert peak < 8e6 and pool.max_memory() < 12e6, (peak, pool.max_memory())
    assert told[0][0] == "100 rows" and told[-1] == (f"{rows:,} rows", told[-1][2], told[-1][2])


MILLION = """
import sys
from longtail.cli import main
from longtail.machine import memory_usage
sys.argv = ["longtail", *sys.argv[1:]]
try:
    main()
finally:
    print(memory_usage()[1], flush=True)  # of this process alone: ru_maxrss begins with that of its parent
"""


@pytest.mark.slow
def test_many_rows_in_bounded_memory_and_after_a_kill(tmp_path: Path) -> None:
    rows = 1_000_000
    words = [f"word{n}" for n in range(300)]
    train = from_rows(
        {"train": ([f"{w} thing" for w in words], [[n % 50] for n in range(300)])}, label_texts=words[:50]
    )
    fit("knn", train.train).save(tmp_path / "run")
    texts = pa.array([f"item {n} {words[n % 300]}" for n in range(rows)])
    pq.write_table(pa.table({"title": texts, "number": pa.array(range(rows))}), tmp_path / "in.parquet")
    command = [sys.executable, "-c", MILLION, "predict", tmp_path / "run", tmp_path / "in.parquet"]
    command += ["--out", tmp_path / "out.parquet", "-k", "2"]
    shard = tmp_path / "out.parquet.unfinished" / "part-00000.parquet"
    first = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not shard.exists() and first.poll() is None:
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL and shard.exists()
    second = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    assert int(second.stdout) < 600e6
    result = pq.read_table(tmp_path / "out.parquet", columns=["number", "labels"])
    assert result["number"].to_pylist() == list(range(rows))
    assert result["labels"][7].as_py()[0] == words[7]
    assert not shard.parent.exists() and rows > answers.SHARD
