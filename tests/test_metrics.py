"""Every metric against a slow formula written from its definition, against napkinXC, and against its own properties."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from longtail import metrics
from longtail.labels.propensity import Propensity, bins, frequencies
from longtail.types import TopK, label_matrix, no_pairs

GOLDEN = Path(__file__).parent / "golden" / "napkinxc_metrics.json"
ALL_KS = (1, 2, 3, 4, 5)


def matrix(rows, width, values=None):
    indptr = np.cumsum([0, *map(len, rows)])
    return label_matrix(
        indptr, np.array([label for row in rows for label in row], np.int32), (len(rows), width), values
    )


def padded(rows, k):
    return np.array([(list(row) + [-1] * k)[:k] for row in rows], np.int32).reshape(len(rows), k)


def top_of(labels):
    return TopK(labels, np.zeros(labels.shape, np.float32))


@st.composite
def cases(draw):
    """Draw (predicted rows, true rows, number of labels, k): empty rows, repeats, few labels and many places."""
    width, k, points = draw(st.integers(1, 7)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    label = st.integers(0, width - 1)
    predicted = draw(st.lists(st.lists(label, max_size=k), min_size=points, max_size=points))
    truth = draw(st.lists(st.lists(label, unique=True).map(sorted), min_size=points, max_size=points))
    return predicted, truth, width, k


WEIGHTS = st.lists(st.floats(1, 50), min_size=7, max_size=7)


def first_hits(predicted, truth, k):
    """List (place from 1, label) of the relevant labels among the first k, each label once."""
    out, seen = [], set()
    for place, label in enumerate(predicted[:k], start=1):
        if label in truth and label not in seen:
            out.append((place, label))
        seen.add(label)
    return out


def slow_precision(predicted, truth, k):
    return sum(len(first_hits(p, t, k)) / k for p, t in zip(predicted, truth, strict=True)) / len(truth)


def slow_recall(predicted, truth, k):
    return sum(len(first_hits(p, t, k)) / max(1, len(t)) for p, t in zip(predicted, truth, strict=True)) / len(truth)


def slow_ndcg(predicted, truth, k):
    total = 0.0
    for p, t in zip(predicted, truth, strict=True):
        best = sum(1 / math.log2(place + 1) for place in range(1, min(k, len(t)) + 1))
        total += sum(1 / math.log2(place + 1) for place, _ in first_hits(p, t, k)) / best if t else 0
    return total / len(truth)


def slow_psp(predicted, truth, weights, k):
    above = sum(weights[label] for p, t in zip(predicted, truth, strict=True) for _, label in first_hits(p, t, k))
    below = sum(sum(sorted((weights[label] for label in t), reverse=True)[:k]) for t in truth)
    return above / below if below else 0


def slow_psndcg(predicted, truth, weights, k, variant):
    above = below = 0.0
    for p, t in zip(predicted, truth, strict=True):
        if not t:
            continue
        c_k, n_i = (sum(1 / math.log2(r + 1) for r in range(1, many + 1)) for many in (k, len(t)))
        norm = min(c_k, n_i) if variant == "pyxclib" else 1
        above += sum(weights[label] / math.log2(place + 1) for place, label in first_hits(p, t, k)) / norm
        best = sorted((weights[label] for label in t), reverse=True)[:k]
        below += sum(weight / math.log2(place + 1) for place, weight in enumerate(best, start=1)) / norm
    return above / below if below else 0


def slow_coverage(predicted, truth, k, total):
    values = {label for p, t in zip(predicted, truth, strict=True) for _, label in first_hits(p, t, k)}
    return len(values) / total if total else 0


@given(cases())
def test_precision_recall_ndcg(case):
    predicted, truth, width, k = case
    labels, targets, ks = padded(predicted, k), matrix(truth, width), range(1, k + 1)
    for fast, slow in [
        (metrics.precision, slow_precision),
        (metrics.recall, slow_recall),
        (metrics.ndcg, slow_ndcg),
    ]:
        assert fast(labels, targets, ks) == pytest.approx({k: slow(predicted, truth, k) for k in ks})


@given(cases(), WEIGHTS)
def test_propensity_scored(case, weights):
    predicted, truth, width, k = case
    labels, targets, ks, inverse = (
        padded(predicted, k),
        matrix(truth, width),
        range(1, k + 1),
        np.array(weights[:width]),
    )
    expected = {k: slow_psp(predicted, truth, weights, k) for k in ks}
    assert metrics.psp(labels, targets, inverse, ks) == pytest.approx(expected)
    for variant in ("pyxclib", "attentionxml"):
        expected = {k: slow_psndcg(predicted, truth, weights, k, variant) for k in ks}
        values = metrics.psndcg(labels, targets, inverse, ks, variant)
        assert values == pytest.approx(expected)
        assert values[1] == pytest.approx(metrics.psp(labels, targets, inverse, (1,))[1])


@given(cases())
def test_coverage(case):
    predicted, truth, width, k = case
    labels, targets, ks = padded(predicted, k), matrix(truth, width), range(1, k + 1)
    in_test = len({label for row in truth for label in row})
    for denominator, total in [("test", in_test), ("all", width)]:
        expected = {k: slow_coverage(predicted, truth, k, total) for k in ks}
        assert metrics.coverage(labels, targets, ks, denominator) == pytest.approx(expected)


@given(cases(), st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_bins_add_up_to_precision(case, numbers):
    predicted, truth, width, k = case
    labels, targets, ks, of_label = (
        padded(predicted, k),
        matrix(truth, width),
        range(1, k + 1),
        np.array(numbers[:width]),
    )
    values = metrics.bin_contributions(labels, targets, of_label, ks)
    total = metrics.precision(labels, targets, ks)
    for k in ks:
        hits = [label for p, t in zip(predicted, truth, strict=True) for _, label in first_hits(p, t, k)]
        expected = [sum(of_label[label] == n for label in hits) / (k * len(truth)) for n in range(max(of_label) + 1)]
        assert values[k].tolist() == pytest.approx(expected)
        assert values[k].sum() == pytest.approx(total[k])


@given(cases(), st.lists(st.integers(0, 20), min_size=7, max_size=7), st.integers(1, 5))
def test_evaluation_holds_every_metric_in_percent(case, counts, bin_count):
    predicted, truth, width, k = case
    targets, counts = matrix(truth, width), np.array(counts[:width])
    propensity = Propensity(0.6, 2.6)
    inverse = propensity.inverse(counts, 100)
    ks = (1, 3, 8)  # beyond the columns: evaluate pads
    labels = padded(predicted, 8)
    evaluation = metrics.evaluate(
        top_of(padded(predicted, k)),
        targets,
        train_frequencies=counts,
        train_points=100,
        propensity=propensity,
        ks=ks,
        bin_count=bin_count,
    )
    groups = {
        "P": metrics.precision(labels, targets, ks),
        "nDCG": metrics.ndcg(labels, targets, ks),
        "R": metrics.recall(labels, targets, ks),
        "PSP": metrics.psp(labels, targets, inverse, ks),
        "PSnDCG": metrics.psndcg(labels, targets, inverse, ks),
        "Cov": metrics.coverage(labels, targets, ks),
    }
    expected = {f"{metric}@{k}": 100 * value for metric, group in groups.items() for k, value in group.items()}
    assert list(evaluation.values) == list(expected)
    assert evaluation.values == pytest.approx(expected)
    assert evaluation.points == len(truth)
    of_label = bins(counts, bin_count)
    for number, part in enumerate(evaluation.bins):
        members = {label for label in range(width) if of_label[label] == number}
        own = [[label for label in row if label in members] for row in truth]
        positives = sum(map(len, own))
        hits = {k: sum(len(first_hits(p, t, k)) for p, t in zip(predicted, own, strict=True)) for k in ks}
        assert (part.labels, part.positives) == (len(members), positives)
        assert part.frequency == pytest.approx(sum(counts[label] for label in members) / max(1, len(members)))
        assert part.contribution == pytest.approx({k: 100 * hits[k] / (k * len(truth)) for k in ks})
        assert part.recall == pytest.approx({k: 100 * hits[k] / max(1, positives) for k in ks})


@given(st.integers(0, 2**31))
def test_perfect_predictions(seed):
    generator = np.random.default_rng(seed)
    weights = generator.uniform(1, 9, 12)
    truth = [generator.choice(12, generator.integers(1, 8), replace=False) for _ in range(20)]
    predicted = padded([sorted(row, key=lambda label: -weights[label]) for row in truth], 5)
    targets, ones = matrix([sorted(row) for row in truth], 12), pytest.approx(dict.fromkeys(ALL_KS, 1.0))
    assert metrics.ndcg(predicted, targets, ALL_KS) == ones
    assert metrics.psp(predicted, targets, weights, ALL_KS) == ones
    assert metrics.psndcg(predicted, targets, weights, ALL_KS) == ones
    assert metrics.psndcg(predicted, targets, weights, ALL_KS, "attentionxml") == ones
    # precision is 1 only where every point has at least k labels, recall only where none has more
    sizes = np.array([len(row) for row in truth])
    expected = {k: float(np.minimum(sizes, k).mean() / k) for k in ALL_KS}
    assert metrics.precision(predicted, targets, ALL_KS) == pytest.approx(expected)
    expected = {k: float((np.minimum(sizes, k) / sizes).mean()) for k in ALL_KS}
    assert metrics.recall(predicted, targets, ALL_KS) == pytest.approx(expected)


def random_case(points, width, seed=0):
    generator = np.random.default_rng(seed)
    targets = sp.random_array((points, width), density=0.2, rng=generator, format="csr", dtype=np.float32)
    labels = np.argsort(generator.random((points, width)), axis=1)[:, :5].astype(np.int32)
    return labels, label_matrix(targets.indptr, targets.indices, (points, width))


def test_order_of_points_does_not_matter():
    labels, targets = random_case(300, 15)
    order = np.random.default_rng(1).permutation(300)
    settings = {"train_frequencies": frequencies(targets), "train_points": 300}
    there = metrics.evaluate(top_of(labels), targets, **settings)
    here = metrics.evaluate(top_of(labels[order]), targets[order], **settings)
    assert here.values == pytest.approx(there.values)


def test_the_seams_of_the_blockwise_sort():
    labels, targets = random_case(6000, 30)
    weights = np.random.default_rng(1).permutation(30) + 1.0
    truth = [row.tolist() for row in np.split(targets.indices, targets.indptr[1:-1])]
    for k in (1, 5):
        expected = slow_psndcg(labels.tolist(), truth, weights, k, "pyxclib")
        assert metrics.psndcg(labels, targets, weights, (k,))[k] == pytest.approx(expected, rel=1e-12)


def test_agrees_with_napkinxc():
    # The definitions agree, PSP and PSnDCG as ratios of sums included, but for a label that is predicted twice for one
    # point: napkinXC counts both, we count the first. So this case has no repeats.
    golden = json.loads(GOLDEN.read_text())
    width = golden["label_count"]
    train, targets, labels = (
        matrix(golden["train"], width),
        matrix(golden["truth"], width),
        padded(golden["predicted"], 5),
    )
    inverse = Propensity().inverse(frequencies(train), len(golden["train"]))
    assert inverse.tolist() == pytest.approx(golden["inverse_propensity"], abs=1e-9)
    ours = {
        "precision_at_k": metrics.precision(labels, targets, ALL_KS),
        "recall_at_k": metrics.recall(labels, targets, ALL_KS),
        "ndcg_at_k": metrics.ndcg(labels, targets, ALL_KS),
        "coverage_at_k": metrics.coverage(labels, targets, ALL_KS),
        "psprecision_at_k": metrics.psp(labels, targets, inverse, ALL_KS),
        "psndcg_at_k": metrics.psndcg(labels, targets, inverse, ALL_KS),
        # its PSDCG divides by k above and below, which cancels, and so is the PSnDCG of AttentionXML
        "psdcg_at_k": metrics.psndcg(labels, targets, inverse, ALL_KS, "attentionxml"),
    }
    for name, values in ours.items():
        assert list(values.values()) == pytest.approx(golden[name], abs=1e-9), name


def test_soft_targets_are_relevant_and_zeros_are_not():
    soft = sp.csr_array((np.array([0.1, 0.0, 1.0], np.float32), np.array([0, 1, 2]), np.array([0, 3])), shape=(1, 3))
    assert metrics.precision(np.array([[0, 1]]), soft, (1, 2)) == {1: 1.0, 2: 0.5}
    assert metrics.recall(np.array([[0, 1]]), soft, (2,)) == {2: 0.5}


def test_unsorted_and_repeated_targets_are_put_right():
    data = np.ones(4, np.float32)
    messy = sp.csr_array((data, np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3))
    assert metrics.recall(np.array([[0, 2], [0, 2]]), messy, (1, 2)) == {1: 0.25, 2: 0.5}


def test_excluded_pairs_leave_the_predictions_but_not_the_truth():
    targets, excluded = matrix([[0, 1], [1]], 3), matrix([[0], []], 3)
    settings = {"train_frequencies": np.array([2, 1, 0]), "train_points": 50, "ks": (1, 2)}
    top = top_of(np.array([[0, 2, 1], [1, 0, -1]], np.int32))
    values = metrics.evaluate(top, targets, excluded=excluded, **settings).values
    assert (values["P@1"], values["P@2"]) == (50, 50)
    assert values["R@2"] == 75
    unfiltered = metrics.evaluate(top, targets, excluded=no_pairs((2, 3)), **settings)
    assert unfiltered == metrics.evaluate(top, targets, **settings)
    assert unfiltered.values["P@1"] == 100


def test_nothing_to_count_gives_zeros():
    settings = {"train_frequencies": np.zeros(3, np.int64), "train_points": 0}
    for points in (0, 2):
        evaluation = metrics.evaluate(top_of(np.full((points, 5), -1, np.int32)), no_pairs((points, 3)), **settings)
        assert set(evaluation.values.values()) == {0.0}


def test_mistakes_are_named():
    labels, targets = np.array([[0, 1]]), matrix([[0]], 2)
    with pytest.raises(ValueError, match="k=3 was asked for, but there are 2 predictions per point"):
        metrics.precision(labels, targets, (1, 3))
    with pytest.raises(ValueError, match="each 1 or more"):
        metrics.precision(labels, targets, (0,))
    with pytest.raises(ValueError, match="at least one k"):
        metrics.precision(labels, targets, ())
    with pytest.raises(ValueError, match="label 2 was predicted, but the targets have 2 labels"):
        metrics.precision(np.array([[2]]), targets, (1,))
    with pytest.raises(ValueError, match="for 1 points"):
        metrics.precision(np.array([[0], [1]]), targets, (1,))
    with pytest.raises(ValueError, match="3 inverse propensities for 2 labels"):
        metrics.psp(labels, targets, np.ones(3), (1,))
    with pytest.raises(ValueError, match="1 bins for 2 labels"):
        metrics.bin_contributions(labels, targets, np.zeros(1, np.int32), (1,))
    with pytest.raises(ValueError, match="valid: attentionxml, pyxclib"):
        metrics.psndcg(labels, targets, np.ones(2), (1,), "xclib")
    with pytest.raises(ValueError, match="valid: all, test"):
        metrics.coverage(labels, targets, (1,), "train")
    with pytest.raises(ValueError, match="3 training frequencies for 2 labels"):
        metrics.evaluate(top_of(labels), targets, train_frequencies=np.ones(3), train_points=9)


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (1, ["1 (all)"]),
        (2, ["1 (head)", "2 (tail)"]),
        (3, ["head", "torso", "tail"]),
        (4, ["1 (head)", "2", "3", "4 (tail)"]),
    ],
)
def test_names_of_bins(count, names):
    labels, targets = random_case(20, 8)
    settings = {"train_frequencies": frequencies(targets), "train_points": 20, "bin_count": count}
    assert [part.name for part in metrics.evaluate(top_of(labels), targets, **settings).bins] == names


def test_evaluation_as_json_and_as_text():
    targets = matrix([[0], [1, 2]], 3)
    top = top_of(np.array([[0, 1], [1, 0]], np.int32))
    settings = {"train_frequencies": np.array([1000, 20, 3]), "train_points": 1000, "ks": (1, 3), "bin_count": 2}
    evaluation = metrics.evaluate(top, targets, **settings)
    record = json.loads(json.dumps(evaluation.to_dict()))
    assert not {"dataset", "split", "fingerprint", "intervals", "reliability"} & set(record)  # lines have their own
    assert record["P@3"] == 33.3333
    assert record["points"] == 2
    assert record["propensity"] == {"a": 0.55, "b": 1.5}
    assert record["bins"][1] == {
        "name": "2 (tail)",
        "labels": 2,
        "frequency": 11.5,
        "positives": 2,
        "contribution": {"P@1": 50.0, "P@3": 16.6667},
        "recall": {"R@1": 50.0, "R@3": 50.0},
    }
    assert str(evaluation).splitlines()[:3] == [
        "2 points      @1     @3",
        "P         100.00  33.33",
        "nDCG      100.00  80.66",
    ]
    assert str(evaluation).splitlines()[-1] == "2 (tail)       2       11.5  50.00  16.67   50.00   50.00"
