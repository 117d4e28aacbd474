from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from conftest import shared_data
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import longtail as lt
from longtail.data import sequences as module
from longtail.data.sequences import FILE, Sequences, cleaned, stop_words
from longtail.errors import ModelError

TEXTS = ["Red cat, red dog", "the old-dog 3", "", "ünïcode CAT_1", "red"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cat of The Who", "cat the who"),  # stop words go before capitals do
        ("snake_case of_names", "snake case names"),
        ("red,green, blue", "red green blue"),
        ("C# (and) F*", "c and f"),  # a stop word in brackets is no stop word
        ("e.g. U.S.A. 3.14 .net", "eg usa 3.14 .net"),
        ("32GB 4k 3d4", "32 gb 4 k 3 d4"),
        ("user's guide", "user guide"),
        ("they'd we'll John'd", "they 'd we 'll john 'd"),
        ("rock `n' roll", "rock `n' roll"),
        ("Äiti_ja  isä: työ", "äiti ja isä työ"),
        ("Китай 中文", "китай 中 文 中文"),
        ("a\u0308iti", "äiti"),  # a letter and its dots are one letter
        ("two\nlines\tand\u2028more words", "two lines words"),
        ("who is it", "who is it"),
        ("???  !!", "??? !!"),
        ("\ud800", "?"),
        ("", ""),
    ],
)
def test_cleaning(text, expected):
    assert list(cleaned([text])) == [expected]


@settings(deadline=None)  # the first case pays for threads
@given(st.lists(st.text(), max_size=8), st.integers(1, 3))
def test_texts_are_cleaned_apart_from_each_other(texts, chunk):
    together = list(cleaned(texts))
    assert together == [line for text in texts for line in cleaned([text])]
    assert all(bool(line) == bool(text.strip()) for text, line in zip(texts, together, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        assert list(cleaned(texts)) == together


@given(st.lists(st.text(alphabet="ab äÖ1.'_\n?[]"), max_size=12), st.integers(1, 6), st.integers(0, 4))
def test_ids_are_places_of_the_words_in_order(texts, length, most):
    made = Sequences.fit(texts[::2], texts[1::2], most=most)
    words = made.vocabulary.tolist()
    counts = Counter(word for line in cleaned(texts) for word in line.split())
    assert words[2:] == sorted(counts, key=lambda word: (-counts[word], word))[:most]
    ids, cut = made.ids(texts, length)
    assert ids.shape == (len(texts), length)
    assert ids.dtype == np.int32
    for row, line in zip(ids, cleaned(texts), strict=True):
        expected = [words.index(word) if word in words else 1 for word in line.split()][:length]
        assert row.tolist() == expected + [0] * (length - len(expected))
    assert cut == sum(len(line.split()) > length for line in cleaned(texts))


def test_bags_count_known_words():
    made = Sequences.fit(["red red cat", "dog"], most=2)
    assert made.vocabulary.tolist() == ["[pad]", "[unk]", "red", "cat"]
    bags = made.bags(made.ids(["red cat red", "dog", ""], 4)[0])
    assert bags.toarray().tolist() == [[0, 0, 2, 1], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_stop_words_are_plain_lower_case_words():
    assert 150 < len(stop_words()) < 200
    assert all(word == word.lower() and word.replace("'", "").isalpha() for word in stop_words())
    assert {"the", "of", "and", "don't"} <= stop_words()


def test_save_and_load(tmp_path):
    made = Sequences.fit(TEXTS)
    made.save(tmp_path)
    again = Sequences.load(tmp_path)
    assert again.vocabulary == made.vocabulary
    np.testing.assert_array_equal(again.ids(TEXTS, 4)[0], made.ids(TEXTS, 4)[0])
    other = Tokenizer.from_file(str(tmp_path / FILE))  # any program that knows the format reads the file
    assert other.encode("red unheard").ids == [made.vocabulary.tolist().index("red"), 1]


def vocabulary(**places: int) -> dict[str, object]:
    return {"model": {"type": "WordLevel", "vocab": {"[pad]": 0, "[unk]": 1, **places}}}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"model": 3}',
        '{"model": {"type": "BPE", "vocab": {"[pad]": 0, "[unk]": 1}}}',
        '{"model": {"type": "WordLevel", "vocab": ["[pad]", "[unk]"]}}',
        '{"model": {"type": "WordLevel", "vocab": {"[unk]": 0, "[pad]": 1}}}',
        '{"model": {"type": "WordLevel", "vocab": {"[pad]": 0, "[unk]": 1, "\\ud800": 2}}}',
        *(json.dumps(vocabulary(cat=place)) for place in (3, 1, -1, 2**70)),
        json.dumps(vocabulary(cat=True)),
        json.dumps(vocabulary())[:-9],
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_a_model_error_with_a_remedy(tmp_path, content):
    (tmp_path / FILE).write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=rf"{FILE}.*write the (model )?folder again"):
        Sequences.load(tmp_path)


def test_an_absent_file_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="not found"):
        Sequences.load(tmp_path)


def test_steps_that_a_strange_file_asks_for_are_not_run(tmp_path):
    made = Sequences.fit(TEXTS)
    made.save(tmp_path)
    value = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    value["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""}
    value["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / FILE).write_text(json.dumps(value), encoding="utf-8")
    loaded = Sequences.load(tmp_path)
    assert loaded.tokenizer.normalizer is None
    np.testing.assert_array_equal(loaded.ids(["red cat", "x" * 60], 3)[0], made.ids(["red cat", "x" * 60], 3)[0])


def test_real_titles_have_few_unknown_words():
    data = lt.load(shared_data("LF-MDNSeeAlsoTitles-6K"))
    made = Sequences.fit(data.train.texts, data.labels.texts)
    ids, _ = made.ids(data.test.texts, 32)
    assert (ids[:, 0] > 0).all()
    assert (ids == 1).sum() / (ids > 0).sum() < 0.1


def test_a_model_without_sequences_does_not_import_the_tokenizer():
    code = "import sys, longtail as lt; lt.fit, lt.Model; sys.exit('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
