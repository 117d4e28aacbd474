from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.losses import binary_cross_entropy, decoupled_softmax


def case(seed: int):
    draw = np.random.default_rng(seed)
    scores, size = draw.normal(0, 2, (3, 5)), (3, 5)
    targets = draw.choice([0.0, 0.0, 0.3, 1.0], size)
    counted = draw.random(size) > 0.2
    counted |= targets > 0
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
            if targets[i, j] > 0:
                share = targets[i, j] / targets[i].sum()
                total -= weights[i] * share * math.log(math.exp(scores[i, j]) / (math.exp(scores[i, j]) + against))
    assert math.isclose(
        float(decoupled_softmax(*tensors(scores, targets, counted, weights))), total / 3, rel_tol=1e-9, abs_tol=1e-12
    )


def test_points_without_positives_and_extreme_scores_stay_finite():
    scores = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    for loss in (binary_cross_entropy, decoupled_softmax):
        value = loss(scores, torch.tensor([[0.0, 1.0], [0.0, 0.0]]), None, torch.ones(2))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(scores.grad).all()
