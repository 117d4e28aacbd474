"""Which words carried a prediction: content words carry their phrases, function words never more than these."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from conftest import ROOT
from small import small

import longtail as lt
from longtail.data.tokens import Words
from longtail.explanations import carried
from longtail.index import Index

SHOP = {"food": ("pasta sauce", "tomato bread", "fresh cheese"), "car": ("tyre oil", "brake lamp", "fresh seat")}
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


PIECES = {
    "बिल्ली है": ["बिल्ली", "है"],
    "ลูกแมว": ["ลู", "ก", "แ", "ม", "ว"],
    "我的猫在汽车里": ["我", "的", "猫", "在", "汽", "车", "里"],
    "Red_cat, naïve 32GB cafe\u0301 ½": ["red_cat", "naïve", "32gb", "cafe\u0301", "½"],
}


@pytest.mark.parametrize("text", PIECES)
def test_words_are_cut_as_they_are_read_and_texts_without_spaces_letter_by_letter(text):
    assert sorted(shares(text, len)) == sorted(PIECES[text])


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("text", PIECES)
def test_the_page_marks_every_word_that_carried(text, tmp_path):
    shutil.copy(ROOT / "src/longtail/serve/page/highlight.js", tmp_path / "highlight.mjs")
    (tmp_path / "service.js").write_text(
        "export const make = (_, { text }) => ({ text, style: { setProperty() {} }, toJSON: () => text });"
    )
    (tmp_path / "package.json").write_text('{"type": "module"}')
    words = [{"text": word.word, "score": 1} for word in carried(text, len)]
    code = f"""
        const element = {{ value: {json.dumps(text)}, addEventListener() {{}}, replaceChildren(...parts) {{
            console.log(JSON.stringify(parts.filter((part) => part.text)));
        }} }};
        globalThis.document = {{ getElementById: () => element }};
        (await import("./highlight.mjs")).highlight({json.dumps(words)});
    """
    (tmp_path / "run.mjs").write_text(code)
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [word.lower() for word in json.loads(done.stdout)] == PIECES[text]


@pytest.fixture(scope="module", params=["knn", "linear"])
def by_words(request):
    rows = [(f"{text} {extra}", [name]) for name, texts in SHOP.items() for text in texts for extra in ("red", "new")]
    return lt.fit(request.param, *map(list, zip(*rows * 3, strict=True)))


def test_the_best_label_of_a_text_has_words_that_carried_it(by_words, tmp_path):
    by_words.save(tmp_path / "run")
    index = Index.load(tmp_path / "run")
    label = index.predict(["pasta sauce fresh"], 1)
    reasons = index.explanation("pasta sauce fresh", int(label.labels[0, 0]))
    assert reasons.label_text == "food" and reasons.score == pytest.approx(float(label.scores[0, 0]), abs=1e-5)
    found = {word.word: word.score for word in reasons.words}
    assert min(found["pasta"], found["sauce"]) > 0.01 and found["fresh"] < min(found["pasta"], found["sauce"])


def test_words_carry_labels_that_came_after_training_too(by_words, tmp_path):
    by_words.save(tmp_path / "run")
    index = Index.load(tmp_path / "run")
    (new,) = index.add(["purple parrot"])
    found = {word.word: word.score for word in index.explanation("purple parrot", new).words}
    assert found["purple"] > 0.1 < found["parrot"]


def test_margins_beyond_those_that_suffice_are_told_from_each_other():
    names = {"food": ("pasta", "sauce", "tomato", "bread", "cheese"), "car": ("brake", "lamp", "tyre", "oil", "seat")}
    rows = [(f"{word} {extra}", [name]) for name, words in names.items() for word in words for extra in ("red", "new")]
    model = lt.fit("linear", *map(list, zip(*rows * 10, strict=True)))
    label = int(model.predict(["pasta sauce tomato"], 1).labels[0, 0])
    scores = [model.predictor.score(text, label) for text in ("pasta sauce tomato", "pasta sauce", "sauce tomato")]
    assert scores == [1, 1, 1]
    assert all(word["score"] > 0.05 for word in model.explain("pasta sauce tomato", label)["words"])


def test_where_there_are_vectors_a_word_is_worth_what_the_score_loses_without_it():
    rows = [(text, [name]) for name, texts in SHOP.items() for text in texts]
    model = lt.fit(small("frugal", lexical=None, linear=None, augment=[]), *map(list, zip(*rows * 5, strict=True)))
    assert model.vectors is not None
    for word in model.explain("pasta fresh", 0)["words"]:
        rest = "pasta fresh".replace(word["word"], " " * len(word["word"]))
        lost = model.predictor.score("pasta fresh", 0) - model.predictor.score(rest, 0)
        assert word["score"] == pytest.approx(lost, abs=1e-5)
