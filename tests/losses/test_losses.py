from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.losses import LOSSES, binary_cross_entropy, binary_cross_entropy_mean, decoupled_softmax


def case(seed: int):
    draw = np.random.default_rng(seed)
    scores, size = draw.normal(0, 2, (3, 5)), (3, 5)
    targets = draw.choice([0.0, 0.0, 0.3, 1.0], size)
    counted = draw.random(size) > 0.2  # of positives too: a mixed-in label may be excluded
    return scores, targets, counted, draw.random(3)


def tensors(*arrays):
    return [torch.tensor(array if array.dtype == bool else array.astype(np.float64)) for array in arrays]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_cross_entropy_equals_the_slow_sum(seed):
    scores, targets, counted, weights = case(seed)
    total = 0.0
    for i in range(3):
        for j in range(5):
            if counted[i, j]:
                p = 1 / (1 + math.exp(-scores[i, j]))
                total -= weights[i] * (targets[i, j] * math.log(p) + (1 - targets[i, j]) * math.log(1 - p))
    assert math.isclose(
        float(binary_cross_entropy(*tensors(scores, targets, counted, weights))), total / 3, rel_tol=1e-9
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_decoupled_softmax_equals_the_slow_sum(seed):
    scores, targets, counted, weights = case(seed)
    total = 0.0
    for i in range(3):
        against = sum(math.exp(scores[i, j]) for j in range(5) if targets[i, j] == 0 and counted[i, j])
        for j in range(5):
            if targets[i, j] > 0 and counted[i, j]:
                share = targets[i, j] / targets[i][counted[i]].sum()
                total -= weights[i] * share * math.log(math.exp(scores[i, j]) / (math.exp(scores[i, j]) + against))
    assert math.isclose(
        float(decoupled_softmax(*tensors(scores, targets, counted, weights))), total / 3, rel_tol=1e-9, abs_tol=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_the_mean_is_over_what_counts(seed):
    case_of = tensors(*case(seed))
    total = float(binary_cross_entropy(*case_of)) * 3 / max(int(case_of[2].sum()), 1)
    assert math.isclose(float(binary_cross_entropy_mean(*case_of)), total, rel_tol=1e-9)
    scores, targets, _, weights = case_of
    plain = float(binary_cross_entropy(scores, targets, None, weights)) / 5
    assert math.isclose(float(binary_cross_entropy_mean(scores, targets, None, weights)), plain, rel_tol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_no_loss_looks_at_pairs_that_do_not_count(seed):
    scores, targets, counted, weights = tensors(*case(seed))
    for name, loss in LOSSES.items():
        asked = scores.clone().requires_grad_()
        value = loss(asked, targets, counted, weights)
        value.backward()
        assert (asked.grad[~counted] == 0).all(), name
        other = torch.where(counted, scores, scores + 7), torch.where(counted, targets, 1 - targets)
        assert math.isclose(
            float(loss(*other, counted, weights)), float(value.detach()), rel_tol=1e-9, abs_tol=1e-12
        ), name
    both = float(
        LOSSES["decoupled"](scores, targets, counted, weights) + LOSSES["bce"](scores, targets, counted, weights)
    )
    assert math.isclose(float(LOSSES["decoupled_bce"](scores, targets, counted, weights)), both)


def test_points_without_positives_and_extreme_scores_stay_finite():
    scores = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    for loss in LOSSES.values():
        value = loss(scores, torch.tensor([[0.0, 1.0], [0.0, 0.0]]), None, torch.ones(2))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(scores.grad).all()
