from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from longtail.encoders.inputs import Bags, Ordered


def test_bags_are_followed_and_replaced():
    bags = Bags(sp.csr_array(np.array([[0.6, 0.8, 0], [1, 0, 0]], np.float32)))
    names = Bags(sp.csr_array(np.array([[0, 0, 1.0], [1, 0, 0]], np.float32)))
    followed = bags.followed(names, np.array([0, -1])).matrix.toarray()
    np.testing.assert_allclose(followed, [np.array([0.6, 0.8, 1]) / math.sqrt(2), [1, 0, 0]], rtol=1e-6)
    swapped = bags.replaced(lambda ids: np.array([2, 1, 0])[ids]).matrix.toarray()
    np.testing.assert_allclose(swapped, [[0, 0.8, 0.6], [0, 0, 1]], rtol=1e-6)
    assert len(bags) == 2 and bags.take(np.array([1])).bags(3).toarray().tolist() == [[1, 0, 0]]


def test_ordered_words_are_followed_as_far_as_there_is_room_and_replaced():
    ids = Ordered(np.array([[5, 0, 0], [5, 6, 7], [0, 0, 0]], np.int32))
    names = Ordered(np.array([[8, 9, 0]], np.int32))
    assert ids.followed(names, np.array([0, 0, -1])).ids.tolist() == [[5, 8, 9], [5, 6, 7], [0, 0, 0]]
    assert ids.replaced(lambda words: words + 1).ids.tolist() == [[6, 0, 0], [6, 7, 8], [0, 0, 0]]
    assert len(ids) == 3 and ids.take(np.array([2, 1])).ids.tolist() == [[0, 0, 0], [5, 6, 7]]
    counts = Ordered(np.array([[2, 1, 2], [0, 0, 0]], np.int32)).bags(4).toarray()
    assert counts.tolist() == [[0, 1, 2, 0], [0, 0, 0, 0]]
