"""What the paths of the service answer."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest
from serve.conftest import ANIMALS, FREQUENCIES
from serve.double import Double

from longtail.errors import ModelError
from longtail.serve.app import FILES, PAGE


def animals(name="animals"):
    return Double(name, ANIMALS, FREQUENCIES)


def predicted(client, text, **more):
    answer = client.post("/v1/predict", json={"texts": [text], **more})
    assert answer.status_code == 200, answer.text
    return [label["text"] for label in answer.json()["predictions"][0]["labels"]]


def test_predictions_have_the_promised_shape(client):
    answer = client.post("/v1/predict", json={"texts": ["a red dog", "fox", "nothing"], "ids": ["x", 2, "z"], "k": 2})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "predictions": [
            {
                "id": "x",
                "labels": [{"id": 0, "text": "red cat", "score": 0.5}, {"id": 1, "text": "old dog", "score": 0.5}],
            },
            {"id": 2, "labels": [{"id": 2, "text": "wild fox", "score": 0.5}]},
            {"id": "z", "labels": []},
        ]
    }


def test_without_ids_the_place_is_the_id_and_k_is_5(client):
    answer = client.post("/v1/predict", json={"texts": ["old red wild small brown cat dog fox mouse", "fox"]}).json()
    assert [prediction["id"] for prediction in answer["predictions"]] == [0, 1]
    assert len(answer["predictions"][0]["labels"]) == 5


def test_details_return_frequency_and_bin(client):
    labels = client.post("/v1/predict", json={"texts": ["red cat"], "details": True, "k": 1}).json()
    assert labels["predictions"][0]["labels"] == [
        {"id": 0, "text": "red cat", "score": 1.0, "frequency": 9, "bin": "head"}
    ]


def test_threshold_allow_and_deny(client):
    assert predicted(client, "red dog cat", threshold=0.9) == ["red cat"]
    assert predicted(client, "red dog cat", decide="bins:0.9") == ["red cat"]
    for wrong in ({"decide": "bins", "threshold": 0.5}, {"decide": "bin"}, {"decide": "bins:2"}):
        assert client.post("/v1/predict", json={"texts": ["red dog cat"], **wrong}).status_code == 422
    assert predicted(client, "red dog cat", allow=[1]) == ["old dog"]
    assert "red cat" not in predicted(client, "red dog cat", deny=[0])
    assert client.post("/v1/predict", json={"texts": ["a"], "deny": [99]}).status_code == 404


def test_k_may_be_more_than_there_are_labels(client):
    assert len(predicted(client, "red old wild small cat dog fox mouse", k=1000)) == 5


def test_labels_are_listed_searched_and_described(client):
    assert client.get("/v1/labels", params={"limit": 2, "offset": 1}).json() == {
        "labels": [
            {"id": 1, "text": "old dog", "frequency": 5, "bin": "torso"},
            {"id": 2, "text": "wild fox", "frequency": 3, "bin": "tail"},
        ],
        "count": 5,
    }
    assert [label["id"] for label in client.get("/v1/labels", params={"text": "dog"}).json()["labels"]] == [1, 4]
    assert [label["id"] for label in client.get("/v1/labels?text=dog&offset=1").json()["labels"]] == [4]
    about = client.get("/v1/labels/4").json()
    assert about["text"] == "cat and dog"
    assert about["bin"] == "tail"
    assert len(about["neighbours"]) == 3
    assert about["examples"]
    assert client.get("/v1/labels/5").status_code == 404


def test_explain(client):
    answer = client.post("/v1/explain", json={"text": "the old dog", "label": 1})
    assert [word["word"] for word in answer.json()["words"]] == ["dog", "old"]
    assert client.post("/v1/explain", json={"text": "x", "label": 5}).status_code == 404


def test_model_health_and_numbers(client):
    about = client.get("/v1/model").json()
    assert about["models"] == ["animals"]
    assert about["metrics"] == {"P@1": 0.5}
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    predicted(client, "cat")
    numbers = client.get("/metrics").text
    assert 'longtail_requests_total{path="/v1/predict",status="200"}' in numbers
    assert 'longtail_labels{model="animals"} 5.0' in numbers
    assert "longtail_batch_texts_bucket" in numbers


def test_labels_are_added_queried_at_once_removed_and_brought_back(start):
    client = start(animals())
    added = client.post("/v1/labels", json={"labels": [{"text": " blue bird "}, {"text": "grey wolf"}]})
    assert added.json() == {
        "labels": [
            {"id": 5, "text": "blue bird", "frequency": 0, "bin": "tail"},
            {"id": 6, "text": "grey wolf", "frequency": 0, "bin": "tail"},
        ],
        "count": 7,
    }
    assert predicted(client, "a blue bird") == ["blue bird"]
    assert 'longtail_labels{model="animals"} 7.0' in client.get("/metrics").text
    assert client.request("DELETE", "/v1/labels", json={"labels": [5, {"id": 6}]}).status_code == 200
    assert predicted(client, "a blue bird and a wolf") == ["cat and dog"]
    assert client.post("/v1/labels/undo", json={}).status_code == 200
    assert predicted(client, "a grey wolf") == ["grey wolf"]
    assert client.delete("/v1/labels/5").json()["count"] == 6
    listed = client.get("/v1/labels", params={"offset": 4}).json()
    assert ([entry["id"] for entry in listed["labels"]], listed["count"]) == ([4, 6], 6)
    assert predicted(client, "a blue bird") == []
    for _ in range(2):
        client.post("/v1/labels/undo", json={})
    nothing = client.post("/v1/labels/undo", json={})
    assert (nothing.status_code, nothing.json()["detail"]) == (409, "there is no change to take back")
    assert client.request("DELETE", "/v1/labels", json={"labels": [5]}).status_code == 404


def test_two_models_side_by_side(start):
    client = start(animals("plain"), Double("other", ["green tree"]))
    assert client.get("/v1/model").json()["models"] == ["plain", "other"]
    assert predicted(client, "tree") == []
    assert predicted(client, "tree", model="other") == ["green tree"]
    assert client.get("/v1/model", params={"model": "other"}).json()["labels"] == 1
    unknown = client.post("/v1/predict", json={"texts": ["a"], "model": "none"})
    assert unknown.status_code == 404
    assert "plain, other" in unknown.json()["detail"]


def test_models_of_the_same_name_get_different_ones(start):
    assert start(animals(), animals()).get("/v1/model").json()["models"] == ["animals", "run1"]


def test_an_unforeseen_error_is_500_without_its_details_and_spoils_no_other(start):
    client = start(animals())
    answer = client.post("/v1/predict", json={"texts": ["explode"]})
    assert answer.status_code == 500
    assert "boom" not in answer.text
    assert predicted(client, "fox") == ["wild fox"]


def test_a_full_disk_is_507_and_changes_nothing(start):
    index = animals()

    def add(texts, ids=None):
        raise OSError(errno.ENOSPC, "No space left on device")

    index.add = add
    client = start(index)
    full = client.post("/v1/labels", json={"labels": [{"text": "blue bird"}]})
    assert (full.status_code, "nothing was changed" in full.json()["detail"]) == (507, True)
    assert predicted(client, "fox") == ["wild fox"]


def test_labels_that_another_process_changed_are_taken_over(start):
    index = animals()
    client = start(index)
    new = len(ANIMALS)

    def refresh():
        if len(index.labels) == new:
            index.add(["green parrot"])
        return True

    assert client.post("/v1/predict", json={"texts": ["parrot"], "allow": [new]}).status_code == 404
    index.refresh = refresh
    assert predicted(client, "parrot", allow=[new]) == ["green parrot"]
    assert predicted(client, "parrot") == ["green parrot"]
    assert client.post("/v1/predict", json={"texts": ["parrot"], "deny": [new + 1]}).status_code == 404


def test_a_model_that_turns_out_damaged_is_not_ready_and_answers_nothing(start):
    index = animals()
    client = start(index)
    assert client.get("/readyz").status_code == 200
    index.damage = ModelError("weights.safetensors: changed since it was written; copy the folder again")

    def predict(*_, **__):
        raise index.damage

    index.predict = predict
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    answer = client.post("/v1/predict", json={"texts": ["cat"]})
    assert answer.status_code == 503 and "weights" not in answer.text


def test_probabilities_are_returned_or_refused(start):
    index = animals()
    client = start(index)
    answer = client.post("/v1/predict", json={"texts": ["cat"], "probabilities": True})
    assert answer.status_code == 422 and "not probabilities" in answer.json()["detail"]
    seen = []
    plain = index.predict
    index.predict = lambda *args, probabilities, **more: (seen.append(probabilities), plain(*args, **more))[1]
    for wanted in (True, False):
        assert client.post("/v1/predict", json={"texts": ["cat"], "probabilities": wanted}).status_code == 200
    assert seen == [True, False]


def test_long_paths_are_refused(client):
    for path in ("/v1/labels/" + "9" * 5000, "/" + "x" * 300):
        for method in ("GET", "DELETE"):
            answer = client.request(method, path)
            assert answer.status_code == 414 and answer.json()["detail"]


def test_paths_and_methods_that_do_not_exist(client):
    assert client.get("/nothing").status_code == 404
    wrong = client.get("/v1/predict")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/v1/model", "/nothing"])
def test_headers_that_keep_a_browser_safe(client, path):
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_has_no_inline_code_and_nothing_from_elsewhere(client):
    for path in ("/", "/docs"):
        page = client.get(path).text
        assert "<script>" not in page
        assert "style=" not in page
        assert "onclick" not in page
    paths = [path for path in FILES if path.startswith("/page/")]
    assert len(paths) == len([*PAGE.iterdir()]) - 2  # the others are the two pages
    for path in ("/", "/docs", *paths):
        assert client.get(path).status_code == 200, path
        assert path == "/page/icon.svg" or "http" not in client.get(path).text.replace("http://www.w3.org", "")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert way not in client.get(path).text, (path, way)


def test_serving_imports_no_torch():
    code = "import sys, longtail.serve.run, longtail.serve.app; print({'torch', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
