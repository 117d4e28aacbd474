"""LongtailClassifier as scikit-learn's users know estimators."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_array, validate_data

from longtail import DataError, LongtailClassifier, find_recipe

COLOURS, ANIMALS = ("red", "old", "wild", "small", "blue", "grey", "odd", "wet"), ("cat", "dog", "fox")
TEXTS = [f"{colour} {animal}" for colour in COLOURS for animal in ANIMALS]
NAMES = [[animal, colour] for colour in COLOURS for animal in ANIMALS]
MATRIX = sp.csr_array(np.tile(np.eye(3), (len(COLOURS), 1)))


class Worded(LongtailClassifier):
    """Make texts of rows of numbers and lists of single labels, so that scikit-learn's own checks can try it."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = True, False
        return tags

    def _words(self, rows, reset=False):
        rows = validate_data(self, rows, reset=reset)
        return [" ".join(f"w{place}x{round(value)}" for place, value in enumerate(row)) for row in rows]

    @staticmethod
    def _names(y):
        y = y if y is None else check_array(y, ensure_2d=False, dtype=None)
        return y if y is None or (y.ndim == 2 and y.shape[1] > 1) else [[name] for name in y.ravel().tolist()]

    def fit(self, X, y=None):  # noqa: N803
        return super().fit(self._words(X, reset=True), self._names(y))

    def predict(self, X):  # noqa: N803
        return super().predict(self._words(X))

    def predict_proba(self, X):  # noqa: N803
        return super().predict_proba(self._words(X))

    def score(self, X, y):  # noqa: N803
        return super().score(self._words(X), self._names(y))


SEVERAL = "predict returns a matrix of several labels, not one class for each point"
SPARSE = "results are sparse: a dense row of a million labels would not do"
EXPECTED = {
    "check_classifier_data_not_an_array": SEVERAL,
    "check_classifiers_one_label": SEVERAL,
    "check_classifiers_train": SEVERAL,
    "check_classifiers_regression_target": "labels may be any names, also numbers",
    "check_classifier_not_supporting_multiclass": SEVERAL,
    "check_classifier_multioutput": SPARSE,
    "check_classifiers_multilabel_representation_invariance": SPARSE,
    "check_classifiers_multilabel_output_format_predict": SPARSE,
    "check_classifiers_multilabel_output_format_predict_proba": SPARSE,
}


@parametrize_with_checks([Worded("knn")], expected_failed_checks=lambda _: EXPECTED, xfail_strict=True)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_lists_of_names():
    model = LongtailClassifier("knn", top=2).fit(TEXTS, NAMES)
    assert model.classes_.tolist() == sorted({*COLOURS, *ANIMALS})
    indicators = model.predict(["a wild fox"])
    assert isinstance(indicators, sp.csr_array) and indicators.shape == (1, 11) and indicators.dtype == np.int64
    assert set(model.classes_[indicators.indices]) == {"wild", "fox"}
    probabilities = model.predict_proba(["a wild fox", "unseen"])
    assert probabilities.shape == (2, 11) and probabilities.data.min() >= 0 and probabilities.data.max() <= 1
    assert probabilities[[1]].nnz == 0
    assert model.score(TEXTS, NAMES) == 1
    assert model.score(["a wild fox"], [["never seen"]]) == 0


def test_matrices_of_all_kinds_say_the_same():
    answers = []
    for y in (MATRIX, sp.csr_matrix(MATRIX), MATRIX.toarray(), MATRIX.toarray().astype(bool), MATRIX.tocsc()):
        model = LongtailClassifier("knn", top=1, label_texts=ANIMALS).fit(np.array(TEXTS), y)
        answers.append(model.predict(pd.Series(["my dog", "my fox"])).toarray().tolist())
        assert model.score(TEXTS, y) == 1
    assert answers == [[[0, 1, 0], [0, 0, 1]]] * 5
    assert model.classes_.tolist() == [0, 1, 2]
    assert LongtailClassifier("knn").fit(TEXTS, MATRIX).predict(["cat"]).shape == (1, 3)
    table = pd.DataFrame({"text": TEXTS})
    assert LongtailClassifier("knn", top=1).fit(table, MATRIX).predict(table).sum() == len(TEXTS)


