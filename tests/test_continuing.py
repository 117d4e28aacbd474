from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from small import board, small
from test_cli import run

import longtail as lt
from longtail.card import shown
from longtail.continuing import continued_points, some_points, to_measure
from longtail.data.dataset import from_rows

ANIMALS = ("cat", "dog", "fox", "elk")


@pytest.fixture(scope="module")
def before():
    texts = [f"{colour} {animal}" for colour in ("red", "old", "wild", "small", "grey", "tame") for animal in ANIMALS]
    return lt.fit("knn", texts * 2, [[text.split()[1]] for text in texts] * 2)


def test_labels_keep_their_numbers_and_texts_that_come_again_their_new_labels(before):
    new = from_rows({"train": (["red cat", "brown owl"], [["cat", "pet"], ["owl"]])}).train
    points = continued_points(before, new)
    assert points.labels.texts.tolist() == ["cat", "dog", "elk", "fox", "owl", "pet"]
    assert len(points) == before.points - 2 + 2  # "red cat" was there twice
    row = points.texts.tolist().index("red cat")
    assert points.targets[[row]].indices.tolist() == [0, 5]
    row = points.texts.tolist().index("wild fox")
    assert points.targets[[row]].indices.tolist() == [3]


def test_a_model_that_goes_on_knows_old_and_new(before):
    more = ["brown owl", "old owl", "tawny owl", "owl by night"]
    after = lt.fit("knn", more, [["owl"]] * 4, continue_from=before)
    assert [after.predict([text], k=1)[0][0][1] for text in ("my owl", "the fox")] == ["owl", "fox"]
    assert after.points == before.points + 4
    seen = some_points(before, after.labels, 10)
    assert len(seen) == 10 and lt.evaluate(after, seen).values["P@1"] == 100
    comparison = lt.compare({"before": before, "after": after}, seen)
    assert comparison.pairs[0].metrics[0].difference == 0


def test_word_vectors_go_on_where_they_were():
    texts = [f"{word} {animal}" for word in ("red", "old", "wild", "small") for animal in ANIMALS] * 8
    recipe = replace(small("frugal"), voices=(), augment=())
    first = lt.fit(recipe, texts, [[text.split()[1]] for text in texts])
    still = recipe.override("training.learning_rate", 1e-12).override("training.dense_learning_rate", 1e-12)
    after = lt.fit(still, ["brown owl"] * 4, [["owl"]] * 4, continue_from=first)
    place, other = (model.words.places["wild"] for model in (first, after))
    assert place != other  # the vocabulary has grown
    np.testing.assert_allclose(
        after.vectors.arrays()["words"][other], first.vectors.arrays()["words"][place], atol=1e-6
    )


def test_feedback_adds_labels_to_what_is_known(tmp_path, before):
    said = [("red cat", "pet", True), ("red cat", "dog", True), ("red cat", "dog", False), ("brown owl", "owl", True)]
    said += [("wild fox", "cat", False)]
    rows = [{"text": text, "label": label, "label_id": 0, "good": good, "model": "m"} for text, label, good in said]
    (tmp_path / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = continued_points(before, lt.load(tmp_path / "said.jsonl").train)
    found = {text: set(points.targets[[row]].indices.tolist()) for row, text in enumerate(points.texts)}
    names = points.labels.texts.tolist()
    assert {names[label] for label in found["red cat"]} == {"cat", "pet"}
    assert {names[label] for label in found["brown owl"]} == {"owl"}
    assert {names[label] for label in found["wild fox"]} == {"fox"}


def test_excluded_pairs_are_replayed(tmp_path):
    data = from_rows({"train": (["red cat", "old dog"] * 15, [[0], [1]] * 15)}, label_texts=["cat", "dog"])
    excluded = data.train.targets[np.arange(30) ^ 1]
    lt.fit("knn", replace(data.train, excluded=excluded)).save(tmp_path / "run")
    kept = lt.Model.load(tmp_path / "run")
    new = from_rows({"train": (["wild fox"], [["fox"]])}).train
    assert continued_points(kept, new).excluded.nnz == 30


def test_points_that_are_not_kept_cannot_be_replayed(before):
    new = from_rows({"train": (["brown owl"], [["owl"]])}).train
    with pytest.raises(lt.DataError, match="keeps no training points"):
        continued_points(replace(before, examples=None), new)


def test_the_command_shows_what_changed_and_keeps_changes_of_labels(tmp_path, before):
    before.save(tmp_path / "one")
    assert run("labels", "add", tmp_path / "one", "-", stdin="blue whale\n").returncode == 0
    assert run("labels", "remove", tmp_path / "one", "1").returncode == 0
    rows = "".join(f"{word} owl,owl\n{word} cat,cat\n" for word in ["brown", "tawny", "snowy", "barn", "grey"])
    (tmp_path / "more.csv").write_text("title,tags\n" + rows)
    command = ("train", "--continue-from", tmp_path / "one", "--data", tmp_path / "more.csv", "--out", tmp_path / "two")
    done = run(*command, "--holdout", 0.2)
    assert done.returncode == 0, done.stderr
    assert "What changed" in done.stdout and "that neither was trained on" in done.stdout
    assert "that both were trained on" in done.stdout
    index = lt.Index.load(tmp_path / "two")
    assert index.labels.texts.tolist() == ["cat", "dog", "elk", "fox", "blue whale", "owl"]
    assert index.removed == {1}
    assert index.model.recipe.name == "knn"
    answer = run("predict", tmp_path / "two", "-", "--k", 1, stdin="an owl\na whale\n").stdout
    assert [json.loads(line)["labels"][0]["text"] for line in answer.splitlines()] == ["owl", "blue whale"]
    refused = run("train", "--data", tmp_path / "more.csv", "--out", tmp_path / "three")
    assert refused.returncode == 2 and "RECIPE" in refused.stderr


def test_points_that_were_trained_on_are_left_out_or_named():
    texts = [f"word{place} {'cat' if place % 2 else 'dog'}" for place in range(60)]
    data = from_rows({"train": (texts, [["odd"] if place % 2 else ["even"] for place in range(60)])})
    model, other = lt.fit("knn", data.train.take(np.arange(50))), lt.fit("knn", data.train.take(np.arange(55)))
    points, notes = to_measure(model, data)
    assert (points.name, len(points)) == ("test", 10)
    assert notes == ["50 of 60 points have a text that the model was trained on, and are left out"]
    assert len(to_measure(model, data, others=[other])[0]) == 5
    points, (note,) = to_measure(model, data, "train")  # asked for by name
    assert (points.name, len(points)) == ("train", 60) and "by heart" in note
    assert "by heart" in to_measure(lt.fit("knn", data), data)[1][0]  # nothing is left
    assert to_measure(model, data.train)[1] == []
    result = lt.evaluate(model, data.train).to_dict()
    assert (result["trained"], result["points"]) == (50, 60)
    honest = lt.evaluate(model, data).to_dict()
    assert (honest.get("trained"), honest["points"], honest["split"]) == (None, 10, "test")
    assert shown([honest, result]) == honest and shown([result]) == result
    fresh = from_rows({"train": (["new cat"], [["odd"]])})
    assert to_measure(model, fresh)[0].name == "test" and to_measure(model, fresh)[1] == []


def test_models_are_compared_by_the_frequencies_of_the_first():
    data = board(80)
    other = lt.fit("knn", data.take(np.arange(40)))
    compared = lt.compare({"a": lt.fit("knn", data), "b": other}, data)
    for metric in compared.pairs[0].metrics:
        assert compared.evaluations["b"].values[metric.metric] == pytest.approx(metric.second, abs=1e-6)
