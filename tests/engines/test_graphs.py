"""Graphs by way of the disk: the bits of those in memory, on every engine, whatever is killed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from killing import Killed
from typer.testing import CliRunner

from longtail.cli import app
from longtail.data.dataset import from_rows
from longtail.data.formats import load, write
from longtail.engines import graphs, pools
from longtail.engines.graphs import BuildRows, build_graph
from longtail.engines.pools import Cluster, Result, Task
from longtail.errors import DataError, ResourceError
from longtail.files import read_arrays
from longtail.labels import graph, spilled, walk
from longtail.labels.graph import KINDS
from longtail.labels.spilled import Entries, GraphSettings, head_of, join_rows, write_entries, write_rows
from longtail.types import LabelMatrix, label_matrix


def here(task: Task, items: Sequence[str], _cluster: Cluster) -> Iterator[Result]:
    return map(task, items)


@pytest.fixture(autouse=True)
def engine_here(monkeypatch: pytest.MonkeyPatch, no_fsync: None) -> None:
    monkeypatch.setattr(pools, "ENGINES", {**pools.ENGINES, "here": here})
    graphs.opened.cache_clear()


def drawn(points: int, labels: int, seed: int = 0) -> LabelMatrix:
    """Draw a label matrix with a head and a long tail; some points and labels are empty."""
    draw = np.random.default_rng(seed)
    rows = [np.unique((labels * draw.random(draw.integers(0, 9)) ** 4).astype(int)) for _ in range(points)]
    flat = np.concatenate([np.zeros(0, int), *rows])
    return label_matrix(np.cumsum([0, *map(len, rows)]), flat, (points, labels))


def arguments(asked: GraphSettings) -> dict[str, Any]:
    """Return what the function in memory takes."""
    if asked.kind == "walk":
        return {"seed": asked.seed} | ({} if asked.top is None else {"top": asked.top})
    return {"top": asked.top} | ({} if asked.kind == "proximity" else {"threshold": asked.threshold})


def check_same(file: Path, targets: LabelMatrix, asked: GraphSettings) -> None:
    expected: sp.csr_array = KINDS[asked.kind](targets, **arguments(asked))
    arrays = read_arrays(file)
    assert arrays["shape"].tolist() == [*expected.shape]
    for name, array in (("indptr", expected.indptr), ("indices", expected.indices), ("values", expected.data)):
        assert arrays[name].dtype == array.dtype and arrays[name].tobytes() == array.tobytes(), name


KIND = st.builds(
    GraphSettings, st.sampled_from([*KINDS]), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.none() | st.integers(1, 3),
    st.integers(0, 3),
)  # fmt: skip


@given(st.integers(0, 40), st.integers(1, 12), KIND)
@settings(deadline=None, max_examples=40)
def test_rows_by_way_of_the_disk_have_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, points: int, labels: int, asked: GraphSettings
) -> None:
    folder, kind = tmp_path_factory.mktemp("spilled"), asked.kind
    targets = drawn(points, labels, asked.seed)
    with (
        patch.object(spilled, "CHUNK", 7), patch.object(spilled, "PART", 20), patch.object(spilled, "BLOCK", 5),
        patch.object(spilled, "PART_WALKERS", 5), patch.object(spilled, "WALKERS", 2), patch.object(spilled, "HEAD", 9),
        patch.object(walk, "HEAD", 9),
    ):  # fmt: skip
        write_entries(folder / "entries", targets, head_of(kind))
        entries = Entries.open(folder / "entries")
        paths = []
        for start, stop in entries.parts(kind):
            paths.append(folder / f"{start}")
            write_rows(paths[-1], entries.rows(start, stop, asked), kind)
        join_rows(paths, folder / "graph.safetensors", labels)
    more = {"head": 9} if kind == "walk" else {}
    expected = KINDS[kind](targets, **arguments(asked), **more)
    arrays = read_arrays(folder / "graph.safetensors")
    for name, array in (("indptr", expected.indptr), ("indices", expected.indices), ("values", expected.data)):
        assert arrays[name].tobytes() == array.tobytes(), name


def killed_build(engine: str, tmp_path: Path, moments: int) -> None:
    targets, asked = drawn(600, 90), GraphSettings(top=7)
    (tmp_path / "notes").mkdir()
    with patch.object(spilled, "PART", 2000), patch.object(graph, "BLOCK", 300):
        write_entries(tmp_path / "entries", targets)
        items = [f"{start}-{stop}" for start, stop in Entries.open(tmp_path / "entries").parts("conditionals")]
        assert len(items) > 3
        victims = dict.fromkeys(items[:moments], "spill")

        def killing(engine: str, task: Task, items: Sequence[str], cluster: Cluster) -> Iterator[Result]:
            return pools.run(engine, Killed(task, victims, tmp_path / "notes"), items, cluster)

        with patch.object(graphs, "run", killing):
            edges, peak = build_graph(targets, "data", asked, tmp_path / "g.safetensors", engine, Cluster(2))
    assert {note.name for note in (tmp_path / "notes").iterdir()} == victims.keys(), "every kill has happened"
    check_same(tmp_path / "g.safetensors", targets, asked)
    assert edges == len(read_arrays(tmp_path / "g.safetensors")["values"]) and 0 < peak < 2**30
    assert not (tmp_path / "g.safetensors.unfinished").exists()


def test_a_killed_worker_of_dask_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    killed_build("dask", tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_killed_workers_change_nothing(engine: str, tmp_path: Path) -> None:
    if engine == "dask":
        pytest.importorskip("distributed")
    killed_build(engine, tmp_path, 3)


def test_a_stopped_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled, "PART", 2000)
    targets, asked, out = drawn(600, 90), GraphSettings("glas", 0.05), tmp_path / "g.safetensors"
    calls: list[str] = []
    real = BuildRows.__call__

    def counting(self: BuildRows, item: str) -> Result:
        if len(calls) == 2:
            calls.append(item)
            raise KeyboardInterrupt
        calls.append(item)
        return real(self, item)

    monkeypatch.setattr(BuildRows, "__call__", counting)
    with pytest.raises(KeyboardInterrupt):
        build_graph(targets, "data", asked, out, "here", Cluster(1))
    assert not out.exists()
    with pytest.raises(DataError, match="of other data or settings"):
        build_graph(targets, "other", asked, out, "here", Cluster(1))
    build_graph(targets, "data", asked, out, "here", Cluster(1))
    assert len(calls) == 1 + len(set(calls)), "only what was missing is built"
    check_same(out, targets, asked)
    monkeypatch.setattr(graphs, "write_rows", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ResourceError, match="No space left on device; the same command goes on"):
        build_graph(targets, "data", asked, tmp_path / "more", "here", Cluster(1))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pools.ENGINES, "local", here)
    texts = [f"point {n}" for n in range(60)]
    rows = [[n % 7, 7 + n % 3] for n in range(60)]
    write(from_rows({"train": (texts, rows)}, label_texts=[f"label {n}" for n in range(10)]), tmp_path / "d", "arrow")
    targets = load(tmp_path / "d").train.targets
    for kind in KINDS:
        args = ["graph", "build", str(tmp_path / "d"), "--kind", kind, "--engine", "local", "--out", str(tmp_path)]
        result = CliRunner().invoke(app, args)
        assert result.exit_code == 0, result.output
        assert "a worker" in result.stderr
        check_same(tmp_path / f"{kind}.safetensors", targets, GraphSettings(kind))
