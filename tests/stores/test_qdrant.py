"""Qdrant, embedded: the labels and scores of exact search, filters, several processes, damage."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stores.handing import handed_over

from longtail.errors import DataError, MissingExtra, ModelError
from longtail.index import Index
from longtail.stores.memory import MemoryStore
from longtail.stores.qdrant import QdrantPlace, QdrantStore

pytest.importorskip("qdrant_edge")
draw = np.random.default_rng(0)
VECTORS, BIAS = draw.normal(size=(500, 12)).astype(np.float32), draw.normal(size=500).astype(np.float32)
QUERIES = draw.normal(size=(20, 12)).astype(np.float32)
OTHER = """
import sys, numpy as np
from pathlib import Path
from longtail.stores.memory import MemoryStore
from longtail.stores.qdrant import QdrantPlace
store = QdrantPlace(Path(sys.argv[1])).open(MemoryStore.of(np.ones((500, 12), np.float32)))
print(len(store.search_one(np.ones(12, np.float32), 3)[0]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("qdrant") / "labels"
    QdrantPlace(place).build(MemoryStore.of(VECTORS, BIAS))
    return place


def test_searches_are_those_of_all_labels(folder: Path) -> None:
    model = MemoryStore.of(VECTORS, BIAS)
    store = QdrantPlace(folder).open(model)
    labels, scores = store.search(QUERIES, 7)
    expected, values = model.search(QUERIES, 7)
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_allclose(scores, values, rtol=1e-5)
    one, best = store.search_one(QUERIES[0], 7)
    assert one.tolist() == expected[0].tolist() and best[0] == pytest.approx(values[0, 0])
    assert (len(store), store.dim) == (500, 12) and len(store.search(QUERIES, 900)[0][0]) == 500
    np.testing.assert_array_equal(store.take(np.array([3, 5])), VECTORS[[3, 5]])
    second = subprocess.run([sys.executable, "-c", OTHER, str(folder)], capture_output=True, text=True, check=False)
    assert second.stdout == "3\n", second.stderr
    store.close()


def test_filters_are_qdrants(folder: Path) -> None:
    store = QdrantPlace(folder).open(MemoryStore.of(VECTORS, BIAS)).searching(8)
    allowed = np.array([400, 3, 77, 12])
    labels, scores = store.search_within(QUERIES[1], 3, allowed)
    exact = QUERIES[1] @ VECTORS[allowed].T + BIAS[allowed]
    assert labels.tolist() == allowed[np.argsort(-exact)][:3].tolist()
    np.testing.assert_allclose(scores, np.sort(exact)[::-1][:3], rtol=1e-5)
    store.close()


def test_a_model_is_handed_over_and_answers_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    index, _ = handed_over(run, f"qdrant://{tmp_path}/store", monkeypatch)
    assert isinstance(index._vectors.store, QdrantStore) and index.describe()["index"]["search"] == "qdrant"
    added = index.add(["name of a new thing"])
    assert index.predict(["a new thing"], 1).labels.tolist() == [added]
    monkeypatch.setenv("LONGTAIL_STORE", "qdrant://relative/path")
    with pytest.raises(DataError, match="is not a store"):
        Index.load(run)


def test_what_is_wrong_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="holds 500 labels, the model 499"):
        QdrantPlace(folder).open(MemoryStore.of(VECTORS[:-1]))
    shutil.copytree(folder, tmp_path / "damaged")
    for file in (tmp_path / "damaged").rglob("*.json"):
        file.write_text("{")
    with pytest.raises(ModelError, match="Qdrant cannot open it"):
        QdrantPlace(tmp_path / "damaged").open(MemoryStore.of(VECTORS))
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    monkeypatch.setattr("longtail.machine.find_spec", lambda _name: None)
    for work in (QdrantPlace.build, QdrantPlace.open):
        with pytest.raises(MissingExtra, match=r'pip install "longtail\[qdrant\]"'):
            work(QdrantPlace(tmp_path / "x"), MemoryStore.of(VECTORS))
