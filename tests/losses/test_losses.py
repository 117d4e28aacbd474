from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import RecipeError
from longtail.losses.bce import Bce, BceMean
from longtail.losses.decoupled import Decoupled, DecoupledBce
from longtail.records import PARTS, create, imported, part_of

NAMES = [name for name, place in PARTS.items() if place.startswith("longtail.losses.")]
LOSSES = {name: create(imported(PARTS, name, "part"), {}) for name in NAMES} | {
    "labels": Decoupled(directions="labels", temperature=0.7),
    "both": Decoupled(directions="both"),
}


def case(seed: int):
    draw = np.random.default_rng(seed)
    scores, size = draw.normal(0, 2, (3, 5)), (3, 5)
    targets = draw.choice([0.0, 0.0, 0.3, 1.0], size)
    mask = draw.random(size) > 0.2  # of positives too: a mixed-in label may be excluded
    return scores, targets, mask, draw.random(3)


def tensors(*arrays):
    return [torch.tensor(array if array.dtype == bool else array.astype(np.float64)) for array in arrays]


def slow_softmax(scores, targets, mask, weights) -> float:
    """Add up what each positive of each row says against all negatives, in equal parts of a row's targets."""
    total = 0.0
    for i in range(len(scores)):
        columns = range(scores.shape[1])
        against = sum(math.exp(scores[i, j]) for j in columns if targets[i, j] == 0 and mask[i, j])
        for j in columns:
            if targets[i, j] > 0 and mask[i, j]:
                share = targets[i, j] / targets[i][mask[i]].sum()
                total -= weights[i] * share * math.log(math.exp(scores[i, j]) / (math.exp(scores[i, j]) + against))
    return total / len(scores)


def test_every_loss_is_tested():
    assert set(NAMES) == {"bce", "bce_mean", "decoupled", "decoupled_bce", "contrastive"}
    for name in NAMES:
        assert part_of(LOSSES[name].dump()) == LOSSES[name]
    for wrong in ({"temperature": 0}, {"directions": "nowhere"}):
        with pytest.raises(RecipeError, match="decoupled"):
            create(Decoupled, wrong)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_cross_entropy_equals_the_slow_sum(seed):
    scores, targets, mask, weights = case(seed)
    total = 0.0
    for i in range(3):
        for j in range(5):
            if mask[i, j]:
                p = 1 / (1 + math.exp(-scores[i, j]))
                total -= weights[i] * (targets[i, j] * math.log(p) + (1 - targets[i, j]) * math.log(1 - p))
    assert math.isclose(float(Bce()(*tensors(scores, targets, mask, weights))), total / 3, rel_tol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.5, 3.0]))
def test_decoupled_softmax_equals_the_slow_sum(seed, temperature):
    scores, targets, mask, weights = case(seed)
    loss = Decoupled(temperature=temperature)(*tensors(scores, targets, mask, weights))
    expected = slow_softmax(scores / temperature, targets, mask, weights)
    assert math.isclose(float(loss), expected, rel_tol=1e-9, abs_tol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_labels_choose_among_points_too(seed, masked):
    scores, targets, mask, weights = case(seed)
    mask = mask if masked else np.ones_like(mask)
    expected = slow_softmax(scores.T, (targets * weights[:, None]).T, mask.T, np.ones(5))
    arguments = tensors(scores, targets, mask, weights)
    arguments[2] = arguments[2] if masked else None
    turned = Decoupled(directions="labels")(*arguments)
    assert math.isclose(float(turned), expected, rel_tol=1e-6, abs_tol=1e-9)
    both = 0.5 * (turned + Decoupled()(*arguments))
    assert math.isclose(float(Decoupled(directions="both")(*arguments)), float(both), rel_tol=1e-9, abs_tol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["points", "labels", "both"]))
def test_the_gradient_in_closed_form_is_that_of_the_loss(seed, directions):
    scores, targets, mask, weights = tensors(*case(seed))
    loss = Decoupled(directions=directions, temperature=0.7)
    scores.requires_grad_()
    loss(scores, targets, mask, weights).backward()
    slow = torch.zeros_like(scores)
    with torch.no_grad():
        for place in np.ndindex(3, 5):
            moved = torch.zeros_like(scores)
            moved[place] = 1e-5
            ahead, behind = (loss(scores + step, targets, mask, weights) for step in (moved, -moved))
            slow[place] = (ahead - behind) / 2e-5
    torch.testing.assert_close(scores.grad, slow, rtol=1e-4, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_the_mean_is_over_what_counts(seed):
    arguments = tensors(*case(seed))
    total = float(Bce()(*arguments)) * 3 / max(int(arguments[2].sum()), 1)
    assert math.isclose(float(BceMean()(*arguments)), total, rel_tol=1e-9)
    scores, targets, _, weights = arguments
    plain = float(Bce()(scores, targets, None, weights)) / 5
    assert math.isclose(float(BceMean()(scores, targets, None, weights)), plain, rel_tol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_no_loss_looks_at_pairs_that_are_masked_out(seed):
    scores, targets, mask, weights = tensors(*case(seed))
    for name, loss in LOSSES.items():
        leaf = scores.clone().requires_grad_()
        value = loss(leaf, targets, mask, weights)
        value.backward()
        assert (leaf.grad[~mask] == 0).all(), name
        other = torch.where(mask, scores, scores + 7), torch.where(mask, targets, 1 - targets)
        assert math.isclose(float(loss(*other, mask, weights)), float(value.detach()), rel_tol=1e-9, abs_tol=1e-12), (
            name
        )
        everything = loss(scores, targets, torch.ones_like(mask), weights)
        assert math.isclose(float(loss(scores, targets, None, weights)), float(everything), rel_tol=1e-9), name
    both = float(Decoupled()(scores, targets, mask, weights) + Bce()(scores, targets, mask, weights))
    assert math.isclose(float(DecoupledBce()(scores, targets, mask, weights)), both)


@pytest.mark.parametrize("name", list(LOSSES))
def test_points_without_positives_and_extreme_scores_stay_finite(name):
    scores = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    value = LOSSES[name](scores, torch.tensor([[0.0, 1.0], [0.0, 0.0]]), None, torch.ones(2))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("name", list(LOSSES))
def test_points_weigh_as_much_as_they_should(name):
    scores, targets, mask, weights = tensors(*case(4))
    nothing = LOSSES[name](scores, targets, mask, 0 * weights)
    assert float(nothing) == 0
    if name not in ("labels", "both"):  # a label shares itself out among its points: all weights times two change none
        twice = LOSSES[name](scores, targets, mask, 2 * weights)
        assert math.isclose(float(twice), 2 * float(LOSSES[name](scores, targets, mask, weights)), rel_tol=1e-9)
