"""Who may query and who may change labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from serve.conftest import ANIMALS
from serve.double import Double

from longtail.errors import DataError
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
    for path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert client.get(path).status_code == 200


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
