"""Probabilities that rise with the score and come true."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.errors import ModelError
from longtail.files import write_arrays
from longtail.probabilities import FILE, Probabilities, fit_probabilities, reliability
from longtail.types import TopK, label_matrix


def test_they_come_true_on_other_points_of_the_same_kind():
    random = np.random.default_rng(0)
    scores = random.normal(size=100_000)
    chance = 1 / (1 + np.exp(-3 * scores))
    hits = random.random(100_000) < chance
    calibrated = Probabilities.fit(scores[:50_000], hits[:50_000])
    for row in reliability(calibrated(scores[50_000:]), hits[50_000:]):
        assert abs(row.predicted - row.observed) < 0.05
    assert np.abs(calibrated(scores[50_000:]) - chance[50_000:]).mean() < 0.03


def test_the_same_as_isotonic_regression_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.isotonic")
    random = np.random.default_rng(1)
    scores = random.random(3000)
    hits = random.random(3000) < scores**2
    theirs = sklearn.IsotonicRegression().fit(scores, hits).predict(scores)
    assert np.abs(Probabilities.fit(scores, hits)(scores) - theirs).mean() < 0.02  # but for the prior


@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=60))
def test_a_better_score_never_has_a_smaller_probability(pairs):
    calibrated = Probabilities.fit(np.array([score for score, _ in pairs]), np.array([hit for _, hit in pairs]))
    values = calibrated(np.linspace(-9, 9, 200))
    assert (np.diff(values) >= 0).all() and (values > 0).all() and (values < 1).all()


def test_what_is_not_there_has_none_and_few_points_give_no_curve():
    calibrated = Probabilities.fit(np.arange(100), np.arange(100) > 50)
    assert calibrated(np.array([-np.inf], np.float32)).tolist() == [0]
    top = TopK(np.zeros((3, 1), np.int32), np.zeros((3, 1), np.float32))
    assert fit_probabilities(top, label_matrix(np.arange(4), np.zeros(3, int), (3, 2))) is None


def test_a_curve_that_falls_is_refused(tmp_path):
    assert Probabilities.load(tmp_path) is None
    for scores, values in (([1, 0], [0.1, 0.2]), ([0, 1], [0.1, 7]), ([0, 1], [np.nan, 1]), ([], [])):
        write_arrays(tmp_path / FILE, {"scores": np.array(scores, "f4"), "values": np.array(values, "f4")})
        with pytest.raises(ModelError, match=r"rising|damaged"):
            Probabilities.load(tmp_path)
