from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import shared_data

from longtail.data.dataset import Split, from_rows
from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.errors import DataError, ModelError, RecipeError
from longtail.files import read_arrays, write_arrays
from longtail.parts import Query
from longtail.pipeline import fit
from longtail.records import When
from longtail.scorers.lexical import Lexical, LexicalScorer


def fitted(settings: Lexical, train: Split) -> LexicalScorer:
    return settings.fit(train, Words.fit(train.texts, train.labels.texts or []))


def test_one_text_and_a_batch_get_the_same_answer_on_real_data():
    data = load(shared_data("LF-MDNSeeAlsoTitles-6K"))
    scorer = fitted(Lexical(neighbours=20, power=2, share=0.4), data.train)
    texts = [*data.test.texts[:300], "", "qwertyuiop"]
    batch_labels, batch_scores = scorer.top(Query(texts), 10)
    for place, text in enumerate(texts):
        labels, scores = scorer.top(Query([text]), 10)
        assert labels.shape == (1, 10)
        mask = batch_labels[place] >= 0
        assert labels[0].tolist() == batch_labels[place].tolist()
        np.testing.assert_allclose(scores[0][mask], batch_scores[place][mask], atol=1e-5)
        assert np.isneginf(scores[0][~mask]).all() and np.isneginf(batch_scores[place][~mask]).all()


def test_the_fused_score_is_what_the_docstring_says():
    data = from_rows(
        {"train": (["red cat", "old dog", "red fox"], [[0], [1], [0, 2]])}, label_texts=["cat", "dog", "fox"]
    )
    scorer = fitted(Lexical(neighbours=2, power=1, share=0.25), data.train)
    words, (labels, points) = scorer.words, (group.toarray() for group in scorer.near.groups)
    bag = words.bag(["red cat"]).toarray()[0]
    to_labels, to_points = labels @ bag, points @ bag
    near = np.argsort(-to_points, kind="stable")[:2]
    votes = sum(to_points[point] * data.train.targets.toarray()[point] for point in near)
    expected = 0.25 * to_labels / to_labels.max() + 0.75 * votes / votes.max()
    best, scores = scorer.top(Query(["red cat"]), 2)
    np.testing.assert_allclose(scores[0], expected[best[0]], atol=1e-5)
    assert best[0].tolist() == [0, 2]
    candidates = scorer.candidates(Query(["red cat"]), 3)
    assert candidates.similarity == pytest.approx(to_labels.max(), abs=1e-5)
    assert candidates.votes == pytest.approx(votes.max(), abs=1e-5)
    wider = scorer.candidates(Query(["red cat"]), 3, also=np.array([1]))  # nothing speaks for the dog
    assert dict(zip(wider.labels.tolist(), wider.scores.tolist(), strict=True)) == pytest.approx(
        dict(enumerate(expected.tolist())), abs=1e-5
    )


def test_settings_come_from_validation_and_stay_fixed_when_set():
    data = load(shared_data("LF-MDNSeeAlsoTitles-6K"))
    train, validation = data.train.divide(0.1)
    words = Words.fit(train.texts, data.labels.texts)
    chosen, scorer = Lexical(power=2.0).choose(train, validation, words)
    assert scorer.settings == chosen
    assert chosen.power == 2.0
    assert chosen.neighbours is not None
    assert chosen.share is not None
    assert chosen.pairs is False
    assert Lexical(power=2.0).choose(train, validation, words)[0] == chosen
    assert chosen.choose(train, validation, words)[0] == chosen
    assert Lexical(pairs=None).choose(train, validation, words)[0].pairs is not None
    with pytest.raises(RecipeError, match="not all chosen"):
        Lexical(power=2.0).fit(train, words)


def test_without_validation_points_usual_settings_are_taken():
    data = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    words = Words.fit(data.train.texts)
    assert Lexical().undecided() == When.AFTER
    chosen, scorer = Lexical(power=3.0, pairs=None).choose(data.train, None, words)
    assert scorer is None and chosen.undecided() == When.NEVER
    assert chosen == Lexical(neighbours=10, power=3.0, share=0.4, pairs=False)
    bare = replace(data.train, labels=replace(data.labels, texts=None))
    assert Lexical().choose(bare, None, words)[0].share == 0


def test_labels_without_texts_still_get_votes():
    data = from_rows({"train": (["red cat", "old dog"] * 20, [[0], [1]] * 20)}, label_texts=["", ""])
    bare = replace(data.train, labels=replace(data.labels, texts=None))
    assert fit("knn", bare).predict(["cat"], 1).labels.tolist() == [[0]]
    with pytest.raises(DataError, match="no texts"):
        fitted(Lexical(neighbours=1, power=1, share=0.5), bare)


@pytest.mark.parametrize("pairs", [False, True])
def test_save_and_load(tmp_path, pairs):
    data = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    settings = Lexical(neighbours=1, power=1, share=0.5, pairs=pairs)
    scorer = fitted(settings, data.train)
    scorer.save(tmp_path)
    opened = settings.load(tmp_path, scorer.words)
    assert len(opened) == 2
    for text in ("dog", "old cat", ""):
        for one, two in zip(opened.top(Query([text]), 2), scorer.top(Query([text]), 2), strict=True):
            np.testing.assert_array_equal(one, two)


def test_label_texts_that_do_not_fit_the_targets_are_refused(tmp_path):
    data = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    scorer = fitted(Lexical(neighbours=1, power=1, share=0.5), data.train)
    scorer.save(tmp_path)
    arrays = {name: np.array(array) for name, array in read_arrays(tmp_path / "lexical.safetensors").items()}
    write_arrays(tmp_path / "lexical.safetensors", arrays | {"targets.shape": arrays["targets.shape"] + [0, 1]})
    with pytest.raises(ModelError, match="damaged"):
        LexicalScorer.load(tmp_path, scorer.words, scorer.settings)


def test_votes_of_near_points_are_added_up_alike_with_and_without_a_compiler(monkeypatch):
    draw = np.random.default_rng(0)
    targets = [sorted(draw.choice(9, size, replace=False).tolist()) for size in draw.integers(1, 5, 40)]
    data = from_rows({"train": ([f"word{row}" for row in range(40)], targets)}, label_texts=[f"l{n}" for n in range(9)])
    scorer = fitted(Lexical(neighbours=6, power=2, share=0), data.train)
    near = np.stack([draw.choice(40, 6, replace=False) for _ in range(7)]).astype(np.int32)
    near[2, 4:] = near[3] = -1
    similarity = np.where(near < 0, 0, draw.random(near.shape)).astype(np.float32)
    dense = [sum(similar**2 * data.train.targets.toarray()[row] for row, similar in zip(*pair, strict=True) if row >= 0)
             for pair in zip(near, similarity, strict=True)]  # fmt: skip
    expected = np.stack([np.broadcast_to(row, 9) for row in dense])
    for compiled in (True, False):
        monkeypatch.setattr("longtail.scorers.lexical.compiles", lambda compiled=compiled: compiled)
        np.testing.assert_allclose(scorer.votes(near, similarity, 2.0).toarray(), expected, rtol=1e-5)
        labels, votes = scorer._votes(near[0], similarity[0])
        assert labels.tolist() == np.flatnonzero(expected[0]).tolist()
        np.testing.assert_allclose(votes, expected[0][labels], rtol=1e-5)
