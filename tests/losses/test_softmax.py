"""Decoupled softmax and SupCon against the formulas of the paper, term by term, in values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import RecipeError
from longtail.losses.decoupled import Decoupled, SupCon
from longtail.parts import Factors
from longtail.records import create
from longtail.training.network import half_of
from longtail.training.settings import LoopSettings

KINDS = {"decoupled": Decoupled, "supcon": SupCon}
B, K = 4, 6


def case(seed: int):
    """Draw a batch in which points have some positives, none or all, soft ones too, and some are seen by nobody."""
    draw = np.random.default_rng(seed)
    targets = draw.choice([0.0, 0.0, 0.05, 0.3, 1.0], (B, K))
    for row in targets:
        row[:] = [row, 0 * row, draw.choice([0.2, 1.0], K)][draw.choice(3, p=[0.6, 0.2, 0.2])]
    mask = draw.random((B, K)) > 0.2
    mask[draw.random(B) < 0.15] = False
    mask[:, draw.random(K) < 0.15] = False
    weights = draw.choice([0.0, 0.3, 1.0, 2.0], B)
    return [torch.from_numpy(array) for array in (draw.normal(0, 2, (B, K)), targets, mask, weights)]


def of_anchor(kind: str, scores, targets, seen):
    """Compute -(1 / Σ_p y_p) Σ_p y_p log-prob_p of one anchor; None if it sees no positive."""
    places = range(len(scores))
    positives = [p for p in places if seen[p] and targets[p] > 0]
    if not positives:
        return None
    total = torch.zeros((), dtype=torch.float64)
    for p in positives:
        if kind == "supcon":
            against = sum(torch.exp(scores[j]) for j in places if seen[j])
        else:
            against = torch.exp(scores[p]) + sum(torch.exp(scores[n]) for n in places if seen[n] and targets[n] == 0)
        total = total - targets[p] * torch.log(torch.exp(scores[p]) / against)
    return total / sum(targets[p] for p in positives)


def literal(kind: str, loss, scores, targets, mask, weights):
    """Average over points (q → l), over labels with a point (l → q), or mix both."""
    scores = scores / loss.temperature
    points = labels = torch.zeros((), dtype=torch.float64)
    for i in range(B):
        value = of_anchor(kind, scores[i], targets[i], mask[i])
        points = points + (0 if value is None else weights[i] * value / B)
    anchors = []
    for j in range(K):
        seen = mask[:, j] & (weights > 0)
        value = of_anchor(kind, scores[:, j], targets[:, j] * weights, seen)
        anchors += [] if value is None else [value]
    labels = labels + sum(anchors) / max(len(anchors), 1)
    return {"points": points, "labels": labels, "both": loss.balance * points + (1 - loss.balance) * labels}[
        loss.directions
    ]


def with_gradient(compute, scores):
    leaf = scores.clone().requires_grad_()
    value = compute(leaf)
    if value.requires_grad:
        value.backward()
    return value.detach(), torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


@pytest.mark.parametrize("directions", ["points", "labels", "both"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6), temperature=st.sampled_from([1.0, 0.5, 3.0]), balance=st.sampled_from([0.0, 0.3, 1.0])
)
def test_values_and_gradients_are_those_of_the_formula(kind, directions, seed, temperature, balance):
    scores, targets, mask, weights = case(seed)
    loss = KINDS[kind](directions=directions, temperature=temperature, balance=balance)
    ours = with_gradient(lambda leaf: loss(leaf, targets, mask, weights), scores)
    slow = with_gradient(lambda leaf: literal(kind, loss, leaf, targets, mask, weights), scores)
    torch.testing.assert_close(ours, slow, rtol=1e-9, atol=1e-12)
    everything = torch.ones_like(mask)
    ours = with_gradient(lambda leaf: loss(leaf, targets, None, weights), scores)
    slow = with_gradient(lambda leaf: literal(kind, loss, leaf, targets, everything, weights), scores)
    torch.testing.assert_close(ours, slow, rtol=1e-9, atol=1e-12)


def test_the_cases_hold_what_they_should():
    drawn = [case(seed) for seed in range(40)]
    positives = [(targets > 0) & mask for _, targets, mask, _ in drawn]
    counts = {int(count) for positive in positives for count in positive.sum(dim=1)}
    assert counts >= {0, 1, 2, 3} and any((targets > 0).all(dim=1).any() for _, targets, *_ in drawn)
    assert any((~mask).all(dim=1).any() and (~mask).all(dim=0).any() for _, _, mask, _ in drawn)
    assert any((weights == 0).any() for *_, weights in drawn)


@pytest.mark.parametrize("directions", ["points", "labels", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_loss(kind, directions):
    loss, (scores, targets, mask, weights) = KINDS[kind](directions=directions, temperature=0.7), case(11)
    assert ((targets > 0) & mask & (weights > 0)[:, None]).any()
    leaf = scores.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda some: 3 * loss(some, targets, mask, weights), leaf)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_without_a_point_are_not_part_of_the_mean(kind):
    loss = KINDS[kind](directions="labels")
    scores, targets = torch.tensor([[0.3, 0.1, -0.5], [0.2, 0.4, 0.7]]), torch.tensor([[1.0, 0, 0], [0, 0, 0]])
    alone = loss(scores[:, :1], targets[:, :1], None, torch.ones(2))
    assert float(loss(scores, targets, None, torch.ones(2))) == pytest.approx(float(alone))
    assert float(alone) == pytest.approx(float(torch.log(1 + torch.exp(torch.tensor(0.2 - 0.3)))), rel=1e-5)


def test_positives_compete_with_each_other_in_supcon_alone():
    scores, targets = torch.tensor([[2.0, 5.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    gradients = {}
    for kind, loss in KINDS.items():
        leaf = scores.clone().requires_grad_()
        loss()(leaf, targets, None, torch.ones(1)).backward()
        gradients[kind] = leaf.grad[0].tolist()
    assert gradients["decoupled"][1] < 0 < gradients["supcon"][1]  # the better of two positives
    everything = torch.ones(1, 3)
    assert float(Decoupled()(scores, everything, None, torch.ones(1))) == 0  # nothing to compete with
    assert float(SupCon()(scores, everything, None, torch.ones(1))) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_single(kind):
    scores, targets, mask, weights = (value if value.dtype == torch.bool else value.float() for value in case(3))
    half = scores.bfloat16()
    value = KINDS[kind]()(half, targets, mask, weights)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(float(KINDS[kind]()(half.float(), targets, mask, weights)), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [{"temperature": 0}, {"directions": "nowhere"}, {"balance": 1.5}, {"balance": -0.1}])
def test_settings_for_which_there_is_no_loss_are_refused(kind, wrong):
    with pytest.raises(RecipeError, match=kind):
        create(KINDS[kind], wrong)


# From what scores are the products of


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("size", [1, 2 * K, 3 * K, 10**6])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_blocks_of_points_add_up_to_the_whole(monkeypatch, seed, kind, size, biased):
    monkeypatch.setattr("longtail.losses.softmax.SCORES", size)
    _, targets, mask, weights = case(seed)
    draw, loss = np.random.default_rng(seed), KINDS[kind](temperature=0.7)
    leaves = [torch.from_numpy(draw.normal(size=shape)) for shape in ((B, 3), (K, 3), K)][: 2 + biased]
    pairs = [sp.csr_array(part.double().numpy()) for part in (targets, ~mask)]
    results = []
    for by_rows in (True, False):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        scores = own[0] @ own[1].T + sum(own[2:])
        value = loss.of_rows(Factors(*own), *pairs, weights) if by_rows else loss(scores, targets, mask, weights)
        (3 * value).backward()  # what comes from above counts
        results.append([value.detach(), *(leaf.grad for leaf in own)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", ["mixed", "products"])
@pytest.mark.parametrize("points", [B, 131])  # 131: more than a block, and its end is not a whole one
def test_blocks_multiply_in_half_precision_where_that_is_asked_for(monkeypatch, way, points):
    monkeypatch.setattr("longtail.losses.softmax.SCORES", 64 * 64)
    _, targets, mask, weights = (part.repeat(40, *[1] * (part.dim() - 1))[:points] for part in case(0))
    leaves = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((points, 3), (K, 3), (K,))]
    pairs = [sp.csr_array(part.float().numpy()) for part in (targets, ~mask)]
    values = []
    for half in (False, True):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        factors = Factors(*own, torch.bfloat16 if half and way == "products" else None)
        with torch.autocast("cpu", torch.bfloat16, enabled=half and way == "mixed"):
            loss = Decoupled().of_rows(factors, *pairs, weights.float())
        loss.backward()
        values.append([loss.detach(), *(leaf.grad for leaf in own)])
    torch.testing.assert_close(*values, rtol=0.05, atol=0.02)
    assert not torch.equal(values[0][1], values[1][1]) and values[1][1].dtype == torch.float32


@pytest.mark.parametrize(("can", "half"), [({"avx512_bf16": True}, torch.bfloat16), ({"avx512_bf16": False}, None)])
def test_products_are_in_half_precision_where_the_processor_is_quick_at_it(monkeypatch, can, half):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can, raising=False)
    wanted = LoopSettings(precision="bf16-products")
    assert half_of(wanted, torch.device("cpu")) == half
    assert half_of(LoopSettings(), torch.device("cpu")) is None


def test_whole_scores_are_made_only_where_labels_choose_too():
    assert Decoupled().by_rows and SupCon().by_rows
    assert not Decoupled(directions="both").by_rows and not Decoupled().needs_rows
