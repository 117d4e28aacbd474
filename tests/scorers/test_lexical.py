from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import shared_data

from longtail.data.dataset import Split, from_rows
from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.errors import DataError, RecipeError
from longtail.pipeline import fit
from longtail.shortlists.lexical import Lexical, LexicalIndex


def fitted(settings: Lexical, train: Split) -> LexicalIndex:
    return settings.fit(train, Words.fit(train.texts, train.labels.texts or []))


def test_one_text_and_a_batch_get_the_same_answer_on_real_data():
    data = load(shared_data("LF-MDNSeeAlsoTitles-6K"))
    index = fitted(Lexical(neighbours=20, power=2, share=0.4), data.train)
    texts = [*data.test.texts[:300], "", "qwertyuiop"]
    batch = index.top(texts, 10)
    for place, text in enumerate(texts):
        labels, scores = index.one(text, 10)
        found = batch.labels[place] >= 0
        assert labels.tolist() == batch.labels[place][found].tolist()
        np.testing.assert_allclose(scores, batch.scores[place][found], atol=1e-5)


def test_the_fused_score_is_what_the_docstring_says():
    data = from_rows(
        {"train": (["red cat", "old dog", "red fox"], [[0], [1], [0, 2]])}, label_texts=["cat", "dog", "fox"]
    )
    index = fitted(Lexical(neighbours=2, power=1, share=0.25), data.train)
    words, (labels, points) = index.words, (group.toarray() for group in index.near.groups)
    query = words.bag(["red cat"]).toarray()[0]
    to_labels, to_points = labels @ query, points @ query
    near = np.argsort(-to_points, kind="stable")[:2]
    votes = sum(to_points[point] * data.train.targets.toarray()[point] for point in near)
    expected = 0.25 * to_labels / to_labels.max() + 0.75 * votes / votes.max()
    found, scores = index.one("red cat", 3)
    np.testing.assert_allclose(scores, expected[found], atol=1e-5)
    assert found[0] == 0


def test_settings_come_from_validation_and_stay_fixed_when_set():
    data = load(shared_data("LF-MDNSeeAlsoTitles-6K"))
    kept, held = data.train.divide(0.1)
    words = Words.fit(kept.texts, data.labels.texts)
    chosen = Lexical(power=2.0).choose(kept, held, words).settings
    assert chosen.power == 2.0
    assert chosen.neighbours is not None
    assert chosen.share is not None
    assert chosen.pairs is False
    assert Lexical(power=2.0).choose(kept, held, words).settings == chosen
    assert chosen.choose(kept, held, words).settings is chosen
    assert Lexical(pairs=None).choose(kept, held, words).settings.pairs is not None
    with pytest.raises(RecipeError, match="not all chosen"):
        Lexical(power=2.0).fit(kept, words)


def test_labels_without_texts_still_get_votes():
    data = from_rows({"train": (["red cat", "old dog"] * 20, [[0], [1]] * 20)}, label_texts=["", ""])
    bare = replace(data.train, labels=replace(data.labels, texts=None))
    assert fit("knn", bare).predict(["cat"], 1).labels.tolist() == [[0]]
    with pytest.raises(DataError, match="no texts"):
        fitted(Lexical(neighbours=1, power=1, share=0.5), bare)


def test_save_and_load(tmp_path):
    data = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    index = fitted(Lexical(neighbours=1, power=1, share=0.5), data.train)
    index.save(tmp_path)
    again = LexicalIndex.load(tmp_path, index.words, index.settings)
    assert again.one("dog", 2)[0].tolist() == index.one("dog", 2)[0].tolist()
