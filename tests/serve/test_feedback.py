from __future__ import annotations

import json
import os
import threading

import pytest
from serve.conftest import ANIMALS
from serve.double import Double

from longtail.errors import DataError
from longtail.serve import feedback as module
from longtail.serve.feedback import Feedback

JUDGED = {"text": "my red cat", "label": 0, "good": True}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_judgements_are_appended(start, tmp_path):
    path = tmp_path / "feedback.jsonl"
    client = start(Double("animals", ANIMALS), feedback=path)
    assert client.get("/v1/model").json()["feedback"] is True
    assert client.post("/v1/feedback", json=JUDGED).json() == {"status": "noted"}
    client.post("/v1/feedback", json=JUDGED | {"label": 1, "good": False, "model": "animals", "text": "naïve\n😺"})
    first, second = lines(path)
    assert first.pop("time")
    assert first == {"text": "my red cat", "label": "red cat", "label_id": 0, "good": True, "model": "animals"}
    assert (second["text"], second["label"], second["good"]) == ("naïve\n😺", "old dog", False)
    assert path.stat().st_mode & 0o077 == 0


def test_nothing_is_kept_without_a_file(start):
    client = start(Double("animals", ANIMALS))
    assert client.get("/v1/model").json()["feedback"] is False
    answer = client.post("/v1/feedback", json=JUDGED)
    assert answer.status_code == 404 and "--feedback FILE" in answer.json()["detail"]


def test_only_those_who_may_change_labels_judge(start, tmp_path):
    path = tmp_path / "feedback.jsonl"
    client = start(Double("animals", ANIMALS), feedback=path, api_key="secret")
    assert client.post("/v1/feedback", json=JUDGED).status_code == 401
    key = {"X-API-Key": "secret"}
    assert client.post("/v1/feedback", json=JUDGED, headers=key | {"Origin": "http://evil.example"}).status_code == 403
    assert client.post("/v1/feedback", content=json.dumps(JUDGED), headers=key).status_code == 415
    for wrong, status in (
        ({"label": 99}, 404), ({"model": "none"}, 404), ({"good": 1}, 422), ({"text": "x" * 20_001}, 422),
        ({"text": "\x00"}, 422), ({"more": 1}, 422),
    ):  # fmt: skip
        assert client.post("/v1/feedback", json=JUDGED | wrong, headers=key).status_code == status, wrong
    assert path.read_text() == ""
    assert client.post("/v1/feedback", json=JUDGED, headers=key).status_code == 200
    assert len(lines(path)) == 1


def test_the_file_is_bounded_and_a_cut_line_is_left_alone(start, tmp_path, monkeypatch):
    path = tmp_path / "feedback.jsonl"
    path.write_text('{"text": "cut sho')
    client = start(Double("animals", ANIMALS), feedback=path)
    assert client.post("/v1/feedback", json=JUDGED).status_code == 200
    cut, whole = path.read_text().splitlines()
    assert (cut, json.loads(whole)["text"]) == ('{"text": "cut sho', "my red cat")
    monkeypatch.setattr(module, "LARGEST", path.stat().st_size + 50)
    before = path.read_bytes()
    assert client.post("/v1/feedback", json=JUDGED).status_code == 507
    assert path.read_bytes() == before


def test_a_line_that_does_not_fit_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "feedback.jsonl"
    feedback = Feedback(path)
    feedback.note("a", {"id": 0, "text": "cat", "raw_id": "c"}, "m", good=True)
    before = path.read_bytes()
    assert b'"raw_id": "c"' in before
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(OSError, match="no space"):
        feedback.note("b", {"id": 0, "text": "cat"}, "m", good=True)
    assert path.read_bytes() == before


def test_lines_of_several_writers_do_not_mix(tmp_path):
    path = tmp_path / "feedback.jsonl"
    writers = [Feedback(path), Feedback(path)]

    def work(writer):
        for _ in range(10):
            writer.note("x" * 9000, {"id": 0, "text": "cat"}, "m", good=True)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in writers * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(line["text"]) for line in lines(path)] == [9000] * 40


def test_only_regular_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path / "pipe", "regular file"), (tmp_path, "cannot be written")):
        with pytest.raises(DataError, match=words):
            Feedback(path)
