"""The loop and its stages: early stopping, logs, schedules, frozen tables, and a run that is killed."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from small import board, networks, same, short, small

import longtail as lt
from longtail.errors import DataError, RecipeError, ResourceError
from longtail.files import read_arrays
from longtail.model import Model
from longtail.parts import Query
from longtail.scorers.clusters import ClusterRetriever
from longtail.training import orders
from longtail.training.logs import FIXED, Log
from longtail.training.loop import Loop, rate_factor
from longtail.training.orders import Shuffled, Similar
from longtail.training.settings import LoopSettings
from longtail.training.stages import training as stage

pytestmark = pytest.mark.usefixtures("one_thread")  # bit-equal


class Stop(Exception):
    pass


def stop_at(step):
    def watch(_name, done, _total):
        if done == step:
            raise Stop

    return watch


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    recipe = short("frugal", training__save_seconds=0)
    with pytest.raises(Stop):
        lt.fit(recipe, board(), scratch=tmp_path, progress=stop_at(3))
    with pytest.raises(DataError, match="other settings or data"):
        lt.fit(recipe.override("training.learning_rate", 0.5), board(), scratch=tmp_path)
    with pytest.raises(DataError, match="other settings or data"):
        lt.fit(recipe, board(300), scratch=tmp_path)


def test_a_finished_run_is_only_read(tmp_path):
    recipe = short("astec")
    one = lt.fit(recipe, board(), scratch=tmp_path)
    steps = []
    two = lt.fit(recipe, board(), scratch=tmp_path, progress=lambda *step: steps.append(step))
    assert same(one, two)
    assert steps == []


def test_a_loss_that_is_not_a_number_stops_with_advice():
    with pytest.raises(ResourceError, match=r"at step \d+ of \d+ .* training\.learning_rate="):
        lt.fit(short("frugal", training__learning_rate=1e30, classifier__cosine=False), board())


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("frugal", {"encoder": "batch_pool"}, "recipe.encoder.* instance of Encoder"),
        ("frugal", {"encoder": "none"}, "needs an encoder, objectives and stages; no encoder"),
        ("frugal", {"sampler": "near"}, "needs a surrogate stage"),
        ("frugal", {"sampler": "clusters"}, "needs an objective over clusters"),
        ("xmlcnn", {"classifier__init": "points"}, "classifier.init=random"),
        ("frugal", {"training": None}, "needs an encoder, objectives and stages; no stages"),
        ("inceptionxml_plus", {"sampler": "all_labels"}, "over clusters needs a sampler that makes them"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(name, changes, message):
    with pytest.raises(RecipeError, match=message):
        lt.fit(short(name, **changes), board(50))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("least", "min_steps"), ("batch", "batch_size"), ("rate", "learning_rate"), ("halved", "decay_every"),
        ("dense_rate", "dense_learning_rate"), ("optimiser", "optimizer"), ("clustered", "order.group"),
    ],
)  # fmt: skip
def test_old_names_of_settings_are_refused_with_the_new_ones(old, new):
    for path in (f"training.{old}", f"surrogate.training.{old}"):
        with pytest.raises(RecipeError, match=f"now called {new}"):
            small("astec").override(path, 1)


@pytest.mark.parametrize("setting", ["patience", "curves", "augmented", "refit"])
def test_what_validation_points_decide_is_no_setting_of_a_stage_before_or_after(setting):
    recipe = small("astec", rerank="rerank")
    for path in (f"surrogate.training.{setting}", f"rerank.training.{setting}"):
        with pytest.raises(RecipeError, match=f"loop has no setting '{setting}'"):
            recipe.override(path, 1)


@pytest.mark.parametrize(
    "recipe",
    [
        short("inceptionxml_plus", classifier__text="sum"),
        short("frugal", rerank="rerank", rerank__training__epochs=2),
        short("inceptionxml_plus", rerank="rerank", rerank__training__epochs=2),
    ],
    ids=["clusters with label texts", "rerank a pool", "rerank clusters"],
)
def test_parts_go_together_that_did_not_before(recipe, tmp_path):
    model = lt.fit(recipe, board())
    model.save(tmp_path / "run")
    texts = board().texts.tolist()[:50]
    top, loaded = model.predict(texts, 5), Model.load(tmp_path / "run").predict(texts, 5)
    assert np.array_equal(top.labels, loaded.labels)
    assert np.array_equal(top.scores, loaded.scores)
    assert ("rerank.labels" in model.vectors.arrays()) == (recipe.stages[-1].part == "rerank")


def test_early_stopping_goes_back_to_the_best_weights():
    network = networks(short("astec"), board())["training"]
    settings = LoopSettings(epochs=9, batch_size=128)
    values, seen = iter([1.0, 3.0, 2.0, 2.5, 9.0]), []

    def validate():
        seen.append({name: table.values.clone() for name, table in network.tables.items()})
        seen[-1] |= {name: value.clone() for name, value in network.dense.state_dict().items()}
        return {"P@1+3+5": next(values)}

    Loop(network, settings, patience=2).run("training", validate=validate)
    assert len(seen) == 4  # the best was the second, and two were no better
    weights = {name: table.values for name, table in network.tables.items()} | network.dense.state_dict()
    assert all(torch.equal(weights[name], seen[1][name]) for name in weights)
    assert not torch.equal(seen[1]["rows0"], seen[3]["rows0"])


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
    with patch.object(ClusterRetriever, "metrics", lambda _self, vectors, targets: {"points seen": len(vectors)}):
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

    def metrics(self, vectors, targets):
        return real(self, vectors, targets) | {"recall of clusters": 50.0}

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


def test_the_weight_of_augmented_points_is_chosen_on_validation_points():
    sizes = []

    def quality(_scorer, validation):
        sizes.append(len(validation))
        return [0.0, 1.0, 0.5][len(sizes) - 1]

    with patch.object(stage, "quality", quality):
        network = networks(short("xmlcnn+gandalf", training__augmented="choose"), board())["training"]
    assert sizes == [20] * 3  # 0.3, 0.6 and 1.0; none of them is told of the other points
    weights = network.points.weights
    assert weights[:380].tolist() == [1.0] * 380
    np.testing.assert_allclose(weights[380:], 0.6)
    assert len(weights) == 410


def test_a_weight_of_augmented_points_scales_their_gradient():
    train = board(100)
    moved = []
    for weight in (1.0, 0.25):
        recipe = short("inceptionxml_plus+gandalf", training__augmented=weight)
        network = networks(recipe, train)["training"]
        network.dense.eval()
        network.loss(np.arange(100, 120), np.random.default_rng(0), 1.0).backward()
        _, of_rows = network.tables["rows0"].gradient()
        moved.append((of_rows.clone(), network.over("clusters").classifier.module.weight.grad.clone()))
    for one, quarter in zip(*moved, strict=True):
        torch.testing.assert_close(quarter, one / 4)


SHAPES = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}


@pytest.mark.parametrize("schedule", SHAPES)
def test_schedules_rise_and_fall(schedule):
    settings, total = LoopSettings(schedule=schedule, warmup=0.2), 100
    factors = [rate_factor(settings, step, total) for step in range(total)]
    np.testing.assert_allclose(factors[:20], np.arange(1, 21) / 20)
    np.testing.assert_allclose(factors[20:], [SHAPES[schedule](step / 80) for step in range(80)])


def test_one_cycle_is_that_of_torch():
    total = 1000
    mine = [rate_factor(LoopSettings(schedule="onecycle", warmup=0.3), step, total) for step in range(total)]
    adam = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        adam, max_lr=1.0, total_steps=total, pct_start=0.3, div_factor=10, final_div_factor=1e4
    )
    theirs = []
    for _ in range(total):
        theirs.append(cycle.get_last_lr()[0])
        adam.step()
        if len(theirs) < total:
            cycle.step()
    np.testing.assert_allclose(mine, theirs, atol=0.01)
    assert mine[0] == pytest.approx(0.1)


def test_steps_halve_again_and_again():
    factors = [rate_factor(LoopSettings(schedule="step", decay_every=0.4), step, 10) for step in range(10)]
    assert factors == [1] * 4 + [0.5] * 4 + [0.25] * 2


@pytest.mark.parametrize("freeze", [True, False])
def test_word_vectors_stay_as_the_surrogate_left_them_if_they_are_frozen(freeze):
    trained = networks(short("astec", surrogate__freeze=freeze), board(), run=True)
    one, two = (trained[name].tables["words"] for name in ("surrogate", "training"))
    assert torch.equal(one.values, two.values) == freeze
    assert bool(two.state) != freeze
    start = networks(short("astec"), board())["training"].tables["rows0"].values
    assert not torch.equal(trained["training"].tables["rows0"].values, start)


def test_what_is_near_moves_with_an_encoder_that_is_not_frozen():
    train = board()
    model = lt.fit(short("astec", surrogate__freeze=False), train)
    encoded = model.vectors.tower.encode(Query(train.texts.tolist()))
    kept = model.vectors.retriever.points
    lengths = np.linalg.norm(encoded, axis=1, keepdims=True)
    rows = [train.texts.tolist().index(text) for text in model_texts(model, train)]
    np.testing.assert_allclose(kept, (encoded / lengths)[rows], atol=1e-5)


def model_texts(model, train):
    """List the points that were trained on: all but the validation points."""
    kept, _ = train.divide(0.05, seed=model.recipe.seed, most=3000)
    return kept.texts.tolist()


@pytest.mark.parametrize("size", [1, 4, 7])
def test_batches_hold_groups_of_similar_points(size):
    place = np.random.default_rng(0).permutation(50)  # of each point, where similar ones stand side by side
    fit = networks(short("xmlcnn"), board(50))["training"].fit
    with patch.object(orders, "clusters", lambda *_, **__: place):
        order = (Similar(group=size) if size > 1 else Shuffled()).build(fit)
    one, two = (order(np.random.default_rng([0, 1, epoch])) for epoch in (0, 1))
    assert sorted(one) == sorted(two) == list(range(50))
    assert one.tolist() != two.tolist()
    assert one.tolist() == order(np.random.default_rng([0, 1, 0])).tolist()
    if size > 1:
        beside = np.diff(place[one]) % 50 == 1
        assert beside.mean() >= 1 - math.ceil(50 / size) / 49


@pytest.mark.parametrize("name", ["frugal", "xmlcnn"])
def test_similar_batches_bring_similar_texts_together(name):
    train = board()
    recipe = short(name, augment=[], training__order="similar", training__order__group=8, training__epochs=1)
    seen = []
    with patch.object(Loop, "_step", lambda _self, _fabric, rows, *_: seen.append(rows) or 1.0):
        lt.fit(recipe, train)
    assert [len(rows) for rows in seen] == [128, 128, 128, 16]
    kinds = train.targets.indices[::2]
    assert (np.diff(kinds[np.concatenate(seen)]) == 0).mean() > 0.2  # 0.05 by chance


@pytest.mark.parametrize(("points", "sizes"), [(50, [49 + 1]), (99, [49, 50]), (98, [49, 49]), (30, [30])])
def test_no_point_is_alone_in_a_batch(points, sizes):
    recipe = short("inceptionxml", training__batch_size=49)
    network = networks(recipe, board(points))["training"]
    seen = []
    with patch.object(Loop, "_step", lambda _self, _fabric, some, *_: seen.append(some) or 1.0):
        Loop(network, LoopSettings(epochs=1, batch_size=49)).run("training")
    assert [len(some) for some in seen] == sizes
    assert sorted(np.concatenate(seen)) == list(range(points))
    lt.fit(recipe, board(points))


def test_batch_norms_need_two_points():
    for recipe, points in ((short("inceptionxml", training__batch_size=1), 50), (short("inceptionxml"), 1)):
        with pytest.raises(RecipeError, match="need 2 points"):
            lt.fit(recipe, board(points))


def test_the_largest_seed_trains_and_a_larger_one_is_refused():
    lt.fit(replace(short("xmlcnn", training__epochs=1), seed=2**31 - 1), board(50))
    with pytest.raises(RecipeError, match="seed"):
        small().override("seed", 2**31)


def test_kill_9_in_the_middle_of_training(tmp_path):
    train, data = board(), tmp_path / "data"
    lt.write(lt.Dataset(train.labels, {"train": train}, "board"), data, "jsonl")
    settings = [
        "encoder.dim=16",
        "training.epochs=8",
        "training.batch_size=8",
        "training.save_seconds=0.1",
        "training.min_steps=0",
        "augment=[]",
        "lexical=null",
    ]
    flags = [part for setting in settings for part in ("--set", setting)]

    def command(out):
        call = "import torch; torch.set_num_threads(1); from longtail.cli import main; main()"
        return [sys.executable, "-c", call, "train", "frugal", "--data", str(data), "--out", str(out), *flags]

    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    broken = tmp_path / "broken"
    checkpoint = tmp_path / "broken.unfinished" / "training.safetensors"
    for _ in range(2):
        child = subprocess.Popen(command(broken), stderr=subprocess.DEVNULL)
        before = checkpoint.stat().st_mtime if checkpoint.exists() else 0
        while child.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime <= before):
            time.sleep(0.02)
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert not broken.exists(), "a half-written model must not be there"
    subprocess.run(command(broken), check=True, capture_output=True)
    assert not checkpoint.exists()
    one, two = (read_arrays(tmp_path / name / "weights.safetensors") for name in ("whole", "broken"))
    for name in one:
        assert np.array_equal(one[name], two[name]), name
