"""The loop and its stages: early stopping, frozen tables, what is refused, and a run that is killed."""

from __future__ import annotations

import json
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
from longtail.cli import main
from longtail.errors import DataError, RecipeError, ResourceError
from longtail.model import Model
from longtail.parts import Query
from longtail.recipe import find_recipe
from longtail.records import overridden
from longtail.training.loop import Loop
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
        ("astec", {"surrogate__objective__over": "labels"}, "surrogate.objective.over=clusters"),
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


def test_a_finished_stage_keeps_its_values_and_forgets_the_rest():
    trained = networks(short("astec"), board(100), run=True)
    for network in trained.values():
        assert all(table.state == [] and table.gathered == [] for table in network.tables.values())
        assert network.tables["words"].values.abs().sum() > 0


@pytest.mark.parametrize("freeze", [True, False])
def test_word_vectors_stay_as_the_surrogate_left_them_if_they_are_frozen(freeze):
    trained = networks(short("astec", surrogate__freeze=freeze), board(), run=True)
    one, two = (trained[name].tables["words"] for name in ("surrogate", "training"))
    assert torch.equal(one.values, two.values) == freeze
    assert two.frozen == freeze
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
    settings = {
        "encoder.dim": 16, "training.epochs": 12, "training.batch_size": 8, "training.save_seconds": 0.1,
        "training.min_steps": 0, "augment": [], "lexical": None, "linear": None,
    }  # fmt: skip
    flags = [part for path, value in settings.items() for part in ("--set", f"{path}={json.dumps(value)}")]

    recipe = find_recipe("frugal")
    for path, value in settings.items():
        recipe = recipe.override(path, value)
    whole = lt.fit(recipe, lt.load(data).train)

    broken, checkpoint = tmp_path / "broken", tmp_path / "broken.unfinished" / "training.safetensors"
    arguments = ["longtail", "train", "frugal", "--data", str(data), "--out", str(broken), *flags]
    call = (
        "import sys, torch; torch.set_num_threads(1); from longtail.cli import main; sys.argv[0] = 'longtail'; main()"
    )
    child = subprocess.Popen([sys.executable, "-c", call, *arguments[1:]], stderr=subprocess.DEVNULL)
    while child.poll() is None and not checkpoint.exists():
        time.sleep(0.02)
    assert child.poll() is None, "it must be killed before it ends"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert checkpoint.exists() and not broken.exists(), "a half-written model must not be there"
    done = []
    with pytest.raises(Stop):  # it continues, and is stopped once more
        lt.fit(
            recipe, lt.load(data).train, scratch=checkpoint.parent,
            progress=lambda name, step, total: done.append(step) or stop_at(total - 5)(name, step, total),
        )  # fmt: skip
    assert done[0] > 1
    before = signal.getsignal(signal.SIGTERM)
    with patch.object(sys, "argv", arguments), pytest.raises(SystemExit) as ended:
        main()
    signal.signal(signal.SIGTERM, before)
    assert not ended.value.code and not checkpoint.exists()
    assert same(Model.load(broken), whole)


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ([("training.epochs", 2)], 2),
        ([("training.epochs", 2), ("training.min_steps", 12)], 3),
        ([("training.min_steps", 12), ("training.epochs", 2)], 3),  # whatever the order
        ([("training.min_steps", 12)], 5),  # the recipe's own epochs are more
    ],
)
def test_so_many_epochs_are_trained_as_were_asked_for_and_what_was_done_is_kept(settings, epochs, tmp_path):
    recipe = find_recipe("frugal").override("lexical", None).override("linear", None).override("augment", [])
    recipe = overridden(recipe.override("encoder.dim", 16), [("training.batch_size", 100), *settings])
    model = lt.fit(recipe, board())
    assert [(stage.stage, stage.epochs, stage.steps) for stage in model.done] == [("training", epochs, 4 * epochs)]
    model.save(tmp_path / "run")
    assert Model.load(tmp_path / "run").done == model.done
    assert f"| training | {epochs} | {4 * epochs} | 100 |" in (tmp_path / "run" / "README.md").read_text()
    assert str(model.done[0]) == f"training: {epochs} epochs, {4 * epochs} steps of 100"


def test_what_a_stopped_or_continued_stage_did_is_kept_too(tmp_path):
    recipe = short("frugal", training__epochs=30, training__patience=1, training__learning_rate=0.2, augment=[])
    first = lt.fit(recipe, board(), scratch=tmp_path)
    again = lt.fit(recipe, board(), scratch=tmp_path)  # every stage is done already
    assert first.done == again.done
    assert 1 <= first.done[0].epochs < 30
    assert first.done[0].steps % first.done[0].epochs == 0
    both = lt.fit(short("astec", ensemble=2), board(100)).done
    assert [(stage.stage, stage.member) for stage in both] == [
        ("surrogate", 0), ("training", 0), ("surrogate", 1), ("training", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path", "schedule"), [("frugal", "decay_every", "step"), ("astec", "warmup", "cosine")]
)
def test_a_setting_that_could_change_nothing_is_refused(name, path, schedule):
    with pytest.raises(RecipeError, match=f"{path} = 0.35 changes nothing with the schedule"):
        overridden(find_recipe(name), [(f"training.{path}", 0.35)])
    settings = [(f"training.{path}", 0.35), ("training.schedule", schedule)]
    assert overridden(find_recipe(name), settings).stages[-1].fields()[path] == 0.35


@pytest.mark.parametrize("setting", ["patience", "curves"])
def test_what_needs_held_out_points_is_refused_where_there_are_none(setting):
    with pytest.raises(RecipeError, match="19 training points are too few"):
        lt.fit(short("frugal", augment=[], **{f"training__{setting}": 1 if setting == "patience" else True}), board(19))
