"""The way in without files: lists and frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import longtail as lt
from longtail.data.dataset import from_rows
from longtail.errors import BadArgument, DataError

TEXTS, TAGS = ["red cat", "old dog", "grey cat\nat night"], [["cat", "red"], ["dog"], ["cat"]]


def labels_of(split):
    return [[split.labels.texts[label] for label in split.targets[[row]].indices] for row in range(len(split))]


def test_names_are_labels_and_numbers_are_names_too():
    train = from_rows({"train": (TEXTS, TAGS)}).train
    assert labels_of(train) == TAGS
    assert train.texts[2] == "grey cat at night"
    years = from_rows({"train": (TEXTS, [[2020, 5], [2021], np.array([5])])})
    assert years.labels.texts.tolist() == ["2020", "2021", "5"]  # not 2,022 labels
    assert labels_of(years.train) == [["2020", "5"], ["2021"], ["5"]]


def test_label_texts_are_a_list_that_numbers_index_or_come_by_name():
    by_number = from_rows({"train": (TEXTS, [[0, 1], [2], [0]])}, label_texts=["cat", "red", "dog"])
    assert labels_of(by_number.train) == [["cat", "red"], ["dog"], ["cat"]]
    by_name = from_rows({"train": (TEXTS, [["cat", 1], ["dog"], []])}, label_texts=["cat", "red", "dog"])
    assert labels_of(by_name.train) == [["cat", "red"], ["dog"], []]
    described = from_rows(
        {"train": (TEXTS, TAGS)}, label_texts={"cat": "a small cat", "red": "redness", "dog": "a dog"}
    )
    assert labels_of(described.train)[0] == ["a small cat", "redness"]
    assert described.labels.ids.tolist() == ["cat", "red", "dog"]
    for rows, message in (([[3], [], []], "there is no label 3; use 0 to 2"), ([["cow"], [], []], "no label 'cow'")):
        with pytest.raises(BadArgument, match=message):
            from_rows({"train": (TEXTS, rows)}, label_texts=["cat", "red", "dog"])


@pytest.mark.parametrize(
    ("texts", "tags", "message"),
    [
        (TEXTS, TAGS[:2], "3 texts and labels for 2 texts"),
        ("red cat", TAGS, "give a list of texts"),
        ([1, "b", "c"], TAGS, "text 0 is of type int"),
        (TEXTS, [["a"], ["b;c"], "d;e"], "one string with ';' in it: 'd;e'; give sep=';'"),
        (TEXTS, [[1.5], [], []], "a label of point 0 is 1.5"),
        (TEXTS, [[True], [], []], "a label of point 0 is True"),
        (TEXTS, None, "texts without labels"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_remedy(texts, tags, message):
    with pytest.raises(BadArgument, match=message):
        lt.fit("knn", texts, tags)


def test_strings_are_cut_only_where_a_separator_is_given():
    train = from_rows({"train": (TEXTS, ["cat; red", "dog", None])}, sep=";").train
    assert labels_of(train) == [["cat", "red"], ["dog"], []]
    assert labels_of(from_rows({"train": (["a"], ["x|y"])}, sep="").train) == [["x|y"]]


@pytest.mark.parametrize("kind", ["pandas", "dict"])
def test_a_frame_is_a_data_set(kind):
    columns = {
        "title": ["red cat", None, "old dog"], "body": ["in the garden", "a fox", float("nan")],
        "tags": ["cat|red", float("nan"), "dog"], "part": ["train", "test", "train"],
    }  # fmt: skip
    frame = pytest.importorskip("pandas").DataFrame(columns) if kind == "pandas" else columns
    data = lt.Dataset.from_frame(frame, text=["title", "body"], labels="tags", sep="|", split="part", name="pets")
    assert data.train.texts.tolist() == ["red cat in the garden", "old dog"]
    assert labels_of(data.train) == [["cat", "red"], ["dog"]]
    assert data.test.texts.tolist() == ["a fox"] and labels_of(data.test) == [[]]
    assert data.name == "pets"
    with pytest.raises(DataError, match="no column 'tag'; it has: title, body, tags, part"):
        lt.Dataset.from_frame(frame, text="title", labels="tag")


def test_fit_evaluate_and_compare_take_what_is_at_hand():
    data = from_rows({"train": (TEXTS * 10, TAGS * 10), "test": (TEXTS, TAGS)})
    one, two = lt.fit("knn", data), lt.fit("knn", TEXTS * 10, TAGS * 10)
    assert one.predict(TEXTS, 2).labels.tolist() == two.predict(TEXTS, 2).labels.tolist()
    assert lt.evaluate(one, data).values == lt.evaluate(one, data.test).values
    with pytest.raises(BadArgument, match="leave them out"):
        lt.fit("knn", data, TAGS)
    compared = lt.compare({"one": one, "two": two}, data)
    assert [row[0] for row in compared.rows()] == ["one", "two"]
    assert compared.pairs[0].metrics[0].difference == 0
    with pytest.raises(BadArgument, match="no models"):
        lt.compare({}, data)


def test_a_model_predicts_and_explains_like_an_index(tmp_path):
    model = lt.fit("knn", TEXTS * 200, TAGS * 200)
    model.save(tmp_path / "run")
    index = lt.Index.load(tmp_path / "run")
    for options in ({}, {"threshold": 0.5}, {"allow": [1, 2]}, {"deny": [0]}, {"probabilities": True}):
        theirs, ours = index.predict(TEXTS, 2, **options), model.predict(TEXTS, 2, **options)
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-6)
    assert model.explain("red cat", 0) == index.explain("red cat", 0)
    with pytest.raises(DataError, match="there is no label 9"):
        model.explain("red cat", 9)


def test_notebooks_show_tables_in_which_nothing_is_markup(tmp_path):
    pd = pytest.importorskip("pandas")
    tags = [["<script>"], ["dog & co"], ["<script>"]]
    data = from_rows({"train": (TEXTS * 10, tags * 10), "test": (TEXTS, tags)}, name="<b>")
    model = lt.fit("knn", data)
    top = model.predict(TEXTS, 2)
    shown = [value._repr_html_() for value in (data, top, lt.evaluate(model, data), lt.compare({"<i>": model}, data))]
    for html in shown:
        assert html.startswith("<table>") and "<script>" not in html and "<b>" not in html and "<i>" not in html
    assert "&lt;script&gt;" in shown[1] and "&lt;b&gt;" in shown[0] and "&lt;i&gt;" in shown[3]
    frame = top.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame.columns.tolist() == ["point", "rank", "label", "text", "score"]
    assert len(frame) == (top.labels >= 0).sum() and frame.text[0] == "<script>"


def test_no_error_of_the_library_names_a_flag(tmp_path):
    model = lt.fit("knn", TEXTS, TAGS)
    model.save(tmp_path / "run")
    with pytest.raises(DataError) as error:
        model.save(tmp_path / "run")
    assert "--" not in str(error.value) and "force=True" in str(error.value)


@pytest.mark.parametrize("gap", [None, float("nan"), np.float32("nan"), pd.NA])
def test_numbers_with_a_gap_are_whole_numbers(gap):
    data = lt.from_rows({"train": (["a", "b", "c"], [1.0, gap, [np.float32(2), gap]])})
    assert data.labels.texts.tolist() == ["1", "2"]
    assert data.train.targets.toarray().tolist() == [[1, 0], [0, 0], [0, 1]]


def test_a_column_of_whole_numbers_may_have_gaps():
    column = pd.Series([1, None, 3])
    for tags in (column, column.astype("Int64")):
        data = lt.Dataset.from_frame(pd.DataFrame({"text": ["a", "b", "c"], "tags": tags}), labels="tags")
        assert data.labels.texts.tolist() == ["1", "3"]


def test_other_numbers_are_no_labels():
    with pytest.raises(BadArgument, match=r"a label of point 0 is 1\.5, of type float; give names or whole numbers"):
        lt.from_rows({"train": (["a"], [1.5])})


@pytest.mark.parametrize("tags", [[7, None, 3], [[7.0], [], [3.0, float("nan")]], [7.0, float("nan"), 3.0]])
def test_a_table_of_whole_numbers_may_have_gaps(tmp_path, tags):
    frame = pd.DataFrame({"text": ["red cat", "old dog", "wild fox"], "tags": tags})
    frame.to_parquet(tmp_path / "fl.parquet")
    data = lt.load(tmp_path / "fl.parquet")
    assert data.labels.texts.tolist() == ["3", "7"]
    assert data.train.targets.toarray().tolist() == [[0, 1], [0, 0], [1, 0]]
