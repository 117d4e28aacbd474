"""The OpenAPI document is true: schemathesis asks everything that it allows, and much that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from serve.conftest import ANIMALS
from serve.double import Double

from longtail.serve.app import create_app
from longtail.serve.settings import Settings

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]
app = create_app(Settings((Path("run"),)), indexes=(Double("animals", ANIMALS),)).app
EXAMPLES = 15 if settings.get_current_profile_name() == "quick" else 150  # conftest.py: without and with --slow
REFUSED = [400, 401, 403, 404, 405, 413, 415, 422]  # 413: a list that is too long may have too many bytes as well
# A schema cannot say that there are as many ids as texts, nor that no raw id is there already.
LOOSE = {"positive_data_acceptance": {"expected-statuses": ["2xx", 404, 422]}}
CONFIG = {
    "checks": {"negative_data_rejection": {"expected-statuses": REFUSED}},
    "operations": [{"include-name": name, "checks": LOOSE} for name in ("POST /v1/predict", "POST /v1/labels")],
}
schema = schemathesis.openapi.from_dict(app.openapi(), config=schemathesis.Config.from_dict(CONFIG))


@pytest.fixture
def fresh(start, tmp_path):
    """A service of its own for each operation: the thousands of labels that one adds would slow the double down."""
    return start(Double("animals", ANIMALS), feedback=tmp_path / "feedback.jsonl")


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET)
def test_every_operation_keeps_its_word(case, fresh):
    case.call_and_validate(base_url=str(fresh.base_url))


def test_the_document_names_every_path(client):
    document = client.get("/openapi.json").json()
    assert {(path, method) for path, item in document["paths"].items() for method in item} == {
        ("/v1/predict", "post"),
        ("/v1/explain", "post"),
        ("/v1/nearest", "post"),
        ("/v1/labels", "get"),
        ("/v1/labels", "post"),
        ("/v1/labels", "delete"),
        ("/v1/labels/undo", "post"),
        ("/v1/labels/{label}", "get"),
        ("/v1/labels/{label}", "delete"),
        ("/v1/feedback", "post"),
        ("/v1/model", "get"),
        ("/healthz", "get"),
        ("/readyz", "get"),
    }
    request = document["components"]["schemas"]["PredictRequest"]
    assert {"texts", "ids", "k"} <= set(request["properties"])
    assert request["required"] == ["texts"]


def test_the_document_says_which_fields_go_together(client):
    jsonschema = pytest.importorskip("jsonschema")
    document = client.get("/openapi.json").json()
    add, predict = (
        jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **document})
        for name in ("AddRequest", "PredictRequest")
    )
    with_id, without = {"text": "a", "raw_id": "1"}, {"text": "b"}
    for labels, valid in (
        ([with_id], True), ([without], True), ([{**without, "raw_id": None}, without], True),
        ([with_id, without], False),
    ):  # fmt: skip
        assert add.is_valid({"labels": labels}) == valid, labels
    for fields, valid in (
        ({}, True), ({"ids": None}, True), ({"ids": [1]}, True), ({"ids": []}, False), ({"threshold": 0.5}, True),
        ({"decide": "bins"}, True), ({"decide": "bins", "threshold": None}, True),
        ({"decide": "bins", "threshold": 0.5}, False),
    ):  # fmt: skip
        assert predict.is_valid({"texts": ["a"], **fields}) == valid, fields
        answer = client.post("/v1/predict", json={"texts": ["a"], **fields})
        assert valid or answer.status_code == 422
