"""What people give to the public functions by mistake, or rightly so, is understood or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import longtail as lt
from longtail.errors import BadArgument

TITLES = ["red cat", "old dog", "grey cat", "wild fox"] * 10
TAGS = [["B1"], ["B2"], ["B1"], ["B3"]] * 10
NAMES = {"B1": "cat", "B2": "dog", "B3": "fox"}


@pytest.fixture(scope="module")
def data():
    return lt.from_rows({"train": (TITLES, TAGS), "test": (TITLES[:4], TAGS[:4])}, label_texts=NAMES)


@pytest.fixture(scope="module")
def model(data):
    return lt.fit("knn", data)


@pytest.fixture(scope="module")
def index(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("front") / "run"
    model.save(folder)
    return lt.Index.load(folder)


@pytest.mark.parametrize("label", [1, np.int64(1), "1", "B2", "dog", " Dog "])
def test_a_label_is_explained_by_number_raw_id_or_text(model, index, label):
    for found in (model.explain("my dog", label), index.explain("my dog", label)):
        assert (found["label"], found["label_text"]) == (1, "dog")


@pytest.mark.parametrize("label", [3, -1, 1.5, None, "owl"])
def test_a_label_that_is_not_there_is_one_sentence(model, index, label):
    for one in (model, index):
        with pytest.raises(lt.DataError, match=f"there is no label {label!r}; "):
            one.explain("my dog", label)


def test_an_added_label_is_explained_by_its_text(model, tmp_path):
    model.save(tmp_path / "run")
    index = lt.Index.load(tmp_path / "run")
    index.add(["blue parrot"])
    assert index.explain("a parrot", "blue parrot")["label"] == 3


@pytest.mark.parametrize("wrong", ["test.csv", Path("test.csv")])
@pytest.mark.parametrize(
    "call",
    [
        lt.evaluate,
        lambda model, name: lt.compare({"a": model}, name),
        lambda _, name: lt.fit("knn", name),
    ],
)
def test_the_name_of_a_file_is_no_data_set(model, wrong, call):
    with pytest.raises(BadArgument, match=r'a data set is needed, not \w+; make one: lt\.load\("test\.csv"\)'):
        call(model, wrong)


def test_texts_alone_are_no_data_set(model):
    with pytest.raises(BadArgument, match="a data set is needed, not list"):
        lt.evaluate(model, TITLES)


def test_what_is_no_model_is_refused(index, data):
    for wrong in (index, "runs/first"):
        with pytest.raises(BadArgument, match=r"a model is needed, not (Index|str); .*lt\.Model\.load.*index\.model"):
            lt.evaluate(wrong, data)
        with pytest.raises(BadArgument, match="a model is needed"):
            lt.compare({"a": wrong}, data)
    with pytest.raises(BadArgument, match="give them by name"):
        lt.compare([index.model], data)
    assert lt.evaluate(index.model, data).points == 4


def test_checkpoints_go_to_a_folder_given_as_a_string(data, tmp_path):
    assert lt.fit("knn", data, scratch=str(tmp_path / "dir")).points == 40


def test_scratch_as_a_string_reaches_a_training(monkeypatch, data):
    from longtail import pipeline

    seen = []
    monkeypatch.setattr(pipeline, "_fit", lambda recipe, train, scratch, progress: seen.append(scratch))
    lt.fit("frugal", data, scratch="dir")
    assert [str(path / "choice") for path in seen] == ["dir/choice"]


def test_lists_are_a_data_set_by_both_names(data):
    assert lt.Dataset.from_rows is lt.from_rows
    assert data.labels.texts.tolist() == ["cat", "dog", "fox"]


def test_a_comparison_is_printed_as_tables(model, data):
    shown = str(lt.compare({"one": model, "two": model}, data)).splitlines()
    assert shown[0].split() == ["%", "P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "Cov@5"]
    assert [line.split()[0] for line in shown[1:3]] == ["one", "two"]
    assert shown[4] == "two instead of one"
    assert shown[6].split() == ["P@1", "100.00", "100.00", "+0.00", "+0.00", "to", "+0.00", "no"]
    assert max(map(len, shown)) < 80
