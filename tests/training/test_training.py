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
from longtail.training import stages
from longtail.training.logs import FIXED, MEASURED, Log
from longtail.training.loop import Loop, rate_factor
from longtail.training.settings import Training

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
        lt.fit(recipe.override("training.rate", 0.5), board(), scratch=tmp_path)
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
    with pytest.raises(ResourceError, match=r"at step \d+ of \d+ .* training\.rate="):
        lt.fit(short("frugal", training__rate=1e30, classifier__cosine=False), board())


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("frugal", {"encoder": "pool"}, "encoder must be bag or inception or cnn"),
        ("frugal", {"shortlist": "near"}, "needs a surrogate stage"),
        ("frugal", {"shortlist": "meta"}, "classifier.text=null"),
        ("frugal", {"rerank": "rerank"}, "rerank=null"),
        ("xmlcnn", {"classifier__start": "points"}, "classifier.start=random"),
        ("frugal", {"training": None}, "training must be training"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(name, changes, message):
    with pytest.raises(RecipeError, match=message):
        lt.fit(short(name, **changes), board(50))


def test_early_stopping_goes_back_to_the_best_weights():
    network = networks(short("astec"), board())["training"]
    settings = Training(epochs=9, batch=128, patience=2)
    values, seen = iter([1.0, 3.0, 2.0, 2.5, 9.0]), []

    def validate():
        seen.append({name: table.values.clone() for name, table in network.tables.items()})
        seen[-1] |= {name: value.clone() for name, value in network.dense.state_dict().items()}
        return {"P@1+3+5": next(values)}

    Loop(network, len(network.points.inputs), settings, seed=0).run(validate=validate)
    assert len(seen) == 4  # the best was the second, and two were no better
    held = {name: table.values for name, table in network.tables.items()} | network.dense.state_dict()
    assert all(torch.equal(held[name], seen[1][name]) for name in held)
    assert not torch.equal(seen[1]["labels"], seen[3]["labels"])


def lines_of(folder):
    with (folder / "log.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("name", ["astec", "inceptionxml_plus"])
def test_logs_and_curves(name, tmp_path):
    recipe = short(name, training__curves=True, training__tensorboard=True)
    lt.fit(recipe, board(), scratch=tmp_path)
    lines = lines_of(tmp_path)
    assert list(lines[0]) == FIXED + MEASURED
    assert [(line["stage"], line["epoch"]) for line in lines if line["stage"] == "training"] == [
        ("training", "1"),
        ("training", "2"),
    ]
    assert len(lines) == (4 if name == "astec" else 2)
    last = lines[-1]
    assert 0 <= float(last["P@1"]) <= 100
    assert bool(last["meta P@1"]) == (name == "inceptionxml_plus")
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
    found = [(line["stage"], line["epoch"]) for line in lines_of(tmp_path)]
    assert found == [("surrogate", "1"), ("surrogate", "2"), *(("training", str(epoch)) for epoch in range(1, 5))]


def test_nothing_is_logged_without_a_folder():
    with Log(None, "training", tensorboard=True) as log:
        log.note(1, 1, 0.5, 0.1, {})
    assert log.writer is None


def test_the_weight_of_augmented_points_is_chosen_on_held_out_points():
    asked = []

    def quality(_index, held):
        asked.append(len(held))
        return [0.0, 1.0, 0.5][len(asked) - 1]

    with patch.object(stages, "_quality", quality):
        network = networks(short("xmlcnn+gandalf", training__augmented="choose"), board())["training"]
    assert asked == [20] * 3  # 0.3, 0.6 and 1.0; none of them is told of the other points
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
        moved.append((network.tables["labels"].leaf.grad.clone(), network.dense.meta_rows.weight.grad.clone()))
    for one, quarter in zip(*moved, strict=True):
        torch.testing.assert_close(quarter, one / 4)


SHAPES = {
    "constant": lambda part: 1.0,
    "linear": lambda part: 1 - part,
    "cosine": lambda part: 0.5 * (1 + math.cos(math.pi * part)),
}


@pytest.mark.parametrize("schedule", SHAPES)
def test_schedules_rise_and_fall(schedule):
    settings, total = Training(schedule=schedule, warmup=0.2), 100
    found = [rate_factor(settings, step, total) for step in range(total)]
    np.testing.assert_allclose(found[:20], np.arange(1, 21) / 20)
    np.testing.assert_allclose(found[20:], [SHAPES[schedule](step / 80) for step in range(80)])


def test_one_cycle_is_that_of_torch():
    total = 1000
    mine = [rate_factor(Training(schedule="onecycle", warmup=0.3), step, total) for step in range(total)]
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
    found = [rate_factor(Training(schedule="step", halved=0.4), step, 10) for step in range(10)]
    assert found == [1] * 4 + [0.5] * 4 + [0.25] * 2


@pytest.mark.parametrize("freeze", [True, False])
def test_word_vectors_stay_as_the_surrogate_left_them_if_they_are_frozen(freeze):
    found = networks(short("astec", surrogate__freeze=freeze), board(), run=True)
    one, two = (found[name].tables["words"] for name in ("surrogate", "training"))
    assert torch.equal(one.values, two.values) == freeze
    assert bool(two.state) != freeze
    assert not torch.equal(
        found["training"].tables["labels"].values, networks(short("astec"), board())["training"].tables["labels"].values
    )


def test_what_is_near_moves_with_an_encoder_that_is_not_frozen():
    train = board()
    model = lt.fit(short("astec", surrogate__freeze=False), train)
    index = model.vectors
    encoded = index.encoding.encode(index.encoding.inputs(train.texts.tolist()))
    kept = index.guide.points
    lengths = np.linalg.norm(encoded, axis=1, keepdims=True)
    rows = [train.texts.tolist().index(text) for text in model_texts(model, train)]
    np.testing.assert_allclose(kept, (encoded / lengths)[rows], atol=1e-5)


def model_texts(model, train):
    """List the points that were trained on: those not held out."""
    kept, _ = train.divide(0.05, seed=model.recipe.seed, most=3000)
    return kept.texts.tolist()


@pytest.mark.parametrize("size", [1, 4, 7])
def test_batches_hold_groups_of_similar_points(size):
    similar = np.random.default_rng(0).permutation(50) if size > 1 else None
    loop = Loop(
        networks(short("xmlcnn"), board(50))["training"],
        50,
        Training(batch=20, clustered=size),
        seed=0,
        similar=similar,
    )
    one, two = loop._order(0), loop._order(1)
    assert sorted(one) == sorted(two) == list(range(50))
    assert one.tolist() != two.tolist()
    assert one.tolist() == loop._order(0).tolist()
    if similar is not None:
        place = np.argsort(similar)
        beside = np.diff(place[one]) % 50 == 1
        assert beside.mean() >= 1 - math.ceil(50 / size) / 49


def test_clustered_batches_bring_similar_texts_together():
    train = board()
    recipe = short("frugal", augment=[], training__clustered=8, training__epochs=1)
    found = {}
    real = Loop.__init__

    def record(self, *rest, **more):
        real(self, *rest, **more)
        found["loop"] = self

    with patch.object(Loop, "__init__", record):
        lt.fit(recipe, train)
    order = found["loop"]._order(0)
    kinds = train.targets.indices[::2]
    assert (np.diff(kinds[order]) == 0).mean() > 0.2  # 0.05 by chance


@pytest.mark.parametrize(("points", "sizes"), [(50, [49 + 1]), (99, [49, 50]), (98, [49, 49]), (30, [30])])
def test_no_point_is_alone_in_a_batch(points, sizes):
    recipe = short("inceptionxml", training__batch=49)
    network = networks(recipe, board(points))["training"]
    seen = []
    with patch.object(Loop, "_step", lambda _self, _fabric, some, *_: seen.append(some) or 1.0):
        Loop(network, points, Training(epochs=1, batch=49), seed=0).run()
    assert [len(some) for some in seen] == sizes
    assert sorted(np.concatenate(seen)) == list(range(points))
    lt.fit(recipe, board(points))


def test_batch_norms_need_two_points():
    for recipe, points in ((short("inceptionxml", training__batch=1), 50), (short("inceptionxml"), 1)):
        with pytest.raises(RecipeError, match="need two points"):
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
        "training.batch=8",
        "training.save_seconds=0.1",
        "training.least=0",
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
