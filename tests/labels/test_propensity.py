"""Frequencies, propensities and bins against plain loops and the published constants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.labels.propensity import Propensity, bins, frequencies
from longtail.types import label_matrix, no_pairs

COUNTS = st.lists(st.integers(0, 50), max_size=30)

OTHERS, WIKI, AMAZON = Propensity(0.55, 1.5), Propensity(0.5, 0.4), Propensity(0.6, 2.6)


def test_frequencies_count_points_not_values():
    targets = label_matrix(np.array([0, 2, 2, 3]), np.array([0, 2, 2]), (3, 4), np.array([0.1, 1, 0.3]))
    assert frequencies(targets).tolist() == [1, 0, 2, 0]
    assert frequencies(targets).dtype == np.int64
    assert frequencies(no_pairs((2, 3))).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("WikiLSHTC-325K", WIKI),
        ("Wiki-500K", WIKI),
        ("Wikipedia-500K", WIKI),
        ("WikipediaLarge-500K", WIKI),
        ("WikiTitles-500K", WIKI),
        ("LF-WikiTitles-500K", WIKI),
        ("lf_wikipedia_500k", WIKI),
        ("Amazon-670K", AMAZON),
        ("Amazon-3M", AMAZON),
        ("AmazonTitles-670K", AMAZON),
        ("AmazonTitles-3M", AMAZON),
        ("LF-Amazon-131K", AMAZON),
        ("LF-AmazonTitles-131K", AMAZON),
        ("lf-amazontitles-1.3m", AMAZON),
        ("AmazonCat-13K", OTHERS),
        ("AmazonCat-14K", OTHERS),
        ("Wiki10-31K", OTHERS),
        ("WikiSeeAlsoTitles-350K", OTHERS),
        ("LF-WikiSeeAlso-320K", OTHERS),
        ("LF-WikiSeeAlsoTitles-320K", OTHERS),
        ("EURLex-4K", OTHERS),
        ("RCV1-2K", OTHERS),
        ("", OTHERS),
    ],
)
def test_constants_of_a_data_set(name, expected):
    assert Propensity.of(name) == expected


@given(COUNTS, st.integers(3, 10**7), st.sampled_from([OTHERS, WIKI, AMAZON]))
def test_inverse_is_the_formula(counts, points, propensity):
    a, b = propensity.a, propensity.b
    c = (math.log(points) - 1) * (b + 1) ** a
    expected = [1 + c * math.exp(-a * math.log(n + b)) for n in counts]
    assert propensity.inverse(np.array(counts), points).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("points", [0, 1, 2])
def test_inverse_of_tiny_data_is_one(points):
    assert OTHERS.inverse(np.array([0, 1, 2]), points).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("a", "b"), [(-0.1, 1.5), (0.5, 0), (0.5, -1), (math.nan, 1)])
def test_impossible_constants(a, b):
    with pytest.raises(ValueError, match="b above 0"):
        Propensity(a, b)


def slow_bins(counts, number):
    """Walk the labels from the most frequent on and close a bin as the rule says."""
    out, bin_, volume, members = [number - 1] * len(counts), 0, 0, 0
    for label in sorted(range(len(counts)), key=lambda label: (-counts[label], label)):
        if counts[label] == 0:
            continue
        if bin_ < number - 1 and members and volume + counts[label] > sum(counts) // number:
            bin_, volume, members = bin_ + 1, 0, 0
        out[label] = bin_
        volume, members = volume + counts[label], members + 1
    return out


@given(COUNTS, st.integers(1, 7))
def test_bins_follow_the_greedy_rule(counts, number):
    numbers = bins(np.array(counts, np.int64), number)
    assert numbers.dtype == np.int32
    assert numbers.tolist() == slow_bins(counts, number)


def test_bins_of_few_labels():
    assert bins(np.array([5]), 3).tolist() == [0]
    assert bins(np.array([5, 5]), 3).tolist() == [0, 1]
    assert bins(np.array([0, 5]), 3).tolist() == [2, 0]
    assert bins(np.array([], np.int64), 3).tolist() == []


def test_bins_hold_about_equal_volumes():
    counts = np.random.default_rng(0).zipf(1.8, 20_000).clip(max=200)
    volumes = np.bincount(bins(counts, 5), counts)
    assert volumes / counts.sum() == pytest.approx([0.2] * 5, abs=0.01)


def test_no_bins():
    with pytest.raises(ValueError, match="at least 1"):
        bins(np.array([1]), 0)
