"""What all losses keep to, cross-entropy, and sums of losses; the others have files of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import RecipeError
from longtail.losses.bce import Bce, BceMean
from longtail.losses.chunked import ChunkedBce
from longtail.losses.decoupled import Decoupled, SupCon
from longtail.losses.sums import Sum
from longtail.losses.triplet import Triplet
from longtail.recipe import find_recipe
from longtail.records import PARTS, create, imported, part_of

NAMES = [name for name, place in PARTS.items() if place.startswith("longtail.losses.")]
TURNED = {
    "decoupled, labels": Decoupled(directions="labels", temperature=0.7),
    "decoupled, both": Decoupled(directions="both", balance=0.3),
    "supcon, labels": SupCon(directions="labels", temperature=0.7),
    "supcon, both": SupCon(directions="both", balance=0.3),
    "sum, both": Sum(of=(Decoupled(directions="both"), Bce()), weights=(1.0, 0.2)),
}
LOSSES = {name: create(imported(PARTS, name, "part"), {}) for name in NAMES} | TURNED
LOSSES |= {"triplet of violations": Triplet(weigh="violations", positives=3, negatives=2)}


def case(seed: int):
    draw = np.random.default_rng(seed)
    scores, size = draw.normal(0, 2, (3, 5)), (3, 5)
    targets = draw.choice([0.0, 0.0, 0.3, 1.0], size)
    mask = draw.random(size) > 0.2  # of positives too: a mixed-in label may be excluded
    return scores, targets, mask, draw.random(3)


def tensors(*arrays):
    return [torch.tensor(array if array.dtype == bool else array.astype(np.float64)) for array in arrays]


def test_every_loss_is_tested():
    assert set(NAMES) == {
        "bce", "bce_mean", "decoupled", "supcon", "sum_of", "contrastive", "triplet", "chunked_bce",
    }  # fmt: skip
    for loss in LOSSES.values():
        assert part_of(loss.dump()) == loss


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


@pytest.mark.parametrize("name", list(LOSSES))
def test_points_without_positives_and_extreme_scores_stay_finite(name):
    scores = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    value = LOSSES[name](scores, torch.tensor([[0.0, 1.0], [0.0, 0.0]]), None, torch.ones(2))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("masked", [[0], [2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("name", list(LOSSES))
def test_points_and_labels_that_are_wholly_masked_change_nothing(name, masked):
    scores, targets, _, weights = tensors(*case(5))
    for rows in (True, False):
        mask = torch.ones((3, 5), dtype=torch.bool)
        if rows:
            mask[masked] = False
        else:
            mask[:, masked] = False
        leaf = scores.clone().requires_grad_()
        value = LOSSES[name](leaf, targets, mask, weights)
        value.backward()
        assert torch.isfinite(value) and torch.isfinite(leaf.grad).all()
        assert (leaf.grad[~mask] == 0).all()
        assert (float(value.detach()) > 0) == mask.any()  # the others still say something


@pytest.mark.parametrize("name", list(LOSSES))
def test_points_weigh_as_much_as_they_should(name):
    scores, targets, mask, weights = tensors(*case(4))
    nothing = LOSSES[name](scores, targets, mask, 0 * weights)
    assert float(nothing) == 0
    if name not in TURNED:  # a label shares itself out among its points: all weights times two change none
        twice = LOSSES[name](scores, targets, mask, 2 * weights)
        assert math.isclose(float(twice), 2 * float(LOSSES[name](scores, targets, mask, weights)), rel_tol=1e-9)


@pytest.mark.parametrize("name", list(LOSSES))
def test_a_point_without_weight_might_as_well_not_be_there(name):
    scores, targets, mask, weights = tensors(*case(4))
    weights[1] = 0
    kept, leaf = [0, 2], scores.clone().requires_grad_()
    value = LOSSES[name](leaf, targets, mask, weights)
    value.backward()
    assert (leaf.grad[1] == 0).all()
    if name in ("decoupled, labels", "supcon, labels"):  # means over labels, not over the points
        others = LOSSES[name](scores[kept], targets[kept], mask[kept], weights[kept])
        assert math.isclose(float(value.detach()), float(others), rel_tol=1e-9)


@pytest.mark.parametrize("weights_of_losses", [(), (1.0, 1.0, 1.0), (0.5, 2.0, 0.0)], ids=str)
def test_a_sum_adds_up_values_and_gradients(weights_of_losses):
    of = (Decoupled(directions="both"), Bce(), SupCon(temperature=0.5))
    scores, *rest = tensors(*case(7))
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    value = Sum(of=of, weights=weights_of_losses)(ours, *rest)
    expected = sum(w * loss(theirs, *rest) for w, loss in zip(weights_of_losses or (1, 1, 1), of, strict=True))
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_a_sum_is_at_first_decoupled_and_cross_entropy():
    arguments = tensors(*case(0))
    both = float(Decoupled()(*arguments) + Bce()(*arguments))
    assert math.isclose(float(Sum()(*arguments)), both, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"of": ()}, "sum_of has 0 losses and 0 weights"),
        ({"weights": (1.0,)}, "sum_of has 2 losses and 1 weights"),
        ({"weights": (1.0, 1.0, 1.0)}, "sum_of has 2 losses and 3 weights"),
        ({"of": (Bce(), ChunkedBce())}, "losses of logits"),
        ({"of": (Triplet(), Bce())}, "losses of logits"),
    ],
)
def test_a_sum_needs_losses_of_logits_and_a_weight_for_each(wrong, message):
    recipe = find_recipe("xmlcnn")
    recipe.override("loss", "sum_of").check()
    with pytest.raises(RecipeError, match=message):
        recipe.override("loss", Sum(**wrong)).check()


def test_losses_that_need_cosines_say_so():
    with pytest.raises(RecipeError, match=r"triplet needs cosines: classifier\.cosine=true, classifier\.scale=1"):
        find_recipe("frugal").override("loss", "triplet").check()
    find_recipe("frugal").override("loss", "triplet").override("classifier.scale", 1.0).check()
