"""Training as a whole: it learns, it is repeatable, and a killed run ends where an unbroken one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import shared_data

import longtail as lt
from longtail.data.dataset import from_rows
from longtail.data.tokens import Words
from longtail.errors import DataError, RecipeError, ResourceError
from longtail.files import read_arrays
from longtail.recipe import find_recipe
from longtail.training.network import BagNetwork, plan_of
from longtail.types import label_matrix


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def board(points: int = 400):
    """Make points whose one word decides their labels; a bag must learn this without fail."""
    draw = np.random.default_rng(0)
    kinds = draw.integers(0, 20, points)
    texts = [f"word{kind} filler{draw.integers(0, 5)}" for kind in kinds]
    return from_rows(
        {"train": (texts, [[kind, 20 + kind // 2] for kind in kinds])}, label_texts=[f"name{i}" for i in range(30)]
    )


def small(**changes):
    recipe = find_recipe("frugal").override("encoder.dim", 32).override("training.epochs", 6)
    recipe = recipe.override("training.batch", 64).override("shortlist.random", 20)
    for path, value in changes.items():
        recipe = recipe.override(path.replace("__", "."), value)
    return recipe


@pytest.mark.parametrize("loss", ["decoupled", "bce"])
@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
def test_a_simple_rule_is_learnt(loss, optimiser):
    changes = {"loss": loss, "training__optimiser": optimiser, "classifier__bias": loss == "bce"}
    rate = 0.3 if optimiser == "adagrad" else 0.05
    model = lt.fit(small(lexical=None, augment=[], training__rate=rate, training__epochs=15, **changes), board().train)
    assert lt.evaluate(model, board().train).values["P@1"] == 100


def test_a_model_comes_back_without_torch(tmp_path):
    data = board()
    model = lt.fit(small(), data.train)
    model.save(tmp_path / "run")
    texts = ["word3 filler1", "", "unknown", "word7"]
    expected = model.predict(texts, 4)
    code = (
        "import sys, json; from longtail.model import Model;"
        f"top = Model.load({str(tmp_path / 'run')!r}).predict({texts!r}, 4);"
        "print(json.dumps([top.labels.tolist(), 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [expected.labels.tolist(), False]


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    data = board()
    one, two, other = (lt.fit(replace(small(), seed=seed), data.train).vectors for seed in (0, 0, 1))
    assert np.array_equal(one.labels, two.labels)
    assert not np.array_equal(one.labels, other.labels)


@pytest.mark.parametrize("loss", ["bce", "decoupled"])
def test_excluded_pairs_are_never_learnt_from(loss):
    data = board()
    labels, words = data.labels, Words.fit(data.train.texts, data.labels.texts)
    pairs = label_matrix(np.arange(len(data.train) + 1), np.full(len(data.train), 29), data.train.targets.shape)
    recipe = small(loss=loss, classifier__text=False, classifier__cosine=False, shortlist__random=500)
    point = np.flatnonzero(data.train.targets[:, [29]].toarray().ravel() == 0)[:1]
    moved = []
    for train in (data.train, replace(data.train, excluded=pairs)):
        network = BagNetwork(plan_of(recipe), words, train, words.bag(labels.texts), seed=0)
        network.loss(point, np.random.default_rng(0)).backward()
        table = network.tables["labels"]
        moved.append(float(table.leaf.grad[table.rows == 29].abs().sum()))
    assert moved[0] > 0
    assert moved[1] == 0


class Stop(Exception):
    pass


def test_a_run_stopped_anywhere_ends_with_the_same_weights(tmp_path):
    data, recipe = board(), small(training__save_seconds=0)
    unbroken = lt.fit(recipe, data.train).vectors
    for stop in (1, 7, 20):

        def step(_name, done, _total, stop=stop):
            if done == stop:
                raise Stop

        scratch = tmp_path / str(stop)
        with pytest.raises(Stop):
            lt.fit(recipe, data.train, scratch=scratch, progress=step)
        resumed = lt.fit(recipe, data.train, scratch=scratch).vectors
        assert np.array_equal(resumed.labels, unbroken.labels)
        assert np.array_equal(resumed.vectors, unbroken.vectors)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    data = board()

    def step(_name, done, _total):
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        lt.fit(small(training__save_seconds=0), data.train, scratch=tmp_path, progress=step)
    with pytest.raises(DataError, match="other settings or data"):
        lt.fit(small(training__save_seconds=0, training__rate=0.5), data.train, scratch=tmp_path)


def test_a_loss_that_is_not_a_number_stops_with_advice():
    with pytest.raises(ResourceError, match=r"training\.rate="):
        lt.fit(small(training__rate=1e30, classifier__cosine=False, lexical=None), board().train)


def test_recipes_that_do_not_fit_together_are_refused():
    with pytest.raises(RecipeError, match="encoder must be 'bag'"):
        lt.fit(small(encoder="pool"), board().train)
    with pytest.raises(RecipeError, match="mixes batches"):
        lt.fit("frugal+labelmix", board().train)


def test_kill_9_in_the_middle_of_training(tmp_path):
    data = shared_data("LF-MDNSeeAlsoTitles-6K")
    settings = ["encoder.dim=32", "training.epochs=4", "training.save_seconds=0.2", "shortlist.random=50"]
    flags = [part for setting in settings for part in ("--set", setting)]

    def command(out):
        call = "import torch; torch.set_num_threads(1); from longtail.cli import main; main()"
        return [sys.executable, "-c", call, "train", "frugal", "--data", str(data), "--out", str(out), *flags]

    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    broken = tmp_path / "broken"
    checkpoint = tmp_path / "broken.unfinished" / "checkpoint.safetensors"
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
