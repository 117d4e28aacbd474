from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import ModelError
from longtail.shortlists import inverted
from longtail.shortlists.inverted import Inverted


def random_rows(seed: int, rows: int, words: int, share: float, steps: int | None) -> sp.csr_array:
    """Make rows of length one; few distinct values make many ties, and low word numbers are common words."""
    draw = np.random.default_rng(seed)
    chance = np.clip(share * 4 / (1 + np.arange(words)), 0, 1)
    dense = draw.random((rows, words)) * (draw.random((rows, words)) < chance)
    if steps:
        dense = np.ceil(dense * steps)
    lengths = np.linalg.norm(dense, axis=1, keepdims=True)
    return sp.csr_array((dense / np.where(lengths > 0, lengths, 1)).astype(np.float32))


def slow(rows: sp.csr_array, query: np.ndarray, n: int) -> tuple[list[int], list[float]]:
    exact = np.round(rows.toarray().astype(np.float64) @ query.astype(np.float64), 6)
    order = sorted((row for row in range(len(exact)) if exact[row] > 0), key=lambda row: (-exact[row], row))[:n]
    return order, [float(exact[row]) for row in order]


@settings(max_examples=250, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 200), st.integers(1, 12), st.sampled_from([None, 1, 3]), st.integers(1, 30)
)
def test_both_ways_equal_the_slow_way(seed, count, words, steps, n):
    rows = random_rows(seed, count, words, 0.4, steps)
    queries = random_rows(seed + 1, 5, words, 0.6, steps)
    index = Inverted.build(rows)
    with patch.object(inverted, "COMMON", 8):  # make common words of these small lists too
        assert index.common is not None
    found, values = index.nearest_batch(0, queries, n, threads=1)
    for place in range(queries.shape[0]):
        held = slice(queries.indptr[place], queries.indptr[place + 1])
        with index.ask(queries.indices[held], queries.data[held]) as asked:
            one, similar = asked.nearest(0, n)
            np.testing.assert_allclose(asked.similarity(0, one), similar)
        expected, exact = slow(rows, queries[[place]].toarray()[0], n)
        assert one.tolist() == expected
        np.testing.assert_allclose(similar, exact, atol=2e-6)
        assert found[place][found[place] >= 0].tolist() == expected
        np.testing.assert_allclose(values[place][: len(expected)], exact, atol=2e-6)
        assert not index.sums.any()


def test_common_words_are_cut_short_and_stay_exact():
    rows = random_rows(3, 5000, 40, 0.5, None)
    index = Inverted.build(rows)
    assert index.common, "the case must have common words"
    for seed in range(30):
        query = random_rows(100 + seed, 1, 40, 0.3, None)
        with index.ask(query.indices, query.data) as asked:
            one, _ = asked.nearest(0, 10)
        assert one.tolist() == slow(rows, query.toarray()[0], 10)[0]


def test_an_empty_query_and_unknown_words_find_nothing():
    index = Inverted.build(sp.csr_array(np.array([[1, 0], [1, 0]], np.float32)))
    for words in ([], [1]):
        with index.ask(np.array(words, np.int32), np.ones(len(words), np.float32)) as asked:
            rows, similar = asked.nearest(0, 3)
        assert len(rows) == len(similar) == 0


def test_groups_answer_for_themselves():
    first, second = random_rows(1, 300, 20, 0.4, None), random_rows(2, 500, 20, 0.4, None)
    index = Inverted.build(first, second)
    for seed in range(20):
        query = random_rows(50 + seed, 1, 20, 0.4, None)
        with index.ask(query.indices, query.data) as asked:
            for group, rows in enumerate((first, second)):
                assert asked.nearest(group, 7)[0].tolist() == slow(rows, query.toarray()[0], 7)[0]


def test_arrays_are_checked_when_put_together():
    index = Inverted.build(random_rows(0, 20, 5, 0.5, None), random_rows(1, 30, 5, 0.5, None))
    held = index.arrays()
    again = Inverted.of_arrays(held, 2)
    assert (again.groups[1] != index.groups[1]).nnz == 0
    bad = {"members": held["members"] + 99, "starts": held["starts"][::-1], "group0.indptr": held["group0.indptr"][:-1]}
    for key, value in bad.items():
        with pytest.raises(ModelError, match="damaged"):
            Inverted.of_arrays(held | {key: value}, 2)
