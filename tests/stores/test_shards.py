"""Labels that several services share: the answers of one, filters, a service that goes and comes, another model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import board, small
from stores.handing import TEXTS

from longtail.errors import DataError, StoreDown
from longtail.index import Index
from longtail.pipeline import fit
from longtail.stored import open_store, place_of
from longtail.stores.memory import MemoryStore
from longtail.stores.shards import PartQuery, ShardsPlace, ShardStore

uvicorn = pytest.importorskip("uvicorn", reason="no service; the extra `serve` brings it")
draw = np.random.default_rng(0)
MODEL = MemoryStore.of(draw.normal(size=(101, 6)).astype(np.float32), draw.normal(size=101).astype(np.float32))
QUERIES = draw.normal(size=(9, 6)).astype(np.float32)


@pytest.mark.parametrize("parts", [1, 3, 200])
@pytest.mark.parametrize("allow", [None, [3, 50, 51, 99, 4000]])
def test_parts_hold_all_labels(parts: int, allow: list[int] | None) -> None:
    found = [PartQuery.of(QUERIES, 5, part=part, parts=parts, allow=allow).search(MODEL) for part in range(parts)]
    labels, scores = (np.concatenate([pair[place] for pair in found], axis=1) for place in (0, 1))
    best = np.take_along_axis(labels, np.argsort(-scores, axis=1, kind="stable")[:, :4], 1)
    every = QUERIES @ MODEL.take(slice(None)).T + MODEL.bias
    some = np.arange(101) if allow is None else np.array(allow[:4])
    np.testing.assert_array_equal(best, some[np.argsort(-every[:, some], axis=1)[:, :4]])


@pytest.mark.parametrize("vectors", ["", "AAAA", "////" * 2, "x", PartQuery.of(QUERIES * np.nan, 1).vectors])
def test_vectors_that_are_none_are_refused(vectors: str) -> None:
    with pytest.raises(DataError, match="not whole rows of 6 finite numbers"):
        PartQuery(vectors, 1).search(MODEL)
    with pytest.raises(DataError, match="no label vectors"):
        PartQuery.of(QUERIES, 1).search(None)


class Served:
    """A service in a thread."""

    def __init__(self, run: Path) -> None:
        from longtail.serve.app import create_app
        from longtail.serve.settings import Settings

        app = create_app(Settings((run,), api_key="secret"))
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()), daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "run"
    fit(small("frugal", blend=(1.0, 0.0)), board(200)).save(folder)
    return folder


@pytest.fixture
def services(run: Path) -> Iterator[list[Served]]:
    started = [Served(run) for _ in range(2)]
    yield started
    for one in started:
        one.stop()


def test_answers_are_those_of_one_process(run: Path, services: list[Served], monkeypatch: Any) -> None:
    plain = Index.load(run)
    expected = plain.predict(TEXTS, 3)
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in services)
    monkeypatch.setenv("LONGTAIL_STORE", f"shards://:secret@{hosts}")
    index = Index.load(run)
    assert isinstance(index._vectors.store, ShardStore) and index.describe()["index"]["search"] == "shards"
    found = index.predict(TEXTS, 3)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    assert index.predict(TEXTS[:1], 3).labels.tolist() == expected.labels[:1].tolist()
    store, query = index._vectors.store, plain._vectors.store.take(np.array([4]))[0]
    assert store.search_within(query, 2, np.array([9, 4, 1]))[0][0] == 4
    assert store.search_within(query, 5000)[0][0] == 4  # deeper than a service is asked
    assert len(store.search(np.zeros((0, store.dim), np.float32), 2)[0]) == 0
    services[1].stop()
    with pytest.raises(StoreDown, match="a shard does not answer"):
        index.predict(TEXTS, 3)
    monkeypatch.setenv("LONGTAIL_STORE", f"shards://:secret@127.0.0.1:{services[0].port}")
    np.testing.assert_array_equal(Index.load(run).predict(TEXTS, 3).labels, expected.labels)


def test_what_is_wrong_is_told(run: Path, services: list[Served], tmp_path: Path) -> None:
    fit(small("frugal", blend=(1.0, 0.0), seed=1), board(200)).save(tmp_path / "other")
    here = f"127.0.0.1:{services[0].port}"
    other = Index.load(tmp_path / "other").model
    from longtail.folder import read_config

    with pytest.raises(StoreDown, match="no model with this hash"):
        open_store(tmp_path, other, read_config(tmp_path / "other"), f"shards://:secret@{here}")
    with pytest.raises(DataError, match="API key"):
        open_store(run, Index.load(run).model, read_config(run), f"shards://:wrong@{here}")
    for address in ("shards://", "shards://,", "shards://host:port", "shards://a,,b"):
        with pytest.raises(DataError, match="no hosts in the address"):
            place_of(address, {"files": {}})


@pytest.mark.parametrize(
    "answer",
    [
        "no JSON", "[]", "{}", '{"labels": [[101]], "scores": [[1.0]]}', '{"labels": [[-1]], "scores": [[1.0]]}',
        '{"labels": [[1]], "scores": [[NaN]]}', '{"labels": [[1, 2]], "scores": [[1.0]]}',
        '{"labels": [1], "scores": [1.0]}', '{"labels": [["x"]], "scores": [[1.0]]}',
        '{"labels": [[9e99]], "scores": [[1.0]]}', '{"labels": [[0.7]], "scores": [[1.0]]}', "[" * 100_000,
        '{"labels": [[1], [2]], "scores": [[1.0], [1.0]]}', '{"labels": [[]], "scores": [[]]}',
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_refused(answer: str) -> None:
    class Liar(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = ShardsPlace(f"shards://127.0.0.1:{server.server_port}", "hash")
        with pytest.raises(DataError, match="did not answer with labels of this model"):
            place.open(MODEL)
        server.shutdown()


def test_an_answer_has_labels_of_its_part_each_once() -> None:
    asked, scores = PartQuery.of(QUERIES[:1], 2, part=1, parts=2), np.zeros((1, 2), np.float32)
    assert asked.fits(np.array([[50, 100]]), scores, 1, 101)
    for labels in ([[49, 60]], [[50, 101]], [[60, 60]]):
        assert not asked.fits(np.array(labels), scores, 1, 101)
