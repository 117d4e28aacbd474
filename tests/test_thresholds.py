"""Thresholds that held-out points tune: by brute force, with a model, over HTTP's index, and with the estimator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import longtail as lt
from longtail.data.dataset import from_rows
from longtail.errors import DataError, ModelError
from longtail.files import read_arrays, write_arrays
from longtail.folder import read_config, write_config
from longtail.index import Index
from longtail.probabilities import Evidence
from longtail.thresholds import FEW, FILE, LEAST, Decision, HeldOut, best_f1, reached
from longtail.types import TopK, label_matrix

pairs = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.7, 0.9]), st.booleans()), min_size=1, max_size=30)


@given(pairs, st.integers(0, 5))
def test_no_other_threshold_has_a_better_f1(entries, missed):
    scores = np.array([score for score, _ in entries], np.float32)
    hits = np.array([hit for _, hit in entries])
    positives = int(hits.sum()) + missed

    def f1(threshold: float) -> float:
        said = scores >= threshold
        return 2 * hits[said].sum() / max(1, said.sum() + positives)

    assert f1(best_f1(scores, hits, positives)) == pytest.approx(max(f1(threshold) for threshold in scores))


@given(pairs, st.sampled_from([0.2, 0.5, 0.9, 1.0]))
def test_a_wanted_precision_is_reached_by_as_many_predictions_as_possible(entries, wanted):
    scores = np.array([score for score, _ in entries], np.float32)
    hits = np.array([hit for _, hit in entries])
    sizes = [int((scores >= t).sum()) for t in scores if hits[scores >= t].mean() >= wanted]
    assert int((scores >= reached(scores, hits, wanted)).sum()) == max(sizes, default=0)


def test_bins_and_labels_have_their_own_where_they_have_points_enough():
    draw = np.random.default_rng(0)
    frequencies = np.array([1000, 400, 300, 60, 50, 40, 30, 20, 2, 1])
    labels = np.repeat(np.arange(10, dtype=np.int32), 100)
    scores = draw.random(1000).astype(np.float32)
    hits = scores > np.array([0.2, *[0.5] * 7, 0.8, 0.8])[labels]
    positives = np.where(np.arange(10) < 8, 100, FEW - 1)
    held = HeldOut(scores, labels, hits, positives)
    one = held.thresholds(Decision("global"), frequencies)
    assert len(set(one.tolist())) == 1
    bins = held.thresholds(Decision("bins"), frequencies)
    assert bins[0] == pytest.approx(0.2, abs=0.05) and bins[2] == bins[9] == pytest.approx(0.5, abs=0.05)
    each = held.thresholds(Decision("labels"), np.append(frequencies, 0))  # a new label is of the tail
    assert len(each) == 11 and each[10] == each[8] == each[9] == bins[9]
    assert each[2] != each[3]
    assert held.thresholds(Decision("global", 1.0), frequencies)[0] > one[0]


@pytest.mark.parametrize("text", ["bin", "global:0", "bins:1.5", "labels:high", "labels:", ""])
def test_what_is_no_decision_is_refused(text):
    with pytest.raises(DataError):
        Decision.parse(text)


@pytest.fixture(scope="module")
def points():
    """One word tells the label, but for a tenth of the points; another word says nothing."""
    draw = np.random.default_rng(1)
    kinds, words = draw.integers(0, 12, (2, 600))
    texts = [f"word{kind} fog{word}" for kind, word in zip(kinds, words, strict=True)]
    kinds = np.where(draw.random(600) < 0.1, draw.integers(0, 12, 600), kinds)
    return from_rows({"train": (texts, [[f"label {kind}"] for kind in kinds])})


@pytest.fixture(scope="module")
def run(points, tmp_path_factory):
    folder = tmp_path_factory.mktemp("thresholds") / "run"
    lt.fit("knn", points).save(folder)
    return folder


@pytest.mark.parametrize("decide", ["global", "bins", "labels", "global:0.7"])
def test_a_model_and_an_index_say_only_what_they_are_sure_of(points, run, decide):
    model, index = lt.Model.load(run), Index.load(run)
    texts = points.train.texts.tolist()[:200]
    sure, all_labels = model.predict(texts, 5, threshold=decide), model.predict(texts, 5)
    assert (sure.labels >= 0).sum() < (all_labels.labels >= 0).sum()
    said = sure.labels >= 0
    hits = sum(label in points.train.targets[[row]].indices for row in range(200) for label, _, _ in sure[row])
    assert hits / said.sum() > 0.8
    np.testing.assert_array_equal(index.predict(texts, 5, threshold=decide).labels, sure.labels)
    shown = index.predict(texts, 5, threshold=decide, probabilities=True)
    np.testing.assert_array_equal(shown.labels, sure.labels)  # by scores, whatever is shown
    index.add(["zorblax"])
    assert index.predict(["word3"], 5, threshold=decide).labels[0, 0] >= 0
    index.undo()


def test_too_few_right_predictions_are_counted_and_so_are_those_needed(tmp_path):
    lt.fit("knn", ["red cat", "old dog"] * 20, [["cat"], ["dog"]] * 20).save(tmp_path / "run")
    few = lt.Model.load(tmp_path / "run")
    assert few.held_out is None and few.evidence.right < LEAST
    held = f"{few.evidence.points} points were held out in training, with "
    with pytest.raises(DataError) as error:
        few.predict(["cat"], threshold="bins")
    assert f"{held}{few.evidence.right} right predictions, and {LEAST} are needed" in str(error.value)
    assert "more points" in str(error.value) and "knn, frugal" not in str(error.value)
    with pytest.raises(DataError, match=f"{held}{few.evidence.predictions} predictions, and 50 are needed"):
        few.predict(["cat"], probabilities=True)
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"none were calibrated: {held}{few.evidence.predictions} predictions, and 50 are needed." in card


@pytest.mark.parametrize("counts", [{"points": -1}, {"right": "many"}, {"other": 1}])
def test_counts_that_no_training_wrote_are_damage(counts, tmp_path):
    lt.fit("knn", ["red cat", "old dog"], [["cat"], ["dog"]]).save(tmp_path / "run")
    config = read_config(tmp_path / "run")
    write_config(tmp_path / "run", {**config, "evidence": counts})
    with pytest.raises(ModelError, match="damaged"):
        lt.Model.load(tmp_path / "run")


def test_what_was_not_held_out_tunes_nothing(run, points):
    few = lt.fit("knn", ["red cat", "old dog"], [["cat"], ["dog"]])
    with pytest.raises(DataError, match="no points were held out in training: no thresholds can be tuned; give a"):
        few.predict(["cat"], threshold="bins")
    older = replace(few, evidence=Evidence())  # which did not say how many
    with pytest.raises(DataError, match="no points, or too few, were held out"):
        older.predict(["cat"], threshold="bins")
    with pytest.raises(DataError, match="did you mean 'bins'"):
        lt.Model.load(run).predict(["cat"], threshold="bin")
    top = TopK(np.zeros((LEAST - 1, 1), np.int32), np.zeros((LEAST - 1, 1), np.float32))
    ones = label_matrix(np.arange(LEAST), np.zeros(LEAST - 1, int), (LEAST - 1, 2))
    assert HeldOut.of(top, ones) is None


def test_damaged_predictions_are_refused(run, tmp_path):
    arrays = {name: np.array(array) for name, array in read_arrays(run / FILE).items()}
    for name, value in (("labels", np.full_like(arrays["labels"], 99)), ("hits", arrays["hits"][:-1])):
        write_arrays(tmp_path / FILE, arrays | {name: value})
        with pytest.raises(ModelError, match="does not fit"):
            HeldOut.load(tmp_path, 12)
    with pytest.raises(ModelError, match="does not fit"):
        HeldOut.load(run, 13)


def test_the_estimator_decides_by_tuned_thresholds(points):
    texts = points.train.texts.tolist()
    names, targets = points.labels.texts, points.train.targets
    labels = [[names[label] for label in targets[[row]].indices] for row in range(len(texts))]
    tuned = lt.LongtailClassifier("knn", threshold="bins").fit(texts, labels)
    every = lt.LongtailClassifier("knn").fit(texts, labels)
    assert 0 < tuned.predict(texts).nnz < every.predict(texts).nnz
