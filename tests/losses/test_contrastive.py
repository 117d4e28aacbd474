from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import RecipeError
from longtail.losses.contrastive import Contrastive
from longtail.recipe import find_recipe
from longtail.records import create


def literal(loss: Contrastive, scores, targets, mask, weights) -> float:
    """Add up what the pairs of each point cost, one after the other."""
    total = 0.0
    for i, row in enumerate(scores):
        positives, negatives = 0.0, []
        for j, cosine in enumerate(row):
            if not mask[i, j]:
                continue
            if targets[i, j] > 0:
                positives += targets[i, j] * (-math.log(loss.c) + loss.d * (1 - cosine))
            else:
                cost = -math.log(1 - loss.c * math.exp(loss.d * (cosine - 1)))
                negatives.append(cost if cost >= loss.floor else 0.0)
        kept = sorted(negatives, reverse=True)[: loss.hardest]
        total += weights[i] * (positives + sum(kept))
    return total / len(scores)


def case(seed: int):
    draw = np.random.default_rng(seed)
    targets = draw.choice([0.0, 0.0, 0.3, 1.0], (4, 6))
    return draw.uniform(-1, 1, (4, 6)), targets, draw.random((4, 6)) > 0.2, draw.random(4)


def tensors(*arrays):
    return [torch.tensor(array if array.dtype == bool else array.astype(np.float32)) for array in arrays]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(0.9, 1.5), (0.75, 3.0), (0.2, 0.5)]),
    st.sampled_from([None, 1, 2, 6, 99]),
    st.sampled_from([0.0, 0.05, 0.3]),
)
def test_the_loss_is_the_literal_sum(seed, shape, hardest, floor):
    loss = Contrastive(c=shape[0], d=shape[1], hardest=hardest, floor=floor)
    scores, targets, mask, weights = case(seed)
    assert float(loss(*tensors(scores, targets, mask, weights))) == pytest.approx(
        literal(loss, scores, targets, mask, weights), rel=1e-5
    )
    everything = np.ones_like(mask)
    assert float(loss(*tensors(scores, targets), None, *tensors(weights))) == pytest.approx(
        literal(loss, scores, targets, everything, weights), rel=1e-5
    )


def gradient(loss: Contrastive, scores, targets, mask=None) -> list[float]:
    leaf = torch.tensor([scores], requires_grad=True)
    loss(leaf, torch.tensor([targets]), None if mask is None else torch.tensor([mask]), torch.ones(1)).backward()
    return leaf.grad[0].tolist()


def test_positives_come_nearer_and_the_hardest_negative_goes():
    near, hard, easy = gradient(Contrastive(), [0.2, 0.6, 0.5], [1.0, 0.0, 0.0])
    assert near == pytest.approx(-1.5)  # d, however near it is
    assert hard == pytest.approx(1.5 * 0.9 * math.exp(-0.6) / (1 - 0.9 * math.exp(-0.6)))
    assert easy == 0
    assert gradient(Contrastive(), [0.2, 0.6, 0.5], [1.0, 0.0, 0.0], [True, False, True])[1:] == [
        0.0,
        pytest.approx(1.5 * 0.9 * math.exp(-0.75) / (1 - 0.9 * math.exp(-0.75))),
    ]  # what is masked out leaves its place to the next
    several = gradient(Contrastive(hardest=2), [0.2, 0.6, 0.5, 0.4], [1.0, 0.0, 0.0, 0.0])
    assert [value > 0 for value in several] == [False, True, True, False]


def test_a_soft_target_weighs_its_positive_and_is_no_negative():
    whole, half = (gradient(Contrastive(hardest=None), [0.9, 0.1], [target, 0.0]) for target in (1.0, 0.5))
    assert half[0] == pytest.approx(whole[0] / 2)
    assert half[1] == whole[1] > 0


def test_negatives_that_cost_little_cost_nothing():
    loss = Contrastive(c=0.75, d=3.0, hardest=None, floor=0.05)
    border = 1 + math.log((1 - math.exp(-0.05)) / 0.75) / 3
    assert gradient(loss, [border - 1e-3, border + 1e-3], [0.0, 0.0])[0] == 0
    assert gradient(loss, [border - 1e-3, border + 1e-3], [0.0, 0.0])[1] > 0


def test_cosines_above_one_by_rounding_are_ones():
    loss = Contrastive(hardest=None)
    arguments = torch.tensor([[1.0, 0.0]]), None, torch.ones(1)
    assert float(loss(torch.tensor([[1 + 1e-6, 1 + 1e-6]]), *arguments)) == float(loss(torch.ones(1, 2), *arguments))
    assert math.isfinite(float(loss(torch.full((1, 2), 1.1), *arguments)))


@pytest.mark.parametrize("wrong", [{"c": 0}, {"c": 1}, {"d": 0}, {"hardest": 0}, {"floor": -1}])
def test_settings_for_which_there_is_no_loss_are_refused(wrong):
    with pytest.raises(RecipeError, match="contrastive"):
        create(Contrastive, wrong)


@pytest.mark.parametrize(("path", "value"), [("classifier.cosine", False), ("classifier.scale", 20.0)])
def test_scores_that_are_no_cosines_are_refused(path, value):
    with pytest.raises(RecipeError, match="contrastive needs cosines"):
        find_recipe("siamesexml").override(path, value).check()
