from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longtail.data.dataset import from_rows
from longtail.data.function_words import LANGUAGES, function_words
from longtail.data.spelling import Spelling, deletions, one_edit
from longtail.data.tokens import FUNCTION, Words
from longtail.pipeline import fit

WORD = st.text(st.sampled_from("abcdé"), min_size=1, max_size=7)


def distance(one: str, other: str) -> int:
    """Count edits as the textbook does, neighbours that change places included."""
    table = np.zeros((len(one) + 1, len(other) + 1), int)
    table[:, 0], table[0] = np.arange(len(one) + 1), np.arange(len(other) + 1)
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            change = table[i - 1, j - 1] + (one[i - 1] != other[j - 1])
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, change)
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                table[i, j] = min(table[i, j], table[i - 2, j - 2] + 1)
    return int(table[-1, -1])


@settings(deadline=None)
@given(WORD, WORD)
@example("ab", "ba")
@example("abc", "cba")
@example("aab", "aba")
def test_one_edit_is_a_distance_of_one(one, other):
    assert one_edit(one, other) == (distance(one, other) == 1)


@settings(deadline=None)
@given(WORD, WORD)
def test_words_one_edit_apart_share_a_hash(one, other):
    if one_edit(one, other):
        assert len(np.intersect1d(deletions([one])[0], deletions([other])[0]))


def test_hashes_are_those_of_what_is_left():
    keys, owners = deletions(["sort", "a"])
    left = deletions(["sort", "ort", "srt", "sot", "sor"])[0][:5]
    assert set(keys[owners == 0]) == set(left) and (owners == 1).sum() == 2


@settings(deadline=None)
@given(st.lists(WORD, min_size=1, max_size=30, unique=True), WORD)
def test_all_words_one_edit_away_are_found(words, word):
    words = sorted(set(words) - {word})
    found = {words[place] for place, _ in Spelling(words, np.ones(len(words), np.float32))._edited(word)}
    wanted = {other for other in words if len(other) >= 3 and distance(word, other) == 1 and word[0] == other[0]}
    assert found == (wanted if len(word) <= 6 else found | wanted)


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("arrya", ["array"]),
        ("sorts", ["sort"]),
        ("sorting", ["sort"]),
        ("tietokonepeli", ["tietokone", "peli"]),
        ("dancer", []),  # no cancer
        ("cve2023", []),
        ("ab", []),
        ("", []),
        ("x" * 1000, []),
    ],
)
def test_readings(word, known):
    words = sorted(["array", "sort", "cancer", "cve2024", "abc", "tietokone", "peli"])
    assert [words[place] for place, _ in Spelling(words, np.ones(7, np.float32)).near(word)] == known


def test_shares_are_sixteenths_and_commoner_words_get_more():
    shares = dict(Spelling(["cart", "cast", "cats"], np.array([2.0, 4.0, 9.0], np.float32)).near("cat" + "t"))
    assert all(float(16 * share).is_integer() for share in shares.values()) and 0.9 <= sum(shares.values()) <= 1.1
    assert shares[0] == max(shares.values())


@settings(deadline=None)
@given(st.lists(st.sampled_from(["horse", "horses", "hrose", "white", "whitehorse", "zzz", "the"]), max_size=8))
@pytest.mark.parametrize("pairs", [False, True])
def test_one_query_with_unknown_words_equals_its_bag_to_the_bit(pairs, tokens):
    words = Words.fit(["white horse", "whites", "the horsemen", "house"], pairs=pairs)
    text = " ".join(tokens)
    places, weights = words.query(text)
    dense = np.zeros(len(words), np.float32)
    dense[places] = weights
    assert np.array_equal(dense, words.bag([text]).toarray()[0])


def test_pairs_are_read_by_their_words():
    words = Words.fit(["white horse", "a white horse"], pairs=True)
    assert words.bag(["whits horze"]).toarray()[0, words.places["white horse"]] > 0


def test_an_unknown_word_is_never_read_as_a_pair():
    texts = (
        ["sort by"] * 3 + ["sort it"] * 3 + [f"create x{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(300)] * 2
    )
    words = Words.fit(texts, pairs=True)
    for word, known in (("sorting", "sort"), ("creating", "create")):
        assert [(words.vocabulary[place], share) for place, share in words.read(word)] == [(known, 1.0)]


def test_readings_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr("longtail.data.tokens.UNKNOWN", 3)
    words = Words.fit(["white horse"])
    for number in range(10):
        words.bag([f"unknown{chr(97 + number)}"])
    assert len(words.unknown) <= 3


def test_a_mistyped_text_finds_its_label():
    names = ["kitchen knife", "garden chair", "reading lamp"]
    texts = [name for name in names for _ in range(8)]
    train = from_rows({"train": (texts, [[place // 8] for place in range(24)])}, label_texts=names).train
    model = fit("knn", train)
    assert [top[0][1] for top in model.predict(["kitchn knives", "gardn chairs", "readng"], k=1)] == names


def test_function_words_are_never_rare():
    texts = [f"name{chr(97 + place % 26)}{chr(97 + place // 26)} of" for place in range(600)]
    words = Words.fit([*texts, "position of an element", "that position"])
    idf = dict(zip(words.vocabulary, words.idf, strict=True))
    assert idf["an"] == idf["that"] == FUNCTION < idf["element"] and idf["of"] < 2


def test_languages_are_found_from_the_texts():
    finnish = {"ja": 50, "on": 5, "että": 9}
    assert "että" in function_words(lambda word: finnish.get(word, 0))
    assert "the" not in function_words(lambda word: finnish.get(word, 0))
    assert function_words(lambda _word: 0) == []
    assert all(word == word.lower() and word.isalpha() for words in LANGUAGES.values() for word in words.split())
