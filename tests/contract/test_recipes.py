"""What every recipe keeps to, on a data set that takes a second."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from contract.empty import gets_none_when_empty
from small import (
    FROM_TEXTS,
    NEED_TEXTS,
    SMALL,
    TRAINED,
    UNTRAINED,
    WEIGHTS,
    board,
    loops_of,
    networks,
    same,
    short,
    small,
)

import longtail as lt
from longtail.data.dataset import from_rows
from longtail.errors import DataError, RecipeError
from longtail.model import Model
from longtail.recipe import RECIPES, augmentations, find_recipe
from longtail.types import label_matrix

TEXTS = ["word3 filler1", "", "unseen words only", "WORD7", "word3 word4"]
BAGS = ["frugal", "astec", "decaf", "eclare", "siamesexml", "depsl", "unidec", "knn", "linear"]
pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")  # bit-equal


@pytest.fixture(scope="module")
def fitted():
    """Fit each recipe once, when it is asked for."""
    models: dict[str, Model] = {}

    def model(name: str) -> Model:
        if name not in models:
            models[name] = lt.fit(small(name), board())
        return models[name]

    return model


@pytest.fixture(scope="module")
def plain():
    """Fit each recipe once without augmentations, for its label vectors."""
    fitted = {}

    def rows(name: str):
        if name not in fitted:
            model = lt.fit(replace(short(name), augment=()), board(200))
            fitted[name] = model.vectors.store.take(slice(None))
        return fitted[name]

    return rows


def test_the_table_has_every_recipe():
    assert set(SMALL) == set(RECIPES) - WEIGHTS


@pytest.mark.parametrize("name", SMALL)
def test_a_simple_rule_is_learnt(name, fitted):
    assert lt.evaluate(fitted(name), board()).values["P@1"] >= 90


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_scores(name):
    train = board(100)
    one, two, other = (lt.fit(replace(short(name), seed=seed), train) for seed in (0, 0, 1)) if name in TRAINED else (
        lt.fit(name, train), lt.fit(name, train), None
    )  # fmt: skip
    first, second = one.predict(TEXTS, 5), two.predict(TEXTS, 5)
    assert np.array_equal(first.labels, second.labels)
    assert np.array_equal(first.scores, second.scores)
    if other is not None:
        assert same(one, two)
        assert not same(one, other)


@pytest.mark.parametrize("name", SMALL)
def test_a_model_comes_back_from_its_folder(name, fitted, tmp_path):
    fitted(name).save(tmp_path / "run")
    top, expected = Model.load(tmp_path / "run").predict(TEXTS, 4), fitted(name).predict(TEXTS, 4)
    assert np.array_equal(top.labels, expected.labels)
    assert np.array_equal(top.scores, expected.scores)


def test_bags_need_no_torch_to_predict(fitted, tmp_path):
    for name in BAGS:
        fitted(name).save(tmp_path / name)
    code = f"""if True:
        import sys, json, pathlib
        from longtail.model import Model
        for name in {BAGS!r}:
            top = Model.load(pathlib.Path({str(tmp_path)!r}) / name).predict({TEXTS!r}, 4)
            print(json.dumps([name, top.labels.tolist(), "torch" in sys.modules]))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers == [[name, fitted(name).predict(TEXTS, 4).labels.tolist(), False] for name in BAGS]


@pytest.mark.parametrize("name", SMALL)
def test_any_text_is_answered(name, fitted):
    top = fitted(name).predict(TEXTS, 3)
    assert top.labels.shape == (len(TEXTS), 3)
    assert np.isfinite(top.scores[top.labels >= 0]).all()
    assert top.labels[0, 0] in (3, 21)
    assert fitted(name).predict([], 3).labels.shape == (0, 3)
    assert fitted(name).predict(TEXTS[:1], 99).labels.shape == (1, 30)


@pytest.mark.parametrize("name", SMALL)
def test_empty_texts_get_no_labels(fitted, name, tmp_path):
    gets_none_when_empty(fitted(name), "word3 filler1", tmp_path / "run")


@pytest.mark.parametrize("name", SMALL)
def test_one_label_and_empty_texts(name):
    """Batches that hold nothing but an empty text, and a choice of one."""
    texts = ["", "red", "", "old dog", "!!", "", "", "cat"]
    train = from_rows({"train": (texts, [[0], [0], [], [0], [0], [], [0], [0]])}, label_texts=["cat"]).train
    recipe = find_recipe(name) if name in UNTRAINED else short(name, training__batch_size=2)
    top = lt.fit(recipe, train).predict(["old cat", ""], 3)
    assert top.labels.shape == (2, 1)
    assert top.labels[0, 0] == 0


