"""Which words carried a prediction: content words carry their phrases, function words never more than these."""

from __future__ import annotations

from longtail.data.tokens import Words
from longtail.explanations import carried

FUNCTION = frozenset({"of", "an", "the"})


def shares(text, score, function=FUNCTION):
    return {word.word: word.score for word in carried(text, score, function)}


def test_a_pair_of_words_is_credited_to_the_one_with_a_subject():
    found = carried("position of an element", lambda text: 2.0 * ("an element" in text) + ("element" in text), FUNCTION)
    assert [(word.word, word.score) for word in found] == [("element", 3), ("an", 2), ("position", 0), ("of", 0)]


def test_a_function_word_never_gets_more_than_the_phrase_it_stands_in():
    def score(text):  # "an" takes much away from what "element" would get alone
        return 1.0 if "an" in text.split() else 0.4 if "element" not in text else 0.2

    assert shares("an element", score, frozenset()) == {"an": 0.8, "element": 0.0}
    found = shares("an element here", lambda text: score(text) + 0.1 * ("element" in text))
    assert found["an"] <= found["element"]


def test_function_words_after_the_last_content_word_go_with_it():
    assert shares("dog of", lambda text: ("dog" in text) + 2.0 * ("of" in text)) == {"dog": 3, "of": 2}


def test_every_occurrence_goes_with_its_own_phrase():
    left = list[str]()
    carried("the cat of the dog", lambda text: left.append(" ".join(text.split())) or float(len(left) == 1), FUNCTION)
    assert left[-2:] == ["of the dog", "the cat"]


def test_alone_or_where_no_other_word_adds_anything_function_words_keep_their_own():
    assert shares("of the", lambda text: 2.0 * ("of" in text)) == {"of": 2, "the": 0}
    assert shares("zzz of", lambda text: 2.0 * ("of" in text)) == {"of": 2, "zzz": 0}
    assert shares("red of", lambda text: 2.0 * ("of" in text) - ("red" in text)) == {"of": 2, "red": -1}


def test_a_vocabulary_knows_the_function_words_of_its_languages():
    words = Words.fit(["the position of an element", "the colour in a border"] * 9 + ["die"])
    assert words.function == {"the", "of", "an", "in", "a"}
    german = Words.fit(["die Farbe der Wand", "das Haus und der Hof"] * 9 + ["the"])
    assert german.function == {"die", "der", "das", "und"}
