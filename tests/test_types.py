from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from longtail.types import Texts, TopK, best_of, contains, joined, label_matrix

rows_of_labels = st.lists(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.0, 0.25, 0.5, 1.0]))), max_size=6)


@given(rows_of_labels)
def test_a_label_matrix_is_canonical(rows):
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(int)
    flat = [pair for row in rows for pair in row]
    matrix = label_matrix(indptr, np.array([a for a, _ in flat], int), (len(rows), 7), np.array([b for _, b in flat]))
    expected = np.zeros((len(rows), 7), np.float32)
    for place, row in enumerate(rows):
        for label, value in row:
            expected[place, label] = max(expected[place, label], value)
    np.testing.assert_array_equal(matrix.toarray(), expected)
    assert matrix.has_canonical_format
    assert (matrix.data > 0).all()
    assert matrix.dtype == np.float32


@given(rows_of_labels, st.integers(1, 5))
def test_best_of_takes_the_largest_and_the_smaller_label_on_ties(rows, k):
    dense = np.zeros((len(rows), 7), np.float32)
    for place, row in enumerate(rows):
        for label, value in row:
            dense[place, label] = value
    top = best_of(sp.csr_array(dense), k)
    for place in range(len(rows)):
        order = sorted((label for label in range(7) if dense[place, label]), key=lambda one: (-dense[place, one], one))[
            :k
        ]
        assert [label for label in top.labels[place].tolist() if label >= 0] == order
        assert np.isneginf(top.scores[place][len(order) :]).all()


def test_excluded_pairs_leave_before_the_cut():
    top = TopK(np.array([[3, 1, 2], [0, -1, -1]], np.int32), np.array([[3, 2, 1], [1, -np.inf, -np.inf]], np.float32))
    pairs = sp.csr_array((np.ones(2, np.float32), ([0, 1], [3, 0])), shape=(2, 4))
    kept = top.without(pairs, 2)
    assert kept.labels.tolist() == [[1, 2], [-1, -1]]
    assert kept.scores[0].tolist() == [2, 1]
    np.testing.assert_array_equal(contains(pairs, top.labels), [[True, False, False], [True, False, False]])


def test_texts_slice_and_join():
    texts = Texts(["a", "b", "", "d"])
    assert texts[1:3].tolist() == ["b", ""]
    assert texts[::2].tolist() == ["a", ""]
    assert texts[-1] == "d"
    assert joined(texts[:1], texts[3:]).tolist() == ["a", "d"]
    assert list(texts) == texts.tolist()
    assert texts == Texts(texts.tolist())
