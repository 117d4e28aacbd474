from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from longtail.data.tokens import PAIR, Words

TEXTS = ["Red cat, red dog", "the old-dog 3", "", "ünïcode CAT_1", "red"]


def test_bags_equal_scikit_learns():
    words = Words.fit(TEXTS)
    reference = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b", sublinear_tf=True, dtype=np.float32).fit(TEXTS)
    assert words.vocabulary.tolist() == reference.get_feature_names_out().tolist()
    np.testing.assert_allclose(words.bag(TEXTS).toarray(), reference.transform(TEXTS).toarray(), atol=1e-6)


@given(st.lists(st.sampled_from(["red", "cat", "dog", "the", "3", "unseen"]), max_size=8))
def test_one_query_equals_its_bag(tokens):
    words = Words.fit(TEXTS)
    text = " ".join(tokens)
    places, weights = words.query(text)
    dense = np.zeros(len(words), np.float32)
    dense[places] = weights
    np.testing.assert_allclose(dense, words.bag([text]).toarray()[0], atol=1e-6)


def test_save_and_load(tmp_path):
    words = Words.fit(TEXTS)
    words.save(tmp_path)
    again = Words.load(tmp_path)
    assert again.vocabulary == words.vocabulary
    np.testing.assert_array_equal(again.idf, words.idf)


def test_pairs_need_two_texts_and_weigh_less_than_words():
    words = Words.fit(["red cat", "red cat", "red dog"], pairs=True)
    assert words.vocabulary.tolist() == ["cat", "dog", "red", "red cat"]
    assert words.idf[words.places["red cat"]] == np.float32(PAIR) * words.idf[words.places["cat"]]


def test_pairs_are_fitted_to_the_same_texts_once_and_forgotten_with_them(tmp_path):
    words = Words.fit(["red cat", "red cat"], ["dog"])
    assert words.paired is words.paired and "red cat" in words.paired.places
    paired = words.paired
    words.forget()
    assert not words.memo and not paired.memo and not words.fitted_to and "paired" not in vars(words)
    words.save(tmp_path)
    paired.save(tmp_path)
    assert Words.load(tmp_path).paired.vocabulary.tolist() == paired.vocabulary.tolist()
