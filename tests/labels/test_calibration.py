"""Twins, leave-one-out counts, and whether calibration notices a broken postulate."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import shared_data
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.augment.gandalf import Gandalf
from longtail.data.dataset import Dataset, Split, from_rows
from longtail.data.formats import load
from longtail.errors import DataError, RecipeError
from longtail.labels import calibration as module
from longtail.labels.calibration import Calibration, calibrate, calibration_of, candidates, twins
from longtail.labels.graph import conditionals
from longtail.pipeline import fit
from longtail.recipe import find_recipe, part_of
from longtail.types import Texts, label_matrix

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox"]
ROWS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.lists(st.integers(0, 5), max_size=4, unique=True)), min_size=1, max_size=14
)


def small(rows: list[tuple[str, list[int]]]) -> Split:
    texts, labels = zip(*rows, strict=True)
    return from_rows({"train": (texts, labels)}, label_texts=NAMES).train


def permuted(train: Split, share: float, seed: int = 0) -> Split:
    """Break the postulate: permute the texts of a share of the labels."""
    random = np.random.default_rng(seed)
    order = np.arange(len(train.labels))
    moved = random.permutation(len(order))[: round(share * len(order))]
    order[moved] = random.permutation(moved)
    return replace(train, labels=replace(train.labels, texts=train.labels.texts.take(order)))


@settings(deadline=None)
@given(ROWS)
def test_counts_are_those_of_the_matrix_without_the_twin(rows):
    train = small(rows)
    matches = twins(train)
    assert all(train.texts[i] == train.labels.texts[j] for j, i in zip(matches.labels, matches.points, strict=True))
    pairs = candidates(train, matches)
    given_labels = train.targets.toarray() > 0
    expected = []
    for j, i in zip(matches.labels, matches.points, strict=True):
        rest = np.delete(given_labels, i, axis=0)
        for other in range(6):
            together = (rest[:, j] & rest[:, other]).sum()
            if other != j and together:
                expected.append((j, together, rest[:, j].sum(), rest[:, other].sum(), given_labels[i, other]))
    ours = zip(pairs.labels, *pairs.counts, pairs.outcomes, strict=True)
    assert sorted(expected) == sorted(tuple(map(int, row)) for row in ours)


def test_excluded_pairs_say_nothing():
    train = small([("ant", [1]), ("x", [0, 1, 2])])
    pairs = candidates(train, twins(train))
    assert len(pairs.outcomes) == 2
    barred = label_matrix(np.array([0, 1, 1]), np.array([2]), (2, 6))
    assert candidates(replace(train, excluded=barred), twins(train)).outcomes.tolist() == [1]


def test_twins_ignore_case_blanks_and_punctuation_and_blank_texts():
    texts = ["Ant!", " bee", "", "ANT", "ｃａｔ", "ant_", "anthill"]
    labels = ["ant", "Bee?", "", "cat"]
    train = from_rows({"train": (texts, [[]] * 7)}, label_texts=labels).train
    matches = twins(train)
    assert list(zip(matches.labels.tolist(), matches.points.tolist(), strict=True)) == [
        (0, 0),
        (0, 3),
        (0, 5),
        (1, 1),
        (3, 4),
    ]
    assert len(twins(replace(train, texts=None)).labels) == 0


def test_one_label_has_at_most_five_twins():
    train = small([("ant", [0, 1])] * 50)
    assert len(twins(train).labels) == module.POINTS_PER_LABEL


def test_work_is_bounded_by_leaving_twins_out(monkeypatch):
    train = small([(name, [0, 1, 2]) for name in NAMES] * 5)
    whole = candidates(train, twins(train))
    monkeypatch.setattr(module, "WORK", 400)
    some = candidates(train, twins(train))
    assert 0 < len(some.outcomes) < len(whole.outcomes)


def test_too_few_twins_shrink_by_counts_and_say_so():
    train = small([("ant", [0, 1]), ("x", [0, 1]), ("y", [2, 3])])
    calibration = calibrate(train)
    assert calibration.method == "shrunk"
    assert calibration.verdict == "unknown"
    assert "shrunk by counts" in calibration.advice
    soft = calibration.apply(train.targets, threshold=0.1).toarray()
    assert soft[0, 1] == pytest.approx((2 + 2 / 3) / 3)
    assert soft[2, 3] == pytest.approx((1 + 1 / 3) / 2)
    assert (np.diag(soft) == 1).all()


def synthetic(labels: int = 400, *, seed: int = 0) -> Split:
    """Make groups of eight labels; the point that is named like a label has each other label of the group with 0.5."""
    random = np.random.default_rng(seed)
    texts, rows = [], []
    for label in range(labels):
        group = np.arange(label // 8 * 8, label // 8 * 8 + 8)
        for copy in range(4):
            texts.append(f"label {label}" if copy == 0 else f"another {label} {copy}")
            rows.append([int(other) for other in group if random.random() < 0.5])
    return from_rows({"train": (texts, rows)}, label_texts=[f"label {n}" for n in range(labels)]).train


def test_a_known_probability_is_found():
    train = synthetic()
    calibration = calibrate(train)
    assert calibration.method in ("isotonic", "logistic")
    assert calibration.twins == 400
    assert abs(calibration.base_rate - 0.5) < 0.03
    assert calibration.log_loss_calibrated < calibration.log_loss_plain
    soft = calibration.apply(train.targets, threshold=0)
    others = soft.data[np.repeat(np.arange(400), np.diff(soft.indptr)) != soft.indices]
    assert abs(others.mean() - 0.5) < 0.05  # whatever the conditional, the truth is one half


def test_it_is_deterministic_and_travels_as_json():
    train = synthetic()
    first, second = calibrate(train, seed=3), calibrate(train, seed=3)
    assert first == second
    restored = calibration_of(json.loads(json.dumps(first.to_dict())))
    assert restored == first
    assert (restored.apply(train.targets) != first.apply(train.targets)).nnz == 0
    with pytest.raises(DataError, match="not a calibration"):
        calibration_of({"curve": {"curve": "shrunk"}})


def test_values_are_above_the_threshold_and_self_edges_are_one():
    train = synthetic()
    soft = calibrate(train).apply(train.targets, threshold=0.3)
    assert soft.data.min() > 0.3
    assert (soft.diagonal() == 1).all()
    assert soft.dtype == np.float32


def test_gandalf_calibrates_and_the_recipe_keeps_what_was_fitted():
    train = synthetic()
    fitted_part = Gandalf(calibrate=True).fit(train)
    assert fitted_part.fitted["method"] in ("isotonic", "logistic")
    assert part_of(json.loads(json.dumps(fitted_part.dump()))) == fitted_part
    np.testing.assert_array_equal(fitted_part.rows(train).toarray(), Gandalf(calibrate=True).rows(train).toarray())
    model = fit(find_recipe("knn+gandalf").override("augment.0.calibrate", True), train)
    assert model.recipe.augment[0].fitted["twins"] == 400
    with pytest.raises(RecipeError, match="calibrate works with graph=conditionals"):
        Gandalf(calibrate=True, graph="walk")


@pytest.fixture(scope="module", params=["LF-MDNSeeAlsoTitles-6K", "LF-MSDocsSeeAlsoTitles-87K"])
def real(request) -> tuple[Dataset, Calibration]:
    data = load(shared_data(request.param))
    return data, calibrate(data.train)


def off(fitted: Calibration, which: str) -> float:
    """Return the mean distance between what is predicted and what is observed."""
    return sum(row.count * abs(row.predicted - row.observed) for row in fitted.reliability[which]) / fitted.pairs


def test_held_out_loss_and_reliability_are_better_than_plain(real):
    _, calibration = real
    assert calibration.verdict == "helps"
    assert calibration.log_loss_calibrated < 0.66 * calibration.log_loss_plain
    assert calibration.log_loss_calibrated <= calibration.losses["shrunk"]
    assert calibration.briers["calibrated"] < calibration.briers["plain"]
    assert off(calibration, "calibrated") < 0.02 < 0.1 < off(calibration, "plain")
    exactly = next(row for row in calibration.reliability["plain"] if row.low == 1)
    assert 0.4 < exactly.observed < 0.6


def test_a_broken_postulate_is_noticed(real):
    data, whole = real
    some, none = (calibrate(permuted(data.train, share)) for share in (0.3, 1.0))
    assert (some.verdict, none.verdict) == ("careful", "do not")
    assert none.real < 0.02 < some.real < 0.8 * whole.real
    graph = conditionals(data.train.targets)
    strong = graph.data > 0.5
    strong[np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr)) == graph.indices] = False

    def mean_of(calibration: Calibration) -> float:
        """Return the mean fitted value of the pairs that plain Gandalf believes in, 0 where dropped."""
        fitted = calibration.apply(data.train.targets, threshold=0.0)
        believed = sp.csr_array((strong.astype(np.float32), graph.indices, graph.indptr), shape=graph.shape)
        return float(fitted.multiply(believed).sum() / strong.sum())

    values = [mean_of(calibration) for calibration in (whole, some, none)]
    assert values[0] > 1.2 * values[1] > 10 * values[2]
    assert abs(values[2] - none.base_rate) < 0.02  # nothing but the base rate is left
    assert none.apply(data.train.targets).nnz < 1.02 * len(data.labels)  # self edges only


def test_texts_that_are_no_twins_are_left_alone():
    data = load(shared_data("CVELibraries-4K"))
    calibration = calibrate(data.train)
    assert calibration.method == "shrunk"
    assert calibration.apply(data.train.targets).nnz <= conditionals(data.train.targets, threshold=0.025).nnz


def test_labels_that_share_one_text_are_one_piece_of_evidence():
    random = np.random.default_rng(0)
    rows = [random.choice(80, 6, replace=False).tolist() for _ in range(200)]
    names = ["Overview"] * 80
    train = from_rows({"train": (["overview"] * 5 + ["other"] * 195, rows)}, label_texts=names).train
    assert len(candidates(train, twins(train)).outcomes) > module.FEWEST_PAIRS
    calibration = calibrate(train)
    assert calibration.method == "shrunk"
    assert calibration.twins == 80
    assert Gandalf(calibrate=True).augment(train, seed=0).targets.nnz > 0


def test_one_fold_alone_is_not_fitted(monkeypatch):
    monkeypatch.setattr(module, "FOLDS", 1)
    assert calibrate(synthetic()).method == "shrunk"


def test_texts_may_be_absent():
    train = replace(small([("ant", [0])]), texts=None)
    assert calibrate(train).method == "shrunk"
    assert calibrate(replace(small([("ant", [0])]), texts=Texts(["zebra"]))).twins == 0
