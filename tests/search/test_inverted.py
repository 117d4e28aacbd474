from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import ModelError
from longtail.search import inverted
from longtail.search.inverted import Inverted


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


def reading(entries: int):
    """Let the lists of rare words hold so many entries."""
    return patch.object(inverted, "MAX_READ", entries)


@settings(max_examples=250, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 200), st.integers(1, 12), st.sampled_from([None, 1, 3]), st.integers(1, 30)
)
def test_both_ways_equal_the_slow_way_when_all_lists_are_read(seed, count, words, steps, n):
    rows = random_rows(seed, count, words, 0.4, steps)
    queries = random_rows(seed + 1, 5, words, 0.6, steps)
    index = Inverted.build(rows)
    with reading(10**9), patch.object(inverted, "SPARE", count):
        batch, values = index.nearest_batch(0, queries, n)
        for place in range(queries.shape[0]):
            own = slice(queries.indptr[place], queries.indptr[place + 1])
            one, similar = index.nearest(0, queries.indices[own], queries.data[own], n)
            expected, exact = slow(rows, queries[[place]].toarray()[0], n)
            assert one.tolist() == expected
            np.testing.assert_allclose(similar, exact, atol=2e-6)
            plain, similar = index._nearest(0, queries.indices[own], queries.data[own], n)
            assert plain.tolist() == expected
            np.testing.assert_allclose(similar, exact, atol=2e-6)
            assert batch[place][batch[place] >= 0].tolist() == expected
            np.testing.assert_allclose(values[place][: len(expected)], exact, atol=2e-6)
    assert not any(array.any() for array in index.scratch.arrays.values())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 300), st.integers(1, 60))
def test_both_ways_read_the_same_lists(seed, count, entries):
    rows, queries = random_rows(seed, count, 12, 0.4, None), random_rows(seed + 1, 5, 12, 0.6, None)
    index = Inverted.build(rows)
    with reading(entries), patch.object(inverted, "SPARE", count):
        batch, values = index.nearest_batch(0, queries, 5)
        for place in range(queries.shape[0]):
            own = slice(queries.indptr[place], queries.indptr[place + 1])
            one, similar = index.nearest(0, queries.indices[own], queries.data[own], 5)
            assert batch[place][batch[place] >= 0].tolist() == one.tolist()
            np.testing.assert_allclose(values[place][: len(one)], similar, atol=2e-6)


def test_rare_words_name_the_candidates_and_all_words_rank_them():
    rows = sp.csr_array(np.array([[0.6, 0.8, 0], [0, 0.8, 0.6], [1, 0, 0], [1, 0, 0]], np.float32))
    index, words, weights = Inverted.build(rows), np.array([0, 1]), np.array([0.9, 0.1], np.float32)
    with reading(2):
        candidates, similar = index.nearest(0, words, weights, 4)
        assert candidates.tolist() == [0, 1]  # rows 2 and 3 have only the common word
        np.testing.assert_allclose(similar, [0.62, 0.08], atol=1e-6)
        assert index.nearest(0, words[:1], weights[:1], 4)[0].tolist() == [2, 3, 0]  # there is no other word
    assert index.nearest(0, words, weights, 4)[0].tolist() == [2, 3, 0, 1]


def test_without_a_compiler_the_same_is_found():
    rows, queries = random_rows(0, 300, 12, 0.4, None), random_rows(1, 20, 12, 0.6, None)
    index = Inverted.build(rows)
    with reading(60):
        found, values = index.nearest_batch(0, queries, 7)
        with patch.object(inverted, "compiles", lambda: False):
            plain, similar = index.nearest_batch(0, queries, 7)
            np.testing.assert_array_equal(plain, found)
            np.testing.assert_allclose(similar, values, atol=2e-6)
            chosen = np.arange(9)
            slowly = index.similarity(0, queries.indices[:3], queries.data[:3], chosen)
        np.testing.assert_allclose(
            index.similarity(0, queries.indices[:3], queries.data[:3], chosen), slowly, atol=2e-6
        )


def test_an_empty_query_and_unknown_words_find_nothing():
    index = Inverted.build(sp.csr_array(np.array([[1, 0], [1, 0]], np.float32)))
    for words in ([], [1]):
        rows, similar = index.nearest(0, np.array(words, np.int32), np.ones(len(words), np.float32), 3)
        assert len(rows) == len(similar) == 0


def test_groups_answer_for_themselves():
    first, second = random_rows(1, 300, 20, 0.4, None), random_rows(2, 500, 20, 0.4, None)
    index = Inverted.build(first, second)
    for seed in range(20):
        query = random_rows(50 + seed, 1, 20, 0.4, None)
        for group, rows in enumerate((first, second)):
            one, _ = index.nearest(group, query.indices, query.data, 7)
            assert one.tolist() == slow(rows, query.toarray()[0], 7)[0]


def test_threads_do_not_disturb_each_other():
    rows = random_rows(3, 2000, 40, 0.5, None)
    index = Inverted.build(rows)
    queries = [random_rows(100 + seed, 1, 40, 0.3, None) for seed in range(64)]

    def rows_near(query: sp.csr_array) -> list[int]:
        return index.nearest(0, query.indices, query.data, 10)[0].tolist()

    alone = [rows_near(query) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(rows_near, queries)) == alone


def test_arrays_are_checked_when_put_together():
    index = Inverted.build(random_rows(0, 20, 5, 0.5, None), random_rows(1, 30, 5, 0.5, None))
    arrays = index.arrays()
    opened = Inverted.of_arrays(arrays, (20, 30), 5)
    assert (opened.groups[1] != index.groups[1]).nnz == 0
    bad = {
        "lists0.indices": arrays["lists0.indices"] + 99,
        "lists1.indptr": arrays["lists1.indptr"][::-1],
        "group0.indptr": arrays["group0.indptr"][:-1],
        "lists0.shape": arrays["lists0.shape"] + 1,
    }
    for key, value in bad.items():
        with pytest.raises(ModelError, match="damaged"):
            Inverted.of_arrays(arrays | {key: value}, (20, 30), 5)
    swapped = {key.replace("lists0", "lists1"): value for key, value in arrays.items() if key.startswith("lists0")}
    with pytest.raises(ModelError, match="damaged"):
        Inverted.of_arrays(arrays | swapped, (20, 30), 5)
