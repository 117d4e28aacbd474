"""Labels that come after training are scored on the scale of the others."""

from __future__ import annotations

import numpy as np
import pytest
from small import board, small

import longtail as lt
from longtail import scales
from longtail.errors import ModelError
from longtail.folder import read_config, write_config
from longtail.index import Index
from longtail.scales import LEAST, fit_scale, logistic
from longtail.scorers.added import Scale
from longtail.types import TopK

NEW = ["zorblax", "word3 filler1", "name3", "word7"]


@pytest.mark.parametrize(
    "recipe",
    [
        small("knn"),
        small("linear"),
        small("frugal"),
        small("frugal", training__epochs=1, blend=[1.0, 1.0]),
        small("frugal", lexical=None, linear=None, augment=[]),  # nothing is held out
    ],
    ids=["knn", "linear", "frugal", "all voices", "vectors"],
)
def test_no_new_label_scores_more_than_every_trained_one(recipe, tmp_path):
    train = board()
    lt.fit(recipe, train).save(tmp_path / "run")
    index = Index.load(tmp_path / "run")
    most = index.predict(train.texts.tolist(), 1).scores.max()
    first = index.add(NEW)[0]
    for text in (*NEW, "zorblax zorblax", "word3 filler1 name3"):
        new = [score for label, _, score in index.predict([text], 50)[0] if label >= first]
        assert new and max(new) <= most + 1e-5, text
    assert index.predict(["zorblax"], 1)[0][0][1] == "zorblax"


def test_a_new_label_gets_the_score_of_a_trained_one_that_is_right_as_often(monkeypatch):
    draw = np.random.default_rng(0)
    scores = draw.random((2000, 1)).astype(np.float32)
    points = board(2000)
    right = draw.random((2000, 1)) < scores
    labels = np.where(right[:, 0], points.targets.indices[points.targets.indptr[:-1]], 29)[:, None].astype(np.int32)
    right = scales.contains(points.targets, labels)
    monkeypatch.setattr(scales, "as_new", lambda *_: ((2 * scores + 0.5).ravel(), right.ravel()))
    scale = fit_scale(None, None, points, TopK(labels, scores))
    assert scale(np.float32([0.5, 1.5])).tolist() == pytest.approx([0.0, 0.5], abs=0.01)
    assert scale.top == scores.max()
    assert scale(np.float32([9.0]))[0] == scores.max()


def test_too_few_answers_or_scores_that_say_nothing_change_no_scale():
    scores = np.linspace(0, 1, 100).astype(np.float32)
    assert logistic(scores, np.arange(100) < LEAST - 1) is None
    assert logistic(scores, np.arange(100) >= 101 - LEAST) is None
    assert logistic(scores, np.arange(100) < 50) is None  # the higher the worse
    assert logistic(scores, np.arange(100) >= 50)[0] > 5  # steep, and finite


def test_the_scale_is_kept_with_the_model_and_checked(tmp_path):
    run = tmp_path / "run"
    model = lt.fit("knn", board())
    assert model.scale.top == pytest.approx(1.0)
    model.save(run)
    assert lt.Model.load(run).scale == model.scale
    config = read_config(run)
    for damage in ({"slope": -1.0}, {"slope": 1e999}, {"steep": 1.0}, {"slope": "1"}):
        write_config(run, {**config, "scale": damage})
        with pytest.raises(ModelError):
            lt.Model.load(run)
    write_config(run, {name: value for name, value in config.items() if name != "scale"})  # of an earlier version
    assert lt.Model.load(run).scale == Scale()