@pytest.mark.parametrize("name", SMALL)
def test_labels_without_texts(name):
    recipe = replace(small(name), augment=())
    if name in NEED_TEXTS:
        with pytest.raises(DataError, match="labels of this data set have no texts") as refused:
            lt.fit(recipe, board(named=False))
        assert "label file" in str(refused.value)
        return
    model = lt.fit(recipe, board(named=False))
    assert lt.evaluate(model, board(named=False)).values["P@1"] >= 80
    with pytest.raises(DataError, match="labels of this data set have no texts"):
        lt.fit(find_recipe(f"{name}+gandalf"), board(named=False))


@pytest.mark.parametrize("name", TRAINED)
def test_soft_targets_are_weaker_than_hard_ones(name):
    train = board()
    values = np.where(train.targets.indices < 20, 1.0, 0.5).astype(np.float32)
    soft = sp.csr_array((values, train.targets.indices, train.targets.indptr), shape=train.targets.shape)
    model = lt.fit(replace(small(name, lexical=None), augment=()), replace(train, targets=soft))
    best = model.predict(train.texts, 2).labels
    kinds = train.targets.indices[::2]
    assert (best[:, 0] < 20).mean() >= 0.8
    assert (best == 20 + kinds[:, None] // 2).any(axis=1).mean() > 0.3  # but they are positives


@pytest.mark.parametrize("name", TRAINED)
def test_nothing_is_learnt_from_excluded_pairs(name):
    train = board(200)
    point = np.flatnonzero(train.targets[:, [29]].toarray().ravel() == 0)[:1]
    pairs = label_matrix(np.arange(len(train) + 1), np.full(len(train), 29), train.targets.shape)
    changes: dict[str, dict[str, Any]] = {key: {"sampler__random": 500} for key in ("frugal", "astec", "siamesexml")}
    every = {"sampler__top": 8, "sampler__max_candidates": 99}
    changes |= dict.fromkeys(("inceptionxml_plus", "decaf", "eclare", "inceptionxml_lf", "lightxml"), every)
    changes |= {key: {"sampler__random": 500} for key in ("depsl", "dpr", "ance", "dexml")}
    changes |= {"ngame": {"sampler__random": 500, "loss__margin": 2.0, "loss__negatives": 99}}
    changes |= {"unidec": {"sampler__random": 500, "objectives__1__sampler__random": 500}}
    recipe = replace(short(name, **changes.get(name, {})), augment=())
    moved = []
    for data in (train, replace(train, excluded=pairs)):
        network = networks(recipe, data)["training"]
        network.dense.eval()  # one point is too few for batch norms
        network.loss(point, np.random.default_rng(0), 1.0).backward()
        moved.append(sum(moves_of(network, 29)))
        mined = getattr(network.terms[0].sampler, "mined", None)
        assert (mined is not None) == (name in ("astec", "siamesexml"))
        if mined is not None and data is not train:
            assert 29 not in mined.indices
    assert moved[0] > 0
    assert moved[1] == 0


def moves_of(network, label: int) -> list[float]:
    """Measure the gradient of a label's row in each table of rows; without any, that of the word which only it has."""
    places = {name: label for name in network.tables if name.startswith("rows")}
    places = places or {"words": network.fit.words.vocabulary.tolist().index(f"name{label}")}
    gradients = {name: network.tables[name].gradient() for name in places}
    return [float(gradient[rows == places[name]].abs().sum()) for name, (rows, gradient) in gradients.items()]


@pytest.mark.parametrize("added", ["gandalf", "labelmix", "mixup", "manifoldmixup", "labelmixup", "synonyms"])
@pytest.mark.parametrize("name", TRAINED)
def test_every_augmentation_goes_with_every_recipe(name, added, plain):
    assert added in augmentations()
    train, recipe = board(200), replace(short(name), augment=())
    part = find_recipe(f"{name}+{added}").augment[-1]
    if added == "synonyms":
        part = part.override("min_cosine", 0.1)  # words of chance have no nearer neighbours
    mixed = lt.fit(replace(recipe, augment=(part,)), train)
    rows = mixed.vectors.store.take(slice(None))
    assert np.isfinite(rows).all()
    assert not np.array_equal(rows, plain(name))
    assert mixed.recipe.augment[0].part == added
    assert lt.fit(replace(recipe, augment=(part, part)), train).vectors is not None  # and with itself


@pytest.mark.parametrize("added", ["mixup", "manifoldmixup", "labelmixup", "synonyms"])
def test_what_acts_on_batches_needs_a_training(added):
    with pytest.raises(RecipeError, match="trains on none"):
        lt.fit(f"knn+{added}", board(50))


class Stop(Exception):
    pass


def stopped(recipe, train, scratch, stage, step):
    """Train until a step of a stage, and once more to the end."""

    def watch(name, done, _total):
        if name.startswith(stage) and done == step:
            raise Stop

    with pytest.raises(Stop):
        lt.fit(recipe, train, scratch=scratch, progress=watch)
    return lt.fit(recipe, train, scratch=scratch)


def saving(recipe):
    """Let every stage save after each step."""
    for path in loops_of(recipe):
        recipe = recipe.override(f"{path}.save_seconds", 0)
    return recipe


RESUMED = {
    "frugal": (short("frugal", training__save_seconds=0), ["training"]),
    "frugal that mines": (
        short("frugal", training__save_seconds=0, training__epochs=3, sampler__refresh=1, sampler__hard=3),
        ["training"],
    ),
    "frugal with patience": (
        short(
            "frugal", training__save_seconds=0, training__epochs=6, training__patience=1, training__learning_rate=0.2
        ),
        ["training"],
    ),
    "frugal with similar batches": (
        short("frugal", training__save_seconds=0, training__order="similar", training__order__group=8), ["training"]
    ),
    "frugal with batches of similar vectors": (
        saving(
            short("frugal", training__epochs=4, training__batch_size=64).override(
                "training.order", {"part": "similar", "by": "vectors", "refresh": 3, "group": 16, "double_every": 1}
            )
        ),
        ["training"],
    ),
    "depsl": (
        saving(
            short("depsl+labelmix", training__epochs=4, training__order__refresh=3, sampler__refresh=3, sampler__hard=2)
        ),
        ["training"],
    ),
    "unidec": (saving(short("unidec", training__order__refresh=2)), ["training"]),
    "frugal in bf16": (short("frugal", training__save_seconds=0, training__precision="bf16-mixed"), ["training"]),
    "astec": (
        saving(short("astec", rerank="rerank").override("rerank.training.epochs", 2)),
        ["surrogate", "training", "rerank"],
    ),
    "decaf": (saving(short("decaf+labelmix")), ["surrogate", "level", "training"]),
    "eclare": (saving(short("eclare+gandalf")), ["surrogate", "level", "training"]),
    "siamesexml": (saving(short("siamesexml+synonyms", augment__0__min_cosine=0.1)), ["siamese", "training"]),
    "inceptionxml_lf": (saving(short("inceptionxml_lf+mixup")), ["phase", "training"]),
    "inceptionxml in Astec's pipeline": (
        saving(
            short("inceptionxml", sampler="near", surrogate="surrogate")
            .override("surrogate.num_clusters", 8).override("surrogate.training.epochs", 2)
            .override("surrogate.training.batch_size", 128)
        ),
        ["surrogate", "training"],
    ),
    "inceptionxml": (short("inceptionxml+mixup", training__save_seconds=0), ["training"]),
    "inceptionxml_plus": (short("inceptionxml_plus+labelmix", training__save_seconds=0), ["training"]),
    "xmlcnn": (short("xmlcnn+synonyms", training__save_seconds=0, training__optimizer="adagrad"), ["training"]),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "decaf")) for name in RESUMED])
