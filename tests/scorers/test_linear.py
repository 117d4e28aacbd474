from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import shared_data
from small import board

import longtail as lt
from longtail.classifiers.sparse import Linear
from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.errors import ModelError
from longtail.files import read_arrays, write_arrays
from longtail.index import Index
from longtail.parts import Query
from longtail.scorers.linear import FILE, LinearScorer


@pytest.fixture(scope="module")
def scorer():
    train = board(200)
    return Linear(leaf=4, branching=4, trees=2).fit(train, Words.fit(train.texts, train.labels.texts))


def test_one_text_and_a_batch_get_the_same_answer_on_real_data():
    data = load(shared_data("LF-MDNSeeAlsoTitles-6K"))
    scorer = Linear().fit(data.train, Words.fit(data.train.texts, data.train.labels.texts))
    texts = [*data.test.texts[:600], "", "qwertyuiop"]
    labels, scores = scorer.top(Query(texts), 10)
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda text: scorer.top(Query([text]), 10), texts))
    assert np.array_equal(np.concatenate([own for own, _ in alone]), labels)
    assert np.array_equal(np.concatenate([own for _, own in alone]), scores)
    assert (np.diff(np.where(labels >= 0, scores, -1), axis=1) <= 0).all()


def test_it_comes_back_from_its_folder(scorer, tmp_path):
    scorer.save(tmp_path)
    again = LinearScorer.load(tmp_path, scorer.words, scorer.beam)
    query = Query(["word3 filler1", "word7"])
    assert all(np.array_equal(one, two) for one, two in zip(scorer.top(query, 5), again.top(query, 5), strict=True))
    assert again.forest.children.dtype == np.uint8
    again.save(tmp_path / "again")
    for name, array in read_arrays(tmp_path / FILE).items():
        kept = read_arrays(tmp_path / "again" / FILE)[name]
        assert kept.dtype == array.dtype and np.array_equal(kept, array)


def test_places_that_no_byte_holds_stay_wide(scorer, tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.scorers.linear.BYTES", scorer.forest.widest - 1)
    scorer.save(tmp_path)
    assert LinearScorer.load(tmp_path, scorer.words, scorer.beam).forest.children.dtype == np.int32


def changed(name, value):
    def change(arrays):
        array = arrays[name].copy()
        array.flat[len(array) // 2] = value
        return arrays | {name: array}

    return change


HOSTILE = {
    **{
        f"{name} {value}": changed(name, value) for name in ("roots", "children", "owners") for value in (-1, 2**31 - 1)
    },
    **{f"{name} {value}": changed(name, value) for name in ("firsts", "starts", "ends") for value in (-1, 2**62)},
    **{f"{name} {value}": changed(name, value) for name in ("weights", "biases") for value in (np.nan, np.inf)},
    "a label beyond": changed("below", -1000),
    "a node beyond": changed("below", 1000),
    "a node above": changed("below", 0),
    "no roots": lambda arrays: arrays | {"roots": arrays["roots"][:0]},
    "no labels": lambda arrays: arrays | {"labels": np.zeros(1, np.int64)},
    "other labels": lambda arrays: arrays | {"labels": np.array([2], np.int64)},
    "wide nodes": lambda arrays: arrays | {"owners": arrays["owners"].astype(np.int64)},
    "two dimensions": lambda arrays: arrays | {"weights": arrays["weights"][None]},
    "short biases": lambda arrays: arrays | {"biases": arrays["biases"][:-1]},
    "short children": lambda arrays: arrays | {"children": arrays["children"][:-1]},
    "ends that wrap": lambda arrays: (
        arrays | {"ends": np.where(np.arange(len(arrays["ends"])) % 2, 2**63 - 1, -(2**63)).astype(np.int64)}
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_arrays_are_refused(kind, scorer, tmp_path):
    scorer.save(tmp_path)
    write_arrays(tmp_path / FILE, HOSTILE[kind](dict(read_arrays(tmp_path / FILE))))
    with pytest.raises(ModelError, match="train again"):
        LinearScorer.load(tmp_path, scorer.words, 10)


def test_new_labels_are_scored_on_the_scale_of_trained_ones(tmp_path):
    lt.fit("linear", board()).save(tmp_path / "run")
    index = Index.load(tmp_path / "run")
    trained = index.predict(["word3 filler1", "purple parrot"], k=3)
    (new,) = index.add(["purple parrot"])
    top = index.predict(["purple parrot", "word3 filler1"], k=3)
    assert top.labels[0, 0] == new and 0.9 < top.scores[0, 0] <= 1
    assert top.labels[1, 0] == trained.labels[0, 0] and top.scores.max() <= 1
    assert index.explanation("word3 filler1", 3).words[0].word == "word3"
