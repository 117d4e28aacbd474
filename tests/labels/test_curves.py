"""The curves against independent implementations."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from longtail.errors import DataError
from longtail.labels.curves import Counts, Isotonic, Logistic, Shrunk, _features, curve_of, pooled

VALUES = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), max_size=30)


def drawn(count: int = 3000) -> tuple[Counts, np.ndarray]:
    """Draw counts of all sizes, and outcomes that are half as probable as the conditional says."""
    random = np.random.default_rng(0)
    own = random.choice([1, 2, 3, 4, 7, 20, 50], count)
    together = random.integers(1, own + 1)
    counts = Counts(together.astype(float), own.astype(float), random.integers(1, 99, count).astype(float))
    return counts, (random.random(count) < counts.plain() / 2).astype(float)


@settings(deadline=None)
@given(VALUES)
def test_pooling_is_isotonic_regression(rows):
    values, weights = np.array([v for v, _ in rows]), np.array([float(w) for _, w in rows])
    ours = pooled(values, weights)
    assert (np.diff(ours) >= -1e-12).all()
    if rows:
        theirs = IsotonicRegression().fit_transform(np.arange(len(rows)), values, sample_weight=weights)
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_isotonic_rises_with_the_conditional_and_finds_the_truth():
    counts, outcomes = drawn()
    curve = Isotonic.fit(counts, outcomes)
    assert len(curve.starts) > 3
    even = Counts(np.arange(1.0, 51), np.full(50, 50.0), np.ones(50))
    values = curve(even)
    assert (np.diff(values) >= 0).all()
    assert np.abs(values - even.plain() / 2).mean() < 0.06


def test_one_range_is_enough_where_pairs_are_few():
    counts, outcomes = drawn(80)
    assert Isotonic.fit(counts, outcomes).starts == (1,)


def test_logistic_is_the_ridge_solution():
    counts, outcomes = drawn()
    ours = Logistic.fit(counts, outcomes).coefficients
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(_features(counts), outcomes)
    np.testing.assert_allclose(ours, theirs.coef_[0], atol=1e-3)


def test_logistic_stands_outcomes_that_are_all_alike():
    counts, outcomes = drawn(500)
    assert Logistic.fit(counts, np.zeros(500))(counts).max() < 0.1
    assert Logistic.fit(counts, np.ones(500))(counts).min() > 0.9
    assert np.isfinite(Logistic.fit(counts, outcomes)(counts)).all()


def test_shrinking_trusts_many_points_more_than_one():
    shrunk = Shrunk(points=1000)(Counts(np.array([1.0, 100.0]), np.array([1.0, 100.0]), np.array([10.0, 10.0])))
    np.testing.assert_allclose(shrunk, [(1 + 0.01) / 2, (100 + 0.01) / 101])


def test_curves_travel_as_json():
    counts, outcomes = drawn()
    for curve in (Isotonic.fit(counts, outcomes), Logistic.fit(counts, outcomes), Shrunk(7, 2.0)):
        restored = curve_of(json.loads(json.dumps(curve.to_dict())))
        np.testing.assert_array_equal(restored(counts), curve(counts))
    with pytest.raises(DataError, match="did you mean 'isotonic'"):
        curve_of({"curve": "isotonik"})
