from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.augment import synonyms as module
from longtail.augment.synonyms import Replacer, Synonyms
from longtail.encoders.inputs import Bags, Ordered
from longtail.errors import RecipeError
from longtail.parts import Batch, Step
from longtail.recipe import find_recipe


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(0, 99), st.sampled_from([1, 30, 10_000]))
def test_near_words_are_those_of_a_full_search_in_blocks_of_any_size(words, most, seed, cells):
    vectors = np.random.default_rng(seed).standard_normal((words, 3)).astype(np.float32)
    vectors[::7] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CELLS", cells)
        near = Synonyms(max_neighbours=most).replacer(vectors).near
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
    near = Synonyms(max_neighbours=2).replacer(np.ones((4, 2), np.float32)).near
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
    replaced = replacer.replace(ids, np.random.default_rng(seed))
    np.testing.assert_array_equal(ids, before)
    np.testing.assert_array_equal(replaced, replacer.replace(ids, np.random.default_rng(seed)))
    assert replaced.shape == ids.shape
    assert replaced.dtype == dtype
    for old, new in zip(ids.ravel(), replaced.ravel(), strict=True):
        assert new == old or (new >= 0 and new in near[old])
        if probability == 0:
            assert new == old
        if probability == 1 and near[old, 0] >= 0:
            assert new != old


def test_one_word_in_seven_is_replaced_by_any_of_its_neighbours():
    replacer = Replacer(0.15, np.array([[1, 2], [-1, -1], [-1, -1]], np.int32))
    words = replacer.replace(np.zeros(40_000, np.int32), np.random.default_rng(0))
    assert (words > 0).mean() == pytest.approx(0.15, abs=0.01)
    assert (words[words > 0] == 1).mean() == pytest.approx(0.5, abs=0.03)


def test_settings_are_checked():
    recipe = find_recipe("knn+synonyms")
    assert recipe.augment == (Synonyms(probability=0.15, min_cosine=0.6, max_neighbours=5),)
    assert recipe.augment[0].acts_on == ("words",)
    with pytest.raises(RecipeError, match=r"synonyms\.max_neighbours"):
        recipe.override("augment.0.max_neighbours", 0)
    with pytest.raises(RecipeError, match="now called min_cosine"):
        recipe.override("augment.0.least", 0.5)
    with pytest.raises(RecipeError, match="now called max_neighbours"):
        recipe.override("augment.0.most", 3)


def test_words_of_a_batch_are_replaced_at_their_place_and_padding_stays():
    vectors = np.array([[0, 0], [1, 0], [4, 1], [0, 1]], np.float32)  # 1 and 2 are near each other
    replacer = Synonyms(probability=1).prepare(SimpleNamespace(start={"words": vectors}))
    bags = Bags(sp.csr_array(np.array([[0, 0.5, 0, 0.25], [0, 0, 1, 0]], np.float32)))
    ordered = Ordered(np.array([[1, 3, 0], [2, 0, 0]], np.int32))
    step = Step(np.random.default_rng(0), 0.0, None, [replacer])
    batches = [Batch(np.arange(2), inputs, None, None, np.ones(2, np.float32)) for inputs in (bags, ordered)]
    of_bags, of_ordered = (step.apply("words", batch).inputs for batch in batches)
    assert of_bags.matrix.toarray().tolist() == [[0, 0, 0.5, 0.25], [0, 1, 0, 0]]
    assert of_ordered.ids.tolist() == [[2, 3, 0], [1, 0, 0]]
    assert ordered.ids.tolist() == [[1, 3, 0], [2, 0, 0]]
    assert step.apply("batch", batches[0]) is batches[0]
