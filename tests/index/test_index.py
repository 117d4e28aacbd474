"""A model as it is served: same answers as the model, filters, new labels, reasons."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from index.conftest import NAMES, QUERIES, every
from small import SMALL, board, short

from longtail import predictions
from longtail.artefact import build_artefact
from longtail.data.dataset import from_rows
from longtail.errors import DataError
from longtail.folder import read_config, write_config
from longtail.index import Index
from longtail.labels.journal import FILE
from longtail.model import Model
from longtail.pipeline import fit
from longtail.predictions import Groups
from longtail.stores.memory import MemoryStore
from longtail.types import Texts, label_matrix


@pytest.mark.parametrize("run", ["knn", "frugal", "pairs", "mixed"], indirect=True)
def test_the_index_answers_as_the_model_does(run):
    model, index = Model.load(run), Index.load(run)
    for texts in (QUERIES, QUERIES * 20):
        ours, theirs = index.predict(texts, 4), model.predict(texts, 4)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-5)
        gaps = np.diff(np.where(theirs.labels < 0, np.arange(4) * -9.0, theirs.scores), axis=1)
        same = np.abs(gaps).min(axis=1) > 1e-5  # no ties
        np.testing.assert_array_equal(ours.labels[same], theirs.labels[same])


@every
def test_several_threads_may_ask_at_once(run):
    for served in (Model.load(run), Index.load(run)):
        asked = [[text] for text in QUERIES] + [QUERIES * 3]
        alone = [served.predict(texts, 4) for texts in asked]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(partial(served.predict, k=4), asked * 5))
        for place, top in enumerate(together):
            np.testing.assert_array_equal(top.labels, alone[place % len(asked)].labels)
            np.testing.assert_array_equal(top.scores, alone[place % len(asked)].scores)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("search", ["exact", "hnsw", "ivf"])
def test_every_index_file_keeps_the_recall_that_it_records(run, precision, search, data):
    info = build_artefact(run, precision=precision, search=search, recall=0.9)
    index = Index.load(run)
    assert (info.precision, info.search) == (precision, search) == (index.served.precision, index.served.search)
    texts = data.train.texts.tolist()
    ours, theirs = index.predict(texts, 5), Model.load(run).predict(texts, 5)
    kept = np.mean(
        [len(set(a) & set(b)) / 5 for a, b in zip(ours.labels.tolist(), theirs.labels.tolist(), strict=True)]
    )
    assert kept >= 0.9
    first = index.predict(texts[:1], 5)
    np.testing.assert_array_equal(first.labels, ours.labels[:1])
    assert len(list(run.glob("index_*"))) == 1
    build_artefact(run, search="exact")
    assert len(list(run.glob("index_*"))) == 1
    Model.load(run)  # the folder is whole


def test_models_without_label_vectors_need_no_index_file(folders, tmp_path):
    run = shutil.copytree(folders / "knn", tmp_path / "knn")
    assert build_artefact(run) is None
    assert Index.load(run).served is None


@every
def test_filters(run):
    index = Index.load(run)
    text = "small cat by night"
    free = index.predict([text], 10).labels[0].tolist()
    best = free[0]
    assert best not in index.predict([text], 5, deny=[best]).labels
    assert index.predict([text], 5, deny=free[:3]).labels[0, 0] == free[3]
    assert set(index.predict([text], 5, allow=[free[2], free[4]]).labels[0].tolist()) - {-1} == {free[2], free[4]}
    assert index.predict([text], 3, allow=[]).labels.tolist() == [[-1, -1, -1]]
    pairs = label_matrix(np.array([0, 1, 1]), np.array([best]), (2, len(NAMES)))
    two = index.predict([text, text], 2, exclude=pairs)
    assert two.labels[0, 0] == free[1] and two.labels[1, 0] == best
    batch, many = index.predict([text] * 70, 3), index.predict([text] * 70, 2, deny=[best])
    assert (batch.labels[:, 0] == best).all()
    np.testing.assert_array_equal(many.labels, batch.labels[:, 1:])
    colours = {label: NAMES[label].split()[1] for label in range(len(NAMES))}
    grouped = index.predict([text], 4, groups=Groups(colours, most=1)).labels[0]
    names = [colours[label] for label in grouped.tolist() if label >= 0]
    assert len(names) == len(set(names)) and names[0] == colours[best]
    scores = index.predict([text], 5).scores[0]
    cut = index.predict([text], 5, threshold=float(scores[1]))
    assert (cut.labels[0] >= 0).sum() == (scores >= scores[1]).sum()


@every
def test_probabilities_rise_with_scores(run):
    index = Index.load(run)
    plain = index.predict(QUERIES[:2], 5)
    sure = index.predict(QUERIES[:2], 5, probabilities=True)
    np.testing.assert_array_equal(sure.labels, plain.labels)
    mask = sure.labels >= 0
    assert ((sure.scores[mask] >= 0) & (sure.scores[mask] <= 1)).all()
    assert (np.diff(np.where(mask, sure.scores, -1), axis=1) <= 0).all()


def test_a_model_without_held_out_points_says_so(tmp_path):
    few = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    fit("knn", few.train).save(tmp_path / "run")
    with pytest.raises(DataError, match="held out"):
        Index.load(tmp_path / "run").predict(["cat"], probabilities=True)


@every
def test_wrong_questions_say_what_to_do(run):
    index = Index.load(run)
    for call, message in (
        (lambda: index.predict("cat"), "list of texts"),
        (lambda: index.predict(["cat"], 0), "at least one"),
        (lambda: index.predict(["cat"], allow=[999]), "use 0 to 47"),
        (lambda: index.predict(["cat"], deny=[-1]), "use 0 to 47"),
        (
            lambda: index.predict(["cat"], exclude=label_matrix(np.zeros(3, int), np.zeros(0, int), (2, 48))),
            "exclude is",
        ),
        (lambda: index.explain("cat", 48), "no label 48"),
        (lambda: index.remove([48]), "no label 48"),
        (lambda: index.add([" "]), "no text"),
        (lambda: index.add(["a"], ["1", "2"]), "2 ids for 1"),
        (lambda: index.add(["\ud800"]), "Unicode"),
        (lambda: index.add(["red\x1b[2J cat"]), "control"),
        (lambda: index.predict(["cat", None]), "text 1 is of type NoneType"),
        (lambda: index.model.predict([b"cat"]), "text 0 is of type bytes"),
        (index.undo, "no change"),
    ):
        with pytest.raises(DataError, match=message):
            call()
    assert not (run / FILE).exists()


@every
def test_new_labels_are_found_at_once_and_by_others_and_undone(run):
    index, other = Index.load(run), Index.load(run)
    before = index.predict(QUERIES, 5)
    added = index.add(["blue parrot", "zorblax"])
    assert added == [48, 49] and len(index.labels) == 50 and index.frequencies[48:].tolist() == [0, 0]
    assert index.predict(["a blue parrot"], 1)[0][0][:2] == (48, "blue parrot")
    assert index.predict(["zorblax!"], 1).labels[0, 0] == 49
    assert index.predict(["zorblax", "red cat"] * 40, 1).labels[0, 0] == 49
    assert index.predict(["zorblax"], 2, allow=[3, 49]).labels[0, 0] == 49
    assert other.refresh() and not other.refresh()
    assert other.predict(["zorblax"], 1).labels[0, 0] == 49
    assert Index.load(run).predict(["zorblax"], 1).labels[0, 0] == 49
    other.remove([49, 0])
    index.refresh()
    assert 49 not in index.predict(["zorblax"], 5).labels and 0 not in index.predict(["red cat"], 48).labels
    assert 0 not in index.predict(["red cat"] * 100, 5).labels
    with pytest.raises(DataError):
        index.predict(["a"], allow=[50])
    index.undo()
    assert index.predict(["zorblax"], 1).labels[0, 0] == 49
    index.undo()
    assert len(index.labels) == 48
    np.testing.assert_array_equal(index.predict(QUERIES, 5).labels, before.labels)


@every
def test_reasons(run):
    index = Index.load(run)
    best = int(index.predict(["red cat sun"], 1).labels[0, 0])
    reasons = index.explanation("red cat sun", best)
    assert reasons.label_text == NAMES[best] and reasons.rank == 1 and reasons.bin in ("head", "torso", "tail")
    assert reasons.words[0].score > 0 == next(entry.score for entry in reasons.words if entry.word == "sun")
    assert reasons.words[0].word in NAMES[best].split()
    assert {entry.word for entry in reasons.words} == {"red", "cat", "sun"}
    assert any(point.has for point in reasons.points)
    assert reasons.label_texts[0].text == "red cat"
    assert reasons.neighbours and all(0 < entry.score <= 1 and entry.id != best for entry in reasons.neighbours)
    plain = json.loads(json.dumps(index.explain("red cat sun", best)))
    assert plain["words"][0]["word"] == reasons.words[0].word
    known = index.label(best)
    assert known["frequency"] == index.frequencies[best] and len(known["examples"]) > 0
    index.add(["blue parrot"])
    new = index.explain("blue parrot", 48)
    assert new["bin"] == "tail" and new["frequency"] == 0 and new["rank"] == 1
    assert index.label(48)["added"] and index.label(48)["examples"] == []


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("knn", "frugal")])
def test_other_recipes_are_served_too(name, tmp_path):
    fit(short(name), board()).save(tmp_path / "run")
    model, index = Model.load(tmp_path / "run"), Index.load(tmp_path / "run")
    texts = ["word3 filler1", "word7"]
    for some in (texts, texts * 40):
        np.testing.assert_allclose(index.predict(some, 3).scores, model.predict(some, 3).scores, atol=1e-4)
    info = build_artefact(tmp_path / "run", recall=0.5)
    assert (info is None) == (model.vectors is None or not model.vectors.searchable)
    best = int(index.predict(texts, 1).labels[0, 0])
    reasons = index.explanation(texts[0], best)
    assert reasons.rank == 1 and len(reasons.words) == 2 and reasons.points
    assert index.predict(texts, 1, deny=[best]).labels[0, 0] not in (best, -1)
    assert index.add(["word7 brandnew"]) == [30]
    assert 30 in index.predict(["word7 brandnew"], 5).labels
    index.undo()


@pytest.mark.parametrize("search", ["exact", "hnsw", "ivf"])
def test_what_is_ranked_again_is_served_from_an_index(search, tmp_path):
    recipe = short("frugal", rerank="rerank", rerank__training__epochs=1, rerank__top=9)
    fit(recipe, board()).save(tmp_path / "run")
    info = build_artefact(tmp_path / "run", search=search, recall=0.9)
    model, index = Model.load(tmp_path / "run"), Index.load(tmp_path / "run")
    assert info.search == index.served.search == search and info.recall >= 0.9
    for texts in (["word3 filler1"], ["word3 filler1", "word7"] * 40):
        np.testing.assert_allclose(index.predict(texts, 3).scores, model.predict(texts, 3).scores, atol=0.05)
    assert index.add(["word7 brandnew"]) == [30]
    assert 30 in index.predict(["word7 brandnew"], 5).labels


@pytest.mark.parametrize("run", ["knn"], indirect=True)
def test_a_label_that_another_process_takes_back_cannot_be_removed(run, monkeypatch):
    index, other = Index.load(run), Index.load(run)
    index.add(["blue parrot"])
    other.undo()
    monkeypatch.setattr(index, "refresh", lambda: False)  # the undo comes right behind it
    with pytest.raises(DataError, match="just been undone"):
        index.remove([48])
    assert len(Index.load(run).labels) == 48


@every
def test_labels_are_found_by_words(run):
    index = Index.load(run)
    assert [NAMES[label] for label in index.find("CAT", 3)] == ["red cat", "old cat", "wild cat"]
    assert [NAMES[label] for label in index.find("ca sm", 9)] == ["small cat"]
    assert index.find("", 5) == index.find("%", 5) == index.find("nothing", 5) == []
    index.remove([0])
    assert 0 not in index.find("cat", 9)


@every
def test_a_description_is_plain_json(run):
    described = json.loads(json.dumps(Index.load(run).describe()))
    assert described["labels"] == 48 and described["points"] == 144 and described["name"] == run.name


@every
def test_texts_without_a_known_word_get_no_labels(run):
    index = Index.load(run)
    index.add(["blue parrot"])
    for texts in (["", "xyzzy qwertz"], ["", "xyzzy qwertz"] * 50):
        assert (index.predict(texts, 3).labels == -1).all()
        assert (index.model.predict(texts, 3).labels == -1).all()
    index.undo()
    assert (index.predict(["", "xyzzy"] * 50, 3).labels == -1).all()


@every
def test_many_blocks_are_answered_as_one_by_one(run, monkeypatch, data):
    index, texts = Index.load(run), data.train.texts.tolist()[:100]
    alone = [index.predict([text], 4) for text in texts]
    monkeypatch.setattr(predictions, "LEAST", 7)
    monkeypatch.setattr(predictions, "MOST", 7)
    for top in (index.predict(texts, 4), index.predict(texts[::-1], 4)):
        rows = alone if top.labels[0].tolist() == alone[0].labels[0].tolist() else alone[::-1]
        np.testing.assert_allclose(top.scores, np.concatenate([one.scores for one in rows]), atol=1e-5)
    denied = index.predict(texts, 4, deny=[0, 5, 9])
    assert not np.isin(denied.labels, [0, 5, 9]).any()
    one_by_one = np.concatenate([index.predict([text], 4, deny=[0, 5, 9]).scores for text in texts])
    np.testing.assert_allclose(denied.scores, one_by_one, atol=1e-5)


def test_a_search_that_finds_too_little_is_not_chosen(run, monkeypatch):
    monkeypatch.setattr("longtail.artefact.SMALL", 3)
    whole = MemoryStore.search
    config = read_config(run)  # without words, which find much by themselves
    write_config(run, {**config, "recipe": config["recipe"] | {"voices": [], "blend": None}})
    monkeypatch.setattr(MemoryStore, "search", lambda self, queries, k: _lost(self, *whole(self, queries, k)))
    poor = build_artefact(run, search="hnsw")
    assert poor.search == "hnsw" and poor.recall < poor.wanted
    assert build_artefact(run).search == "exact"
    monkeypatch.setattr(MemoryStore, "search", whole)
    assert build_artefact(run).search == "hnsw"


def _lost(store, labels, scores):
    """Lose everything that a graph finds."""
    return (labels if store.leader is None else np.full_like(labels, -1)), scores


def test_raw_ids_are_given_once(run, data, tmp_path):
    with pytest.raises(DataError, match="no raw ids"):
        Index.load(run).add(["blue parrot"], ["p1"])
    named = replace(data.train, labels=replace(data.labels, ids=Texts([f"id{n}" for n in range(len(NAMES))])))
    fit("knn", named).save(tmp_path / "named")
    index = Index.load(tmp_path / "named")
    index.add(["blue parrot"], ["p1"])
    for ids in (["p1"], ["id3"], ["p2", "p2"]):
        with pytest.raises(DataError, match="already"):
            index.add(["green parrot", "grey parrot"][: len(ids)], ids)
    assert index.labels.ids[len(NAMES)] == "p1" and len(index.labels) == len(NAMES) + 1


@pytest.mark.parametrize("run", ["knn"], indirect=True)
def test_labels_that_are_removed_twice_come_back_by_one_undo(run):
    index = Index.load(run)
    index.remove([5])
    index.remove([5, 5])
    index.undo()
    assert index.removed == frozenset()


@pytest.mark.parametrize("run", ["knn"], indirect=True)
def test_training_again_keeps_the_labels_that_were_added(run, data):
    index = Index.load(run)
    index.add(["blue parrot"])
    index.model.save(run, force=True)
    assert Index.load(run).predict(["parrot"], 1)[0][0][1] == "blue parrot"
    other = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    fit("knn", other.train).save(run, force=True)
    assert len(Index.load(run).labels) == 2  # other labels: the numbers would mean something else


@every
def test_others_may_ask_while_labels_change(run):
    index = Index.load(run)
    stop, wrong = threading.Event(), []

    def ask():
        while not stop.is_set():
            try:
                for text in ("blue parrot", "red cat"):
                    _ = index.predict([text], 3)[0]
            except Exception as reason:
                wrong.append(reason)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(15):
        index.add(["blue parrot", "green parrot"])
        index.undo()
    stop.set()
    asking.join()
    assert wrong == []
