from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.search.selection import added, insert, last_of, leading

EVERY = settings(max_examples=100, deadline=None)
SEEDS, SIZES = st.integers(0, 10**6), st.integers(1, 60)


def drawn(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels and scores of which many are equal."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 20, size), np.float32(draw.integers(0, 8, size) / 8)


@EVERY
@given(SEEDS, SIZES, SIZES)
def test_the_last_of_the_largest(seed, size, count):
    _, scores = drawn(seed, size)
    count = min(count, size)
    assert last_of(scores, count) == np.sort(scores)[-count]


@EVERY
@given(SEEDS, SIZES, SIZES)
def test_a_list_keeps_the_best_and_the_smaller_of_equals_first(seed, size, most):
    labels, scores = drawn(seed, size)
    names, values, count = np.empty(most, np.int32), np.empty(most, np.float32), 0
    for label, score in zip(labels, scores, strict=True):
        count = insert(names, values, count, most, label, score)
    order = np.lexsort((labels, -scores))[:most]
    assert names[:count].tolist() == labels[order].tolist()
    assert values[:count].tolist() == scores[order].tolist()


@EVERY
@given(SEEDS, SIZES)
def test_scores_of_a_label_are_added_up(seed, size):
    labels, scores = drawn(seed, size)
    names, sums = added(labels, scores)
    expected, places = np.unique(labels, return_inverse=True)
    assert names.tolist() == expected.tolist()
    np.testing.assert_allclose(sums, np.bincount(places, scores), rtol=1e-6)
    none, nothing = added(labels[:0], scores[:0])
    assert len(none) == len(nothing) == 0


@EVERY
@given(SEEDS, SIZES, st.integers(1, 8))
def test_labels_that_stand_twice_count_once_by_their_best(seed, size, n):
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.repeat(np.arange(size), 2))
    scores = np.float32(draw.integers(0, 8, 2 * size) / 8)
    best = {label: scores[labels == label].max() for label in range(size)}
    expected = sorted(best, key=lambda label: (-best[label], label))[:n]
    names, values = leading(labels, scores, n, 2)
    assert names.tolist() == expected
    assert values.tolist() == [best[label] for label in expected]
