"""What stages hand on: vocabularies, short trial runs, the re-ranker's pool, and texts that are cut into words once."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from small import board, networks, short, small

import longtail as lt
from longtail.data import tokens
from longtail.data.dataset import Split, from_rows
from longtail.labels import calibration
from longtail.model import Model
from longtail.samplers.batch_pool import BatchPool, BuiltPool
from longtail.training.learn import SHORT
from longtail.training.loop import Loop
from longtail.training.stages.training import WEIGHTS

pytestmark = pytest.mark.usefixtures("one_thread")  # bit-equal


def own_words(points: int = 200) -> Split:
    """Make points of which each has a word of its own, so that fewer points have fewer words."""
    kinds = np.random.default_rng(0).integers(0, 20, points)
    texts = [f"word{kind} point{number}" for number, kind in enumerate(kinds)]
    names = [f"name{label}" for label in range(20)]
    return from_rows({"train": (texts, [[kind] for kind in kinds])}, label_texts=names).train


@pytest.mark.parametrize("name", ["xmlcnn", "inceptionxml"])
def test_a_refit_keeps_the_vocabulary_that_it_was_trained_with(name, tmp_path):
    train = own_words()
    recipe = small(name, lexical="lexical", training__refit=20_000, training__epochs=4)
    vocabularies = []
    real = Model.predict_split  # called between the choice and the refit

    def watch(self, *rest, **more):
        vocabularies.append(self.tokenizer.vocabulary.tolist())
        return real(self, *rest, **more)

    with patch.object(Model, "predict_split", watch):
        model = lt.fit(recipe, train)
    words = model.tokenizer.vocabulary.tolist()
    assert len(vocabularies[0]) < len(words)  # the words of validation points were not known before
    assert words == model.vectors.tower.words.vocabulary.tolist()
    assert {f"point{number}" for number in range(200)} <= set(words)
    model.save(tmp_path / "run")
    loaded = Model.load(tmp_path / "run")
    assert loaded.tokenizer.vocabulary.tolist() == words
    top, expected = loaded.predict(train.texts, 5), model.predict(train.texts, 5)
    assert np.array_equal(top.labels, expected.labels)
    assert np.array_equal(top.scores, expected.scores)


@pytest.mark.parametrize("min_steps", [0, 80])
def test_trial_runs_are_short_in_every_stage(min_steps):
    recipe = small("astec+gandalf", training__augmented="choose", rerank="rerank")
    for stage, epochs in (("surrogate.training", 8), ("training", 12), ("rerank.training", 4)):
        recipe = recipe.override(f"{stage}.epochs", epochs).override(f"{stage}.min_steps", min_steps)
        recipe = recipe.override(f"{stage}.batch_size", 128)
    steps: list[tuple[str, int]] = []
    real = Loop.run

    def record(self: Loop, name: str, **more) -> None:
        steps.append((name, self.total))
        real(self, name, **more)

    with patch.object(Loop, "run", record):
        lt.fit(recipe, board())
    each = 4  # 380 points and 30 labels, 128 a step
    whole = {"surrogate": 8 * each, "training": 12 * each, "rerank": 4 * each}
    trial = {name: round(SHORT * count) for name, count in whole.items()}
    if min_steps:  # of which a trial has a share too
        whole = {name: max(count, min_steps) for name, count in whole.items()}
        trial = {name: max(count, round(SHORT * min_steps)) for name, count in trial.items()}
    assert steps == [*trial.items()] * len(WEIGHTS) + [*whole.items()]


def test_the_pool_of_the_reranker_is_a_setting():
    recipe = short("astec", rerank="rerank", rerank__training__epochs=1, rerank__training__batch_size=64)
    assert recipe.stages[-1].sampler == BatchPool(random=200, hard=20)
    recipe = recipe.override("rerank.sampler.random", 7).override("rerank.sampler.hard", 3)
    drawn: list[tuple[BatchPool, int, int]] = []
    real = BuiltPool.labels

    def watch(self, targets, own, draw, mined=None):
        assert own is targets  # all positives
        labels = real(self, targets, own, draw, mined)
        fresh = np.setdiff1d(labels, targets.indices)
        drawn.append((self.settings, targets.shape[0], len(fresh)))
        return labels

    with patch.object(BuiltPool, "labels", watch):
        trained = networks(recipe, board(), run=True)
    settings = BatchPool(random=7, hard=3)
    sampler = trained["rerank"].terms[0].sampler
    assert sampler.settings == settings
    of_reranker = [(points, fresh) for used, points, fresh in drawn if used == settings]
    assert len(of_reranker) == 6  # 380 points, 64 a step
    assert {used for used, *_ in drawn} == {settings, trained["training"].terms[0].sampler.settings}
    assert trained["training"].terms[0].sampler.settings.random == 10  # that of the first network stays
    for points, fresh in of_reranker:
        assert fresh <= 7 + 3 * points
    # What it draws hard negatives from is what the first network found, without what is right.
    assert sampler.mined.nnz > 0
    assert sampler.mined.multiply(trained["rerank"].points.targets).nnz == 0


def test_another_sampler_may_stand_in_for_the_pool_of_the_reranker(tmp_path):
    recipe = short("astec", rerank="rerank", rerank__training__epochs=1, rerank__sampler="all_labels")
    model = lt.fit(recipe, board())
    model.save(tmp_path / "run")
    loaded = Model.load(tmp_path / "run")
    assert loaded.recipe.stages[-1].sampler.part == "all_labels"
    assert np.array_equal(loaded.predict(board().texts, 5).scores, model.predict(board().texts, 5).scores)


def cuts_of(recipe, train: Split) -> tuple[Model, dict[bool, Counter[str]]]:
    """Fit, and count how often each text is cut into words, and into pairs (True)."""
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    real = tokens.terms

    def count(text: str, *, pairs: bool = False) -> list[str]:
        counts[pairs][text] += 1
        return real(text, pairs=pairs)

    with patch.object(tokens, "terms", count):
        return lt.fit(recipe, train), counts


@pytest.mark.parametrize("name", ["astec", "astec+gandalf", "inceptionxml_plus", "xmlcnn", "knn"])
def test_texts_are_cut_into_words_once_whatever_asks_for_them(name):
    train = own_words()
    _, counts = cuts_of(name if name == "knn" else short(name), train)
    assert counts[False] == Counter([*train.texts, *train.labels.texts])
    assert not counts[True]


def test_frugal_cuts_texts_once_for_each_vocabulary():
    train = own_words()
    with patch.object(calibration, "text_trust", lambda _train: 1.0):  # it has a vocabulary of its own: see below
        model, counts = cuts_of(small("frugal"), train)
    # One vocabulary of words for everything: bags of points and label texts, the choice of lexical settings, the blend,
    # probabilities, the first training and the refit. The tree before cut a text up to nine times here.
    assert counts[False] == Counter([*train.texts, *train.labels.texts])
    # Whether pairs are better is tried once: on the points that are left, then on validation points. Gandalf makes a
    # label text a point too, but a text that stands there twice is cut once.
    assert model.recipe.voices[0].pairs is False
    assert counts[True] == Counter([*train.texts, *train.labels.texts])
    assert model.words.memo == []  # a fitted model does not carry the bags around


def test_pairs_are_cut_once_for_all_voices_and_both_fits():
    train = own_words()
    with patch.object(calibration, "text_trust", lambda _train: 1.0):
        model, counts = cuts_of(small("frugal", lexical__pairs=True), train)
    assert counts[False] == counts[True] == Counter([*train.texts, *train.labels.texts])
    pairs = model.lexical.words
    assert pairs.pairs and all(voice.words is pairs for voice, _ in model.scorer.voices)
    assert pairs.memo == model.words.memo == []


def test_a_calibration_cuts_what_it_compares_once():
    train = own_words()
    _, counts = cuts_of(small("frugal"), train)
    rest, _ = train.divide(0.05, seed=0, most=3000, leave=True)
    # Beside the shared vocabulary, each of the two calibrations (without validation points, and with them) compares as
    # many pairs of a point and a label as there are, drawn with replacement: two texts each.
    compared = 2 * rest.targets.nnz + 2 * train.targets.nnz
    assert counts[False].total() <= len(train) + len(train.labels) + compared


def test_a_memo_gives_the_bags_that_cutting_gives():
    words = tokens.Words.fit(["red cat", "old red dog", "red cat"], ["cat"])
    texts = ["red cat", "a new dog", "", "old red dog", "red cat"]
    by_memo = words.bag(texts)
    words.forget()
    assert (by_memo != words.bag(texts)).nnz == 0
    assert by_memo.shape == (5, 4)


def test_nothing_is_tried_where_no_points_were_made():
    stages = []
    with patch.object(Loop, "run", lambda _self, name, **_: stages.append(name)):
        lt.fit(short("astec", training__augmented="choose"), board())
    assert stages == ["surrogate", "training"]