def test_a_run_stopped_anywhere_ends_with_the_same_weights(name, tmp_path):
    train = board(200)
    recipe, stages = RESUMED[name]
    seen: dict[str, int] = {}
    unbroken = lt.fit(recipe, train, progress=lambda stage, done, _total: seen.update({stage.partition(",")[0]: done}))
    assert list(seen) == stages
    for stage in stages:
        for step in sorted({1, seen[stage] // 2 + 1, seen[stage]}):
            resumed = stopped(recipe, train, tmp_path / f"{stage}{step}", stage, step)
            assert same(resumed, unbroken), (stage, step)


@pytest.mark.parametrize("name", ["frugal", "xmlcnn", "inceptionxml_plus", *FROM_TEXTS])
def test_bfloat16_learns_too(name):
    model = lt.fit(small(name, training__precision="bf16-mixed", lexical=None), board())
    assert lt.evaluate(model, board()).values["P@1"] >= 90
    assert all(array.dtype != np.float16 for array in model.vectors.arrays().values())


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
@pytest.mark.parametrize("loss", ["bce", "bce_mean", "chunked_bce", "decoupled", "supcon", "sum_of", "triplet"])
def test_every_loss_learns_with_every_optimizer(loss, optimizer):
    changes = {"loss": loss, "training__optimizer": optimizer, "classifier__bias": "bce" in loss}
    changes |= {"classifier__scale": 1.0} if loss == "triplet" else {}
    rate = 0.3 if optimizer == "adagrad" else 0.05
    recipe = small(lexical=None, augment=[], training__learning_rate=rate, training__epochs=15, **changes)
    assert lt.evaluate(lt.fit(recipe, board()), board()).values["P@1"] >= 95
