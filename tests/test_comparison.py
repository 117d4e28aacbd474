from __future__ import annotations

import numpy as np
import pytest

from longtail.comparison import changed_labels, changed_points, gains, intervals, paired
from longtail.metrics import ndcg, precision, psndcg, psp, recall
from longtail.types import TopK, label_matrix


def random_case(points=200, labels=30, seed=0):
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 8, points)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    targets = label_matrix(starts, random.integers(0, labels, starts[-1]), (points, labels))
    tops = []
    for _ in range(2):
        rows = np.argsort(random.random((points, labels)), 1)[:, :5].astype(np.int32)
        rows[random.random(rows.shape) < 0.1] = -1
        tops.append(TopK(rows, np.zeros(rows.shape, np.float32)))
    return tops, targets, 1 + 5 * random.random(labels)


def test_sums_are_the_metrics_themselves():
    (first, second), targets, inverse = random_case()
    for top in (first, second):
        per_point = gains(top, targets, inverse, 5)
        assert per_point.hits.sum() / (5 * len(top)) == pytest.approx(precision(top.labels, targets)[5])
        assert per_point.gains.sum() / per_point.best.sum() == pytest.approx(psp(top.labels, targets, inverse)[5])
    one, five = paired(first, second, targets, inverse, draws=50)
    assert one.first == pytest.approx(100 * precision(first.labels, targets)[1])
    assert five.second == pytest.approx(100 * psp(second.labels, targets, inverse)[5])
    assert one.low <= one.difference <= one.high


def test_intervals_surround_the_metrics_and_are_as_wide_as_a_bootstrap_finds():
    (top, _), targets, inverse = random_case(points=2000)
    found, random = intervals(top, targets, inverse, (1, 3, 5)), np.random.default_rng(0)
    metrics = {
        "P": precision, "nDCG": ndcg, "R": recall,
        "PSP": lambda labels, truth: psp(labels, truth, inverse),
        "PSnDCG": lambda labels, truth: psndcg(labels, truth, inverse),
    }  # fmt: skip
    assert set(found) == {f"{name}@{k}" for name in metrics for k in (1, 3, 5)}
    draws = [random.integers(0, 2000, 2000) for _ in range(200)]
    for name, metric in metrics.items():
        values, drawn = metric(top.labels, targets), [metric(top.labels[rows], targets[rows]) for rows in draws]
        for k, value in values.items():
            low, high = found[f"{name}@{k}"]
            assert (low + high) / 2 == pytest.approx(100 * value, abs=1e-4)
            spread = 1.96 * 100 * np.std([one[k] for one in drawn])
            assert (high - low) / 2 == pytest.approx(spread, rel=0.2)


def test_predictions_fewer_than_k_have_intervals_too():
    (top, _), targets, inverse = random_case()
    short = TopK(top.labels[:, :2], top.scores[:, :2])
    low, high = intervals(short, targets, inverse, (1, 5))["nDCG@5"]
    padded = np.pad(short.labels, ((0, 0), (0, 3)), constant_values=-1)
    assert (low + high) / 2 == pytest.approx(100 * ndcg(padded, targets)[5])


def test_the_interval_is_that_of_a_mean_of_differences():
    (first, second), targets, inverse = random_case(points=2000)
    one, _ = paired(first, second, targets, inverse)
    each = 100 * (gains(second, targets, inverse, 1).hits - gains(first, targets, inverse, 1).hits)
    half_width = 1.96 * each.std() / np.sqrt(len(each))
    assert one.low == pytest.approx(one.difference - half_width, abs=0.15 * half_width)
    assert one.high == pytest.approx(one.difference + half_width, abs=0.15 * half_width)


def test_equal_models_do_not_differ_and_nothing_gives_nothing():
    (first, _), targets, inverse = random_case()
    assert all(not entry.certain and entry.low == entry.high == 0 for entry in paired(first, first, targets, inverse))
    assert changed_labels(first, first, targets) == ([], [])
    none = TopK(np.zeros((0, 5), np.int32), np.zeros((0, 5), np.float32))
    assert paired(none, none, targets[:0], inverse) == []


def test_what_got_better_and_worse():
    targets = label_matrix(np.array([0, 2, 3, 4]), np.array([0, 1, 1, 2]), (3, 3))
    first = TopK(np.array([[2, 2], [1, 0], [2, 0]], np.int32), np.zeros((3, 2), np.float32))
    second = TopK(np.array([[0, 1], [1, 0], [0, 1]], np.int32), np.zeros((3, 2), np.float32))
    better, worse = changed_points(first, second, targets)
    assert [(entry.place, entry.first, entry.second, entry.of) for entry in better] == [(0, 0, 2, 2)]
    assert [(entry.place, entry.first, entry.second, entry.of) for entry in worse] == [(2, 1, 0, 1)]
    better, worse = changed_labels(first, second, targets, most=1)
    assert [(entry.place, entry.first, entry.second, entry.of) for entry in better] == [(0, 0, 1, 1)]
    assert [entry.place for entry in worse] == [2]
