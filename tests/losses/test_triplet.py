"""Triplets against the formula of NGAME, one triplet after the other."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import RecipeError
from longtail.losses.triplet import Triplet
from longtail.records import create


def literal(loss: Triplet, scores, targets, mask, weights):
    """Weigh max(0, s_n - s_p + margin) of the furthest positives and the nearest negatives by softmaxes."""
    total, order = torch.zeros(()), scores.argsort(dim=1).tolist()
    for i, row in enumerate(scores):
        right = [j for j in order[i] if mask[i, j] and targets[i, j] > 0][: loss.positives]
        wrong = [j for j in reversed(order[i]) if mask[i, j] and targets[i, j] == 0][: loss.negatives]
        cost = {(p, n): (row[n] - row[p] + loss.margin).clamp_min(0) for p in right for n in wrong}
        power = {pair: torch.exp(value.detach()) for pair, value in cost.items()}
        if loss.weigh == "scores":
            ranked = {(p, n): row[n].detach() / loss.temperature * (value > 0) for (p, n), value in cost.items()}
            power = {pair: torch.exp(value) for pair, value in ranked.items()}
        for (p, n), value in cost.items():
            others = [power[p, m] for m in wrong] if loss.weigh == "scores" else power.values()
            total = total + weights[i] * targets[i, p] * power[p, n] / sum(others) * value
    return total / len(scores)


def case(seed: int):
    draw = np.random.default_rng(seed)
    targets = draw.choice([0.0, 0.0, 0.3, 1.0], (4, 7))
    targets[0] = draw.choice([0.0, 1.0])  # a point with no positives, or with nothing else
    mask = draw.random((4, 7)) > 0.2
    mask[1] &= draw.random() < 0.7
    values = draw.uniform(-1, 1, (4, 7)), targets, draw.choice([0.0, 0.5, 1.0], 4)
    scores, targets, weights = (torch.from_numpy(array.astype(np.float32)) for array in values)
    return scores, targets, torch.from_numpy(mask), weights


@pytest.mark.parametrize("weigh", ["scores", "violations"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), positives=st.sampled_from([1, 3, 99]), negatives=st.sampled_from([1, 2, 99]),
    margin=st.sampled_from([0.1, 0.3, 2.0]),
)  # fmt: skip
def test_values_and_gradients_are_those_of_the_formula(weigh, seed, positives, negatives, margin):
    loss = Triplet(weigh=weigh, positives=positives, negatives=negatives, margin=margin)
    scores, targets, mask, weights = case(seed)
    everything = torch.ones_like(mask)
    for seen, slow in ((mask, mask), (None, everything)):
        results = []
        for one, some in ((loss, seen), (partial(literal, loss), slow)):
            leaf = scores.clone().requires_grad_()
            value = one(leaf, targets, some, weights) + 0 * leaf.sum()  # there may be no triplet at all
            value.backward()
            results.append((value.detach(), leaf.grad))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def gradient(loss: Triplet, scores, targets) -> list[float]:
    leaf = torch.tensor([scores], requires_grad=True)
    loss(leaf, torch.tensor([targets]), None, torch.ones(1)).backward()
    return leaf.grad[0].tolist()


def test_only_the_hardest_are_moved_and_only_within_the_margin():
    hardest = gradient(Triplet(negatives=1), [0.9, 0.5, 0.4, 0.3], [1.0, 1.0, 0.0, 0.0])
    assert hardest == pytest.approx([0, -1, 1, 0])  # the furthest positive and the nearest negative
    assert gradient(Triplet(), [0.9, 0.8, 0.59], [1.0, 1.0, 0.0]) == pytest.approx([0, -1, 1])
    assert gradient(Triplet(), [0.9, 0.8, 0.49], [1.0, 1.0, 0.0]) == [0, 0, 0]  # far enough
    several = gradient(Triplet(positives=2, negatives=2), [0.5, 0.6, 0.5, 0.4, 0.3], [1.0, 1.0, 0.0, 0.0, 0.0])
    assert [np.sign(value) for value in several] == [-1, -1, 1, 1, 0]


def test_harder_negatives_weigh_more():
    near, less = gradient(Triplet(), [0.5, 0.5, 0.4], [1.0, 0.0, 0.0])[1:]
    assert near / less == pytest.approx(np.exp((0.5 - 0.4) / 0.1), rel=1e-4)
    near, less = gradient(Triplet(weigh="violations"), [0.5, 0.5, 0.4], [1.0, 0.0, 0.0])[1:]
    assert near / less == pytest.approx(np.exp(0.1), rel=1e-4)


def test_a_soft_target_weighs_its_triplets_and_is_no_negative():
    whole, half = (gradient(Triplet(), [0.2, 0.1], [target, 0.0]) for target in (1.0, 0.5))
    assert half == pytest.approx([value / 2 for value in whole])
    assert whole[1] > 0


@pytest.mark.parametrize("wrong", [{"margin": 0}, {"positives": 0}, {"negatives": 0}, {"weigh": "x"}])
def test_settings_for_which_there_is_no_loss_are_refused(wrong):
    with pytest.raises(RecipeError, match="triplet"):
        create(Triplet, wrong)
