"""What log.csv says of a training: every epoch once, whatever was killed, and every metric a column."""

from __future__ import annotations

import csv
from unittest.mock import patch

import pytest
from small import board, networks, short

import longtail as lt
from longtail.scorers.clusters import ClusterRetriever
from longtail.training.logs import FIXED, Log
from longtail.training.loop import Loop
from longtail.training.settings import LoopSettings

pytestmark = pytest.mark.usefixtures("one_thread")  # bit-equal


class Stop(Exception):
    pass


def stop_at(step):
    def watch(_name, done, _total):
        if done == step:
            raise Stop

    return watch


def lines_of(folder):
    with (folder / "log.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("name", ["astec", "inceptionxml_plus"])
def test_logs_and_curves(name, tmp_path):
    recipe = short(name, training__curves=True, training__tensorboard=True)
    lt.fit(recipe, board(), scratch=tmp_path)
    lines = lines_of(tmp_path)
    clusters = ["meta P@1"] if name == "inceptionxml_plus" else []  # of its retriever
    assert list(lines[0]) == [*FIXED, "P@1+3+5", "P@1", *clusters]
    assert [(line["stage"], line["epoch"]) for line in lines if line["stage"] == "training"] == [
        ("training", "1"),
        ("training", "2"),
    ]
    assert len(lines) == (4 if name == "astec" else 2)
    last = lines[-1]
    assert 0 <= float(last["P@1"]) <= 100
    assert all(0 <= float(line[column]) <= 100 for line in lines[-2:] for column in clusters)
    assert all(line["P@1"] == "" for line in lines if line["stage"] == "surrogate")
    assert float(last["loss"]) < float(lines[-2]["loss"])
    assert list((tmp_path / "tensorboard" / "training").glob("events*"))


def test_a_log_has_each_epoch_once_whatever_was_killed(tmp_path):
    recipe = short("astec", training__epochs=4, training__save_seconds=1000)
    with pytest.raises(Stop):  # two epochs are noted, and no checkpoint of them is there
        lt.fit(
            recipe, board(), scratch=tmp_path, progress=lambda name, *_: stop_at(3)(name, int("epoch 3" in name) * 3, 0)
        )
    assert [line["epoch"] for line in lines_of(tmp_path)] == ["1", "2", "1", "2"]
    with (tmp_path / "log.csv").open("a") as torn:
        torn.write("training,3,")
    lt.fit(recipe, board(), scratch=tmp_path)
    epochs = [(line["stage"], line["epoch"]) for line in lines_of(tmp_path)]
    assert epochs == [("surrogate", "1"), ("surrogate", "2"), *(("training", str(epoch)) for epoch in range(1, 5))]


def test_any_metric_of_a_retriever_gets_a_column(tmp_path):
    with patch.object(ClusterRetriever, "metrics", lambda _self, query, _tower, targets: {"points seen": len(query)}):
        lt.fit(short("inceptionxml_plus", training__curves=True), board(), scratch=tmp_path)
    lines = lines_of(tmp_path)
    assert list(lines[0]) == [*FIXED, "P@1+3+5", "P@1", "points seen"]
    assert [line["points seen"] for line in lines] == ["20.00", "20.00"]  # validation points


@pytest.mark.parametrize("name", ["astec", "xmlcnn"])
def test_any_metric_of_a_validation_gets_a_column_when_it_first_comes(name, tmp_path):
    network = networks(short(name), board())["training"]
    network.fit = network.fit.changed(scratch=tmp_path)
    measured = iter([{}, {"MRR": 12.345}, {"MRR": 2.0, "a, b": 3.0}, {"a, b": 4.0}])
    Loop(network, LoopSettings(epochs=4, batch_size=128)).run("training", validate=lambda: next(measured))
    lines = lines_of(tmp_path)
    assert list(lines[0]) == [*FIXED, "MRR", "a, b"]
    assert [(line["MRR"], line["a, b"]) for line in lines] == [("", ""), ("12.35", ""), ("2.00", "3.00"), ("", "4.00")]
    assert [line["epoch"] for line in lines] == ["1", "2", "3", "4"]
    assert all(float(line["loss"]) > 0 and float(line["learning_rate"]) >= 0 for line in lines)


@pytest.mark.parametrize("step", [2, 6, 10])  # before anything is measured, at the end of an epoch, and within one
def test_the_log_of_a_resumed_run_is_that_of_an_unbroken_one(step, tmp_path):
    recipe = short("inceptionxml_plus", training__curves=True, training__epochs=4, training__save_seconds=0)
    real = ClusterRetriever.metrics

    def metrics(self, query, tower, targets):
        return real(self, query, tower, targets) | {"recall of clusters": 50.0}

    def columns(folder):
        # Times differ, and the loss of an epoch is the mean of the steps that this process made.
        left_out = ("time", "loss")
        return [{name: line[name] for name in line if name not in left_out} for line in lines_of(folder)]

    with patch.object(ClusterRetriever, "metrics", metrics):
        lt.fit(recipe, board(), scratch=tmp_path / "whole")
        with pytest.raises(Stop):
            lt.fit(recipe, board(), scratch=tmp_path / "broken", progress=stop_at(step))
        with (tmp_path / "broken" / "log.csv").open("a") as torn:
            torn.write("training,4,12,0.1,0.1,1.0,99")
        lt.fit(recipe, board(), scratch=tmp_path / "broken")
    assert columns(tmp_path / "broken") == columns(tmp_path / "whole")
    assert [line["epoch"] for line in columns(tmp_path / "broken")] == ["1", "2", "3", "4"]
    assert {line["recall of clusters"] for line in columns(tmp_path / "broken")} == {"50.00"}
    assert None not in lines_of(tmp_path / "broken")[-1]  # no line is longer than the header


def test_a_log_written_before_keeps_its_columns_and_the_lines_of_other_stages(tmp_path):
    with Log(tmp_path, "surrogate") as log:
        log.note(1, 5, 0.5, 0.1, {"purity": 70.0})
    with Log(tmp_path, "training") as log:
        log.note(1, 3, 0.4, 0.1, {"P@1": 10.0})
        log.note(2, 6, 0.3, 0.1, {"P@1": 20.0, "nDCG@5": 30.0})
    with Log(tmp_path, "training", done=3) as log:  # the second epoch is made again
        log.note(2, 6, 0.2, 0.1, {"P@1": 25.0})
    lines = lines_of(tmp_path)
    assert list(lines[0]) == [*FIXED, "purity", "P@1", "nDCG@5"]
    assert [[line[name] for name in ("stage", "step", "loss", "purity", "P@1", "nDCG@5")] for line in lines] == [
        ["surrogate", "5", "0.500000", "70.00", "", ""],
        ["training", "3", "0.400000", "", "10.00", ""],
        ["training", "6", "0.200000", "", "25.00", ""],
    ]


def test_nothing_is_logged_without_a_folder():
    with Log(None, "training", tensorboard=True) as log:
        log.note(1, 1, 0.5, 0.1, {})
    assert log.writer is None
