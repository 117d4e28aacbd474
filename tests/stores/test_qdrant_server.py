"""A Qdrant server: collections, aliases, filters and facts by its client's own local mode; a server that is away."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import numpy as np
import pytest
from stores.handing import handed_over

from longtail.errors import DataError, MissingExtra, ModelError, StoreDown
from longtail.stored import place_of, shown
from longtail.stores.memory import MemoryStore
from longtail.stores.qdrant_server import QdrantServerPlace, QdrantServerStore

qdrant_client = pytest.importorskip("qdrant_client")
pytestmark = pytest.mark.filterwarnings("ignore:Local mode")
draw = np.random.default_rng(0)
MODEL = MemoryStore.of(draw.normal(size=(500, 12)).astype(np.float32), draw.normal(size=500).astype(np.float32))
QUERIES = draw.normal(size=(20, 12)).astype(np.float32)
ADDRESS, HASH = "qdrant://127.0.0.1:6333", "0" * 32


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch):
    """Let every address lead to one place in memory, which the client of Qdrant searches itself."""
    client = qdrant_client.QdrantClient(":memory:")
    monkeypatch.setattr(qdrant_client, "QdrantClient", lambda **_given: client)
    monkeypatch.setattr(client, "close", lambda: None)
    return client


def names(client) -> list[str]:
    return sorted(one.name for one in client.get_collections().collections)


def test_searches_are_those_of_all_labels(local) -> None:
    place, told = QdrantServerPlace(ADDRESS, HASH), list[tuple[str, int, int]]()
    assert place.facts() is None
    with pytest.raises(ModelError, match="has no collection"):
        place.open(MODEL)
    local.create_collection(f"{place.alias}_0123abcd", vectors_config={})  # what a killed command left
    place.build(MODEL, lambda what, done, total: told.append((what, done, total)))
    (whole,) = names(local)
    place.build(MODEL)
    assert names(local) == [whole] and told == [("handing labels over", 500, 500)]
    place.keep({"recall": 1.0})
    place.keep({"recall": 0.5})
    assert QdrantServerPlace(ADDRESS, HASH).facts() == {"recall": 0.5}
    assert QdrantServerPlace(ADDRESS, "1" * 32).facts() is None
    store, (expected, values) = place.open(MODEL), MODEL.search(QUERIES, 7)
    for effort in (0, 400):
        labels, scores = store.searching(effort).search(QUERIES, 7)
        np.testing.assert_array_equal(labels, expected)
        np.testing.assert_allclose(scores, values, rtol=1e-5)
        allowed = np.array([400, 3, 77, 12])
        found, _ = store.searching(effort).search_within(QUERIES[1], 3, allowed)
        assert found.tolist() == allowed[np.argsort(-MODEL.score(QUERIES[1], allowed))][:3].tolist()
    with pytest.raises(ModelError, match="holds 500 labels, the model 499"):
        place.open(MemoryStore.of(MODEL.take(slice(499))))
    store.close()


def test_a_collection_that_is_half_there_is_not_read(local, monkeypatch: pytest.MonkeyPatch) -> None:
    place = QdrantServerPlace(ADDRESS, HASH)
    with monkeypatch.context() as broken:
        broken.setattr("longtail.stores.qdrant_server.CHUNK", 100)
        broken.setattr(local, "get_collection", lambda _name: 1 / 0)  # it ends before the graph is whole
        with pytest.raises(ZeroDivisionError):
            place.build(MODEL)
    assert len(names(local)) == 1
    with pytest.raises(ModelError, match="has no collection"):
        place.open(MODEL)
    place.build(MODEL)
    assert len(names(local)) == 1 and len(place.open(MODEL)) == 500


def test_a_model_is_handed_over_and_answers_by_it(local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, _ = handed_over(tmp_path / "run", ADDRESS, monkeypatch)
    assert isinstance(index._vectors.store, QdrantServerStore) and index.describe()["index"]["search"] == "qdrant"
    added = index.add(["name of a new thing"])
    assert index.predict(["a new thing"], 1).labels.tolist() == [added]


@pytest.mark.parametrize(("status", "kind", "words"), [(503, StoreDown, "cannot answer"), (403, DataError, "refused")])
def test_what_a_server_says_is_told(status: int, kind: type[Exception], words: str) -> None:
    asked = list[str]()

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["api-key"])
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = QdrantServerPlace(f"qdrant://:a%20key@127.0.0.1:{server.server_port}", HASH)
        with pytest.warns(UserWarning, match="insecure"), pytest.raises(kind, match=f"Qdrant {words}"):
            place.facts()
        server.shutdown()
    assert asked == ["a key"]


def test_a_server_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreDown, match="Qdrant does not answer"):
        QdrantServerPlace("qdrant://127.0.0.1:9", HASH).facts()
    assert isinstance(place_of("qdrant+https://me.example:443", {"files": {}}), QdrantServerPlace)
    assert shown("qdrant+https://:key@me.example") == "qdrant+https://@me.example"
    for address in ("qdrant://", "qdrant+https:///path"):
        with pytest.raises(DataError, match="is not a store"):
            place_of(address, {"files": {}})
    monkeypatch.setattr("longtail.machine.find_spec", lambda _name: None)
    monkeypatch.setitem(__import__("sys").modules, "qdrant_client", None)
    with pytest.raises(MissingExtra, match=r'pip install "longtail\[qdrant\]"'):
        QdrantServerPlace(ADDRESS, HASH).facts()
