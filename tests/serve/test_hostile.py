"""Bad input gets a 4xx with a message, and the service goes on."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve.conftest import ANIMALS
from serve.double import Double

from longtail.serve.settings import Limits

PREDICT = "/v1/predict"
BAD = {
    "empty": b"",
    "not JSON": b"texts=cat",
    "not UTF-8": b'{"texts": ["\xff\xfe"]}',
    "cut off": b'{"texts": ["cat"',
    "a list": b'["cat"]',
    "null": b"null",
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"texts":' * 50_000,
    "deep inside": b'{"texts": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "lone surrogate": b'{"texts": ["\\ud800"]}',
    "surrogates in the wrong order": b'{"texts": ["\\udc00\\ud800"]}',
    "surrogate in a name": b'{"texts": ["cat"], "\\ud800": 1}',
    "NUL": b'{"texts": ["a\\u0000b"]}',
    "escape": b'{"texts": ["\\u001b[31m"]}',
    "raw control character": b'{"texts": ["a\x01b"]}',
    "NaN threshold": b'{"texts": ["cat"], "threshold": NaN}',
    "infinite threshold": b'{"texts": ["cat"], "threshold": 1e999}',
    "k NaN": b'{"texts": ["cat"], "k": NaN}',
    "k 0": b'{"texts": ["cat"], "k": 0}',
    "k negative": b'{"texts": ["cat"], "k": -1}',
    "k too large": b'{"texts": ["cat"], "k": 1001}',
    "k huge": b'{"texts": ["cat"], "k": ' + b"9" * 5000 + b"}",
    "k a text": b'{"texts": ["cat"], "k": "5"}',
    "k a truth": b'{"texts": ["cat"], "k": true}',
    "k a fraction": b'{"texts": ["cat"], "k": 2.5}',
    "unknown field": b'{"texts": ["cat"], "limit": 5}',
    "no texts": b"{}",
    "texts empty": b'{"texts": []}',
    "texts a text": b'{"texts": "cat"}',
    "text a number": b'{"texts": [1]}',
    "text null": b'{"texts": [null]}',
    "ids too few": b'{"texts": ["a", "b"], "ids": [1]}',
    "id an object": b'{"texts": ["a"], "ids": [{}]}',
    "id beyond 64 bits": b'{"texts": ["a"], "ids": [99999999999999999999]}',
    "label negative": b'{"texts": ["a"], "deny": [-1]}',
    "100,000 words": json.dumps({"texts": ["word " * 100_000]}).encode(),
    "too many texts": json.dumps({"texts": ["a"] * 1001}).encode(),
}


def check_alive(client):
    answer = client.post(PREDICT, json={"texts": ["fox"]}).json()
    assert answer["predictions"][0]["labels"][0]["text"] == "wild fox"


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_bad_bodies_are_refused_with_a_message(client, body):
    for path in (PREDICT, "/v1/explain", "/v1/labels"):
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, (path, answer.text)
        assert 5 < len(answer.json()["detail"]) < 500
    check_alive(client)


@pytest.mark.parametrize(
    "text", ["", "  ", "\u202e\u200b", "\U0001f98a", "a\tb\nc\r\n", "<script>", "' OR 1=1", "%s%n", "x" * 20_000]
)
def test_odd_texts_are_answered(client, text):
    assert client.post(PREDICT, json={"texts": [text]}).status_code == 200


@pytest.mark.parametrize("text", ["", " ", "\u00a0", "two\nlines", "a\u2028b", "\x7f", "x" * 1001])
def test_labels_are_one_line_with_something_in_it(client, text):
    assert client.post("/v1/labels", json={"labels": [{"text": text}]}).status_code == 422
    assert client.get("/v1/labels").json()["count"] == len(ANIMALS)


QUERIES = [
    "limit=0",
    "limit=x",
    "limit=1001",
    "limit=²",
    "offset=-1",
    "limit=1&limit=2",
    "nope=1",
    "text=%ff",
    "text=%00",
]
QUERIES += ["text=" + "x" * 1001, "limit=" + "1" * 5000, "&" * 500 + "a=b"]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query[:20])
def test_bad_queries_are_refused(client, query):
    assert client.get(f"/v1/labels?{query}").status_code == 422


@pytest.mark.parametrize("label", ["-1", "x", "1.0", "%00", "²", "9" * 30, "2147483648"])
def test_bad_labels_in_the_path_are_not_found(client, label):
    assert client.get(f"/v1/labels/{label}").status_code == 404


def test_a_body_of_10_mb_is_413_before_it_is_read(client):
    body = b'{"texts": ["' + b"x" * 10_000_000 + b'"]}'
    for path in (PREDICT, "/v1/explain", "/v1/labels"):
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert "2,097,152 bytes" in answer.json()["detail"]
    check_alive(client)


def test_a_body_without_a_length_is_cut_off_too(client):
    def pieces():
        for _ in range(100):
            yield b" " * 100_000

    assert client.post(PREDICT, content=pieces()).status_code == 413
    assert client.post(PREDICT, content=iter([b'{"texts": ', b'["fox"]}'])).status_code == 200
    check_alive(client)


def exchange(client, *pieces: bytes, wait: float = 5) -> bytes:
    """Send raw bytes and read until the service closes or says nothing more."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=wait) as connection:
        received = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
        with suppress(TimeoutError, ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
        return received


def test_lengths_that_lie(start):
    client = start(Double("animals", ANIMALS), limits=Limits(timeout=0.3))
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"
    too_long = exchange(client, head + b"Content-Length: 99999999999999999999\r\n\r\nabc", wait=1)
    assert b" 4" in too_long.split(b"\r\n")[0]
    began = time.monotonic()
    late = exchange(client, head + b"Content-Length: 100\r\n\r\nabc", wait=3)
    assert late.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began < 2
    assert b" 400 " in exchange(client, head + b"Content-Length: -5\r\n\r\n", wait=1).split(b"\r\n")[0]
    assert b" 400 " in exchange(client, b"\x16\x03\x01 what\r\n\r\n", wait=1).split(b"\r\n")[0]
    check_alive(client)


def test_headers_have_an_end_and_a_time(start, monkeypatch):
    monkeypatch.setattr("longtail.serve.wire.HEADER_TIMEOUT", 0.3)
    client = start(Double("animals", ANIMALS))
    endless = exchange(
        client, b"GET /healthz HTTP/1.1\r\nHost: a\r\n", *(b"X-%d: " % n + b"x" * 9000 + b"\r\n" for n in range(20))
    )
    assert endless.startswith(b"HTTP/1.1 431")
    for start_of_request in (b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: a\r\n"):
        began = time.monotonic()
        assert exchange(client, start_of_request) == b""
        assert time.monotonic() - began < 3
    check_alive(client)


def test_a_client_that_hangs_up_harms_nobody(client):
    for body in (b"", b'{"texts": ["fox"]}'):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
            connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18\r\n\r\n" + body)
    check_alive(client)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
fields = st.sampled_from(
    ["texts", "ids", "k", "threshold", "allow", "deny", "model", "details", "label", "labels", "text"]
)


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from([PREDICT, "/v1/explain", "/v1/labels/undo"]), body=st.dictionaries(fields, anything) | anything
)
def test_no_json_makes_an_error_of_the_service(client, path, body):
    content = json.dumps(body).encode()  # lone surrogates become escapes, NaN stays NaN
    answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 404, 409, 422), answer.text


@settings(max_examples=150, deadline=None)
@given(body=st.binary(max_size=200))
def test_no_bytes_make_an_error_of_the_service(client, body):
    assert client.post(PREDICT, content=body).status_code == 422
