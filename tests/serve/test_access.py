"""Who may query and who may change labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from serve.conftest import ANIMALS, until
from serve.double import Double

from longtail.errors import DataError
from longtail.serve.messages import HTTPError, only_header
from longtail.serve.settings import Settings

NEW = {"labels": [{"text": "blue bird"}]}
ASK = {"texts": ["cat"]}


def test_only_loopback_may_go_without_a_key():
    run = (Path("run"),)
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert Settings(run, host=host).loopback
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org", ""):
        with pytest.raises(DataError, match="--api-key"):
            Settings(run, host=host)
        Settings(run, host=host, api_key="secret")
        Settings(run, host=host, insecure=True)
    with pytest.raises(DataError, match="empty"):
        Settings(run, api_key=" ")
    assert "secret" not in repr(Settings(run, api_key="secret"))


def test_the_key_is_needed_for_everything_below_v1(start):
    client = start(Double("animals", ANIMALS), api_key="säcret")
    requests = [
        ("POST", "/v1/predict", ASK),
        ("POST", "/v1/labels", NEW),
        ("DELETE", "/v1/labels/0", None),
        ("GET", "/v1/model", None),
        ("POST", "/v1/explain", {"text": "cat", "label": 0}),
    ]
    right = "säcret".encode()
    for method, path, body in requests:
        for wrong in ({}, {"X-API-Key": "secret"}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer"}):
            refused = client.request(method, path, json=body, headers=wrong)
            assert refused.status_code == 401, (path, wrong)
            assert refused.headers["www-authenticate"] == "Bearer"
        for good in ({b"X-API-Key": right}, {b"Authorization": b"Bearer " + right}):
            assert client.request(method, path, json=body, headers=good).status_code == 200, (path, good)
    for path in ("/", "/healthz", "/readyz"):
        assert client.get(path).status_code == 200
    for path in ("/metrics", "/openapi.json"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={b"X-API-Key": right}).status_code == 200


def test_numbers_and_description_can_be_public(start):
    client = start(Double("animals", ANIMALS), api_key="secret", public=True)
    assert client.get("/metrics").status_code == client.get("/openapi.json").status_code == 200
    assert client.get("/v1/model").status_code == 401


def test_other_web_pages_cannot_change_labels(start):
    client = start(Double("animals", ANIMALS))
    forged = client.post("/v1/labels", content=b'{"labels": [{"text": "x"}]}', headers={"Content-Type": "text/plain"})
    assert forged.status_code == 415
    assert client.post("/v1/labels", json=NEW, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.delete("/v1/labels/0", headers={"Origin": "null"}).status_code == 403
    assert client.post("/v1/labels", json=NEW, headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/v1/labels").json()["count"] == len(ANIMALS)
    own = str(client.base_url).rstrip("/")
    assert client.post("/v1/labels", json=NEW, headers={"Origin": own}).status_code == 200


def test_with_a_key_the_host_may_have_a_name(start):
    client = start(Double("animals", ANIMALS), api_key="secret")
    headers = {"Host": "labels.example", "X-API-Key": "secret"}
    assert client.post("/v1/labels", json=NEW, headers=headers).status_code == 200


def test_names_that_lead_to_loopback_are_refused_everywhere(start):
    client = start(Double("animals", ANIMALS))
    for method, path, body in (
        ("POST", "/v1/predict", ASK), ("GET", "/v1/labels", None), ("GET", "/v1/model", None),
        ("POST", "/v1/explain", {"text": "cat", "label": 0}), ("GET", "/metrics", None), ("GET", "/openapi.json", None),
    ):  # fmt: skip
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
            assert client.request(method, path, json=body, headers={"Host": host}).status_code == 403, (path, host)
        for host in ("localhost:8000", "127.0.0.1", "[::1]:80"):
            assert client.request(method, path, json=body, headers={"Host": host}).status_code == 200, (path, host)


def test_two_hosts_or_two_origins_are_refused(start):
    client = start(Double("animals", ANIMALS))
    own = str(client.base_url).rstrip("/")
    both = [("Origin", own), ("Origin", "http://evil.example")]
    assert client.post("/v1/labels", json=NEW, headers=both).status_code == 400
    assert client.post("/v1/labels", json=NEW, headers=both[::-1]).status_code == 400
    with pytest.raises(HTTPError, match="several headers are called host"):
        only_header({"headers": [(b"host", b"localhost"), (b"host", b"evil.example")]}, b"host")
    assert client.get("/v1/labels").json()["count"] == len(ANIMALS)


def test_the_access_log_has_a_line_for_each_request_and_no_text(start, tmp_path):
    client = start(Double("animals", ANIMALS), access_log=tmp_path / "log.jsonl")
    client.post("/v1/predict", json={"texts": ["a secret cat"]})
    client.get("/v1/labels", params={"text": "secret"})
    client.get("/nowhere/secret")
    until(lambda: len((tmp_path / "log.jsonl").read_text().splitlines()) == 3)  # an answer may come before its line
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/v1/predict", 200), ("GET", "/v1/labels", 200), ("GET", "other", 404),
    ]  # fmt: skip
    assert lines[0]["milliseconds"] > 0 and lines[0]["bytes"] > 0 and lines[0]["client"]
    assert "secret" not in (tmp_path / "log.jsonl").read_text()


def test_the_access_log_has_texts_where_that_is_asked_for(start, tmp_path):
    client = start(Double("animals", ANIMALS), access_log=tmp_path / "log.jsonl", log_texts=True, api_key="hidden")
    key = {"x-api-key": "hidden"}
    client.post("/v1/predict", json={"texts": ["a secret cat"]}, headers=key)
    client.get("/v1/labels", params={"text": "secret"}, headers=key)
    client.post("/v1/predict", json={"texts": ["x" * 100_000]}, headers=key)
    until(lambda: len((tmp_path / "log.jsonl").read_text().splitlines()) == 3)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert json.loads(lines[0]["body"]) == {"texts": ["a secret cat"]} and lines[1]["query"] == "text=secret"
    assert len(lines[2]["body"]) == 64 * 2**10 and "hidden" not in (tmp_path / "log.jsonl").read_text()
    with pytest.raises(DataError, match="--access-log"):
        Settings((tmp_path,), log_texts=True)
