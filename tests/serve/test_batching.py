"""Requests are batched; too many are refused, late ones time out, accepted ones are finished."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from serve.conftest import ANIMALS, running, until
from serve.double import Double

from longtail.serve.settings import Limits


@pytest.fixture
def gated():
    """An index whose predictions wait for a gate."""
    index = Double("animals", ANIMALS)
    index.gate = threading.Event()
    yield index
    index.gate.set()


def ask(client, *texts, **more):
    return client.post("/v1/predict", json={"texts": list(texts), **more})


def waiting(client):
    return client.app.batcher._texts


def test_waiting_requests_are_predicted_together(start, gated):
    client = start(gated)
    with ThreadPoolExecutor(30) as pool:
        first = pool.submit(ask, client, "fox")
        until(lambda: gated.calls)
        others = [pool.submit(ask, client, animal) for animal in ANIMALS * 4]
        until(lambda: waiting(client) == 20)
        gated.gate.set()
        best = [done.result().json()["predictions"][0]["labels"][0]["text"] for done in others]
    assert first.result().status_code == 200
    assert best == ANIMALS * 4
    assert gated.calls == [1, 20]


def test_different_options_are_not_mixed(start, gated):
    client = start(gated)
    with ThreadPoolExecutor(10) as pool:
        pool.submit(ask, client, "fox")
        until(lambda: gated.calls)
        some = [pool.submit(ask, client, "cat dog", k=k) for k in (1, 2, 1, 2)]
        until(lambda: waiting(client) == 4)
        gated.gate.set()
        sizes = [len(done.result().json()["predictions"][0]["labels"]) for done in some]
    assert sizes == [1, 2, 1, 2]
    assert gated.calls == [1, 2, 2]


def test_a_long_request_goes_in_pieces_and_lets_others_in(start, gated):
    client = start(gated, limits=Limits(batch_size=10))
    order = []
    with ThreadPoolExecutor(3) as pool:

        def timed(name, *texts):
            answer = ask(client, *texts)
            order.append(name)
            return answer

        long = pool.submit(timed, "long", *(ANIMALS[place % 5] for place in range(95)))
        until(lambda: gated.calls)
        short = pool.submit(timed, "short", "fox")
        until(lambda: waiting(client) == 86)
        gated.gate.set()
        predicted = [prediction["labels"][0]["text"] for prediction in long.result().json()["predictions"]]
        short.result()
    assert predicted == [ANIMALS[place % 5] for place in range(95)]
    assert order == ["short", "long"]
    assert max(gated.calls) == 10
    assert waiting(client) == 0


def test_a_full_queue_says_429_and_when_to_come_back(start, gated):
    client = start(gated, limits=Limits(waiting=10, batch_size=4))
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(ask, client, "fox")
        until(lambda: gated.calls)
        second = pool.submit(ask, client, *["cat"] * 10)
        until(lambda: waiting(client) == 10)
        refused = ask(client, "dog")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "ask again" in refused.json()["detail"]
        gated.gate.set()
        assert first.result().status_code == second.result().status_code == 200
    assert ask(client, "dog").status_code == 200
    assert 'status="429"' in client.get("/metrics").text


def test_other_questions_have_a_queue_too(start, gated):
    client = start(gated, limits=Limits(calls=2))
    with ThreadPoolExecutor(5) as pool:
        pool.submit(ask, client, "fox")
        until(lambda: gated.calls)
        two = [pool.submit(client.get, "/v1/model") for _ in range(2)]
        until(lambda: client.app.batcher._calls == 2)
        assert client.get("/v1/model").status_code == 429
        assert client.get("/healthz").status_code == 200
        gated.gate.set()
        assert [done.result().status_code for done in two] == [200, 200]


def test_late_requests_are_given_up_and_changes_nobody_waits_for_are_not_made(start, gated):
    client = start(gated, limits=Limits(timeout=0.2))
    with ThreadPoolExecutor(5) as pool:
        slow = pool.submit(ask, client, "fox")
        until(lambda: gated.calls)
        queued = pool.submit(ask, client, "cat", "dog")
        change = pool.submit(client.post, "/v1/labels", json={"labels": [{"text": "late label"}]})
        assert [done.result().status_code for done in (slow, queued, change)] == [504, 504, 504]
        gated.gate.set()
    assert ask(client, "fox").status_code == 200
    assert waiting(client) == 0
    assert gated.calls == [1, 1]
    assert client.get("/v1/labels").json()["count"] == len(ANIMALS)


def test_one_bad_text_spoils_no_other_request(start, gated):
    client = start(gated)
    with ThreadPoolExecutor(5) as pool:
        pool.submit(ask, client, "fox")
        until(lambda: gated.calls)
        three = [pool.submit(ask, client, text) for text in ("cat", "explode", "dog")]
        until(lambda: waiting(client) == 3)
        gated.gate.set()
        assert [done.result().status_code for done in three] == [200, 500, 200]
    assert waiting(client) == 0


def test_a_stop_finishes_what_was_accepted(gated):
    def alone(address, text):
        return httpx.post(f"{address}/v1/predict", json={"texts": [text]}, timeout=20)

    with ThreadPoolExecutor(5) as pool:
        with running(gated) as client:
            address = str(client.base_url).rstrip("/")
            some = [pool.submit(alone, address, "fox")]
            until(lambda: gated.calls)
            some += [pool.submit(alone, address, animal) for animal in ANIMALS[:3]]
            until(lambda: waiting(client) == 3)
            threading.Timer(0.5, gated.gate.set).start()
        assert [done.result().status_code for done in some] == [200] * 4
