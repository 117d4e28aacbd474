from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.augment import synonyms as module
from longtail.augment.synonyms import Replacer, Synonyms
from longtail.errors import RecipeError
from longtail.recipe import find_recipe


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(0, 99), st.sampled_from([1, 30, 10_000]))
def test_near_words_are_those_of_a_full_search_in_blocks_of_any_size(words, most, seed, cells):
    vectors = np.random.default_rng(seed).standard_normal((words, 3)).astype(np.float32)
    vectors[::7] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CELLS", cells)
        near = Synonyms(most=most).prepare(vectors).near
    lengths = np.linalg.norm(vectors, axis=1)
    assert near.shape == (words, most)
    for word in range(words):
        cosines = {
            other: float(vectors[word] @ vectors[other] / (lengths[word] * lengths[other]))
            for other in range(words)
            if other != word and lengths[word] * lengths[other] > 0
        }
        # Where a cosine is at the very limit, rounding decides.
        expected = [other for other in sorted(cosines, key=cosines.get, reverse=True) if cosines[other] >= 0.6][:most]
        assert near[word][near[word] >= 0].tolist() == expected


def test_equal_neighbours_come_in_the_order_of_their_ids():
    near = Synonyms(most=2).prepare(np.ones((4, 2), np.float32)).near
    assert near.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=9),
    st.floats(0, 1),
    st.integers(0, 99),
    st.sampled_from([np.int32, np.int64]),
)
def test_words_give_way_to_near_words_only(rows, probability, seed, dtype):
    near = np.array([[-1, -1], [2, 3], [1, -1], [1, 2], [-1, -1], [3, -1]], np.int32)
    ids = np.array(rows, dtype).reshape(-1, 3)
    before = ids.copy()
    replacer = Replacer(probability, near)
    made = replacer.replace(ids, np.random.default_rng(seed))
    np.testing.assert_array_equal(ids, before)
    np.testing.assert_array_equal(made, replacer.replace(ids, np.random.default_rng(seed)))
    assert made.shape == ids.shape
    assert made.dtype == dtype
    for old, new in zip(ids.ravel(), made.ravel(), strict=True):
        assert new == old or (new >= 0 and new in near[old])
        if probability == 0:
            assert new == old
        if probability == 1 and near[old, 0] >= 0:
            assert new != old


def test_one_word_in_seven_is_replaced_by_any_of_its_neighbours():
    replacer = Replacer(0.15, np.array([[1, 2], [-1, -1], [-1, -1]], np.int32))
    made = replacer.replace(np.zeros(40_000, np.int32), np.random.default_rng(0))
    assert (made > 0).mean() == pytest.approx(0.15, abs=0.01)
    assert (made[made > 0] == 1).mean() == pytest.approx(0.5, abs=0.03)


def test_settings_are_checked():
    made = find_recipe("knn+synonyms")
    assert made.augment == (Synonyms(probability=0.15, least=0.6, most=5),)
    assert made.augment[0].acts_on == "words"
    with pytest.raises(RecipeError, match=r"synonyms\.most"):
        made.override("augment.0.most", 0)