def test_label_texts_find_labels_that_no_point_has():
    texts = {"c": "cat", "d": "dog", "o": "purple octopus"}
    model = LongtailClassifier("knn", top=1).fit(["red cat", "old dog"], [["c"], ["d"]], label_texts=texts)
    assert model.classes_[model.predict(["an octopus"]).indices].tolist() == ["o"]
    with pytest.raises(DataError, match="'d' has no text"):
        LongtailClassifier("knn", label_texts={"c": "cat"}).fit(["red cat", "old dog"], [["c"], ["d"]])
    with pytest.raises(DataError, match="2 label texts for 3 labels"):
        LongtailClassifier("knn", label_texts=["a", "b"]).fit(TEXTS, MATRIX)


def test_threshold_and_probabilities():
    many, matrix = TEXTS * 60, sp.csr_array(np.tile(MATRIX.toarray(), (60, 1)))
    model = LongtailClassifier("knn", top=3, threshold=0.5).fit(many, matrix, label_texts=ANIMALS)
    assert model.model_.probabilities is not None
    probabilities = model.predict_proba(["my cat"])
    assert probabilities[0, 0] > 0.9
    assert model.predict(["my cat"]).indices.tolist() == [0]
    few = LongtailClassifier("knn", top=3).fit(TEXTS[:6], MATRIX[:6])
    assert few.model_.probabilities is None
    assert few.predict_proba(TEXTS).sum(1) == pytest.approx(1, abs=1e-5)


def test_settings_reach_the_recipe():
    recipe = find_recipe("knn+gandalf")
    model = LongtailClassifier(recipe, settings={"lexical.neighbours": 3, "augment.0.threshold": 0.3}, seed=4)
    fitted = clone(model).fit(TEXTS, NAMES).model_.recipe
    assert (fitted.seed, fitted.voices[0].neighbours, fitted.augment[0].threshold) == (4, 3, 0.3)
    assert model.get_params()["recipe"] is recipe
    assert is_classifier(model)


def test_pipelines_and_searches():
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    line = make_pipeline(lower, LongtailClassifier("knn", top=1, label_texts=ANIMALS))
    grid = {"longtailclassifier__settings": [{"lexical.neighbours": 1}, {"lexical.neighbours": 5}]}
    search = GridSearchCV(line, grid, cv=3, error_score="raise").fit([text.upper() for text in TEXTS], MATRIX)
    assert search.best_score_ == 1
    assert search.predict(["RED FOX"]).indices.tolist() == [2]
    scores = cross_val_score(LongtailClassifier("knn"), TEXTS, NAMES, cv=KFold(3, shuffle=True, random_state=0))
    assert scores.mean() > 0.8
    predicted = LongtailClassifier("knn", top=1, label_texts=ANIMALS).fit(TEXTS, MATRIX).predict(TEXTS)
    assert f1_score(MATRIX.toarray(), predicted.toarray(), average="micro") == 1


@pytest.mark.parametrize(
    ("texts", "y", "complaint"),
    [
        ("red cat", [["cat"]], "one text"),
        ([1, 2], [["a"], ["b"]], "1 is not a text"),
        (np.zeros((2, 3)), [["a"], ["b"]], "shape"),
        (["a"], None, "y is None"),
        (["a", "b"], [["a"]], "2 texts and labels for 1"),
        (["a", "b"], ["a", "b"], "neither a matrix nor lists"),
        (["a", "b"], [["a"], [3]], "several types"),
        (["a"], np.array([[2.0, 0.0]]), "outside"),
    ],
)
def test_bad_input_is_named(texts, y, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        LongtailClassifier("knn").fit(texts, y)
    assert isinstance(error.value, DataError)


def test_before_and_after_fit():
    model = LongtailClassifier("knn")
    with pytest.raises(NotFittedError):
        model.predict(["a"])
    copied = pickle.loads(pickle.dumps(model.fit(TEXTS, NAMES)))
    assert (copied.predict(TEXTS) != model.predict(TEXTS)).nnz == 0
    assert model.predict([]).shape == (0, 11)


def test_longtail_needs_no_scikit_learn_and_says_so_where_it_does():
    code = (
        "import sys; sys.modules['sklearn'] = None; import longtail as lt; lt.find_recipe('knn'); lt.LongtailClassifier"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'scikit-learn is not installed; run: pip install "longtail[sklearn]"' in done.stderr
