"""Learning rates over the steps, and which points stand side by side in a batch."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from small import board, networks, short

import longtail as lt
from longtail.training import orders
from longtail.training.loop import Loop, rate_factor
from longtail.training.orders import Shuffled, Similar
from longtail.training.settings import LoopSettings

pytestmark = pytest.mark.usefixtures("one_thread")  # bit-equal


SHAPES = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}


@pytest.mark.parametrize("schedule", SHAPES)
def test_schedules_rise_and_fall(schedule):
    settings, total = LoopSettings(schedule=schedule, warmup=0.2), 100
    factors = [rate_factor(settings, step, total) for step in range(total)]
    np.testing.assert_allclose(factors[:20], np.arange(1, 21) / 20)
    np.testing.assert_allclose(factors[20:], [SHAPES[schedule](step / 80) for step in range(80)])


def test_one_cycle_is_that_of_torch():
    total = 1000
    mine = [rate_factor(LoopSettings(schedule="onecycle", warmup=0.3), step, total) for step in range(total)]
    adam = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        adam, max_lr=1.0, total_steps=total, pct_start=0.3, div_factor=10, final_div_factor=1e4
    )
    theirs = []
    for _ in range(total):
        theirs.append(cycle.get_last_lr()[0])
        adam.step()
        if len(theirs) < total:
            cycle.step()
    np.testing.assert_allclose(mine, theirs, atol=0.01)
    assert mine[0] == pytest.approx(0.1)


def test_steps_halve_again_and_again():
    factors = [rate_factor(LoopSettings(schedule="step", decay_every=0.4), step, 10) for step in range(10)]
    assert factors == [1] * 4 + [0.5] * 4 + [0.25] * 2


@pytest.mark.parametrize("size", [1, 4, 7])
def test_batches_hold_groups_of_similar_points(size):
    place = np.random.default_rng(0).permutation(50)  # of each point, where similar ones stand side by side
    fit = networks(short("xmlcnn"), board(50))["training"].fit
    with patch.object(orders, "clusters", lambda *_, **__: place):
        order = (Similar(group=size) if size > 1 else Shuffled()).build(fit)
    one, two = (order(np.random.default_rng([0, 1, epoch])) for epoch in (0, 1))
    assert sorted(one) == sorted(two) == list(range(50))
    assert one.tolist() != two.tolist()
    assert one.tolist() == order(np.random.default_rng([0, 1, 0])).tolist()
    if size > 1:
        beside = np.diff(place[one]) % 50 == 1
        assert beside.mean() >= 1 - math.ceil(50 / size) / 49


@pytest.mark.parametrize("name", ["frugal", "xmlcnn"])
def test_similar_batches_bring_similar_texts_together(name):
    train = board()
    recipe = short(name, augment=[], training__order="similar", training__order__group=8, training__epochs=1)
    seen = []
    with patch.object(Loop, "_step", lambda _self, _fabric, rows, *_: seen.append(rows) or 1.0):
        lt.fit(recipe, train)
    assert [len(rows) for rows in seen] == [128, 128, 128, 16]
    kinds = train.targets.indices[::2]
    assert (np.diff(kinds[np.concatenate(seen)]) == 0).mean() > 0.2  # 0.05 by chance


@pytest.mark.parametrize(("points", "sizes"), [(50, [49 + 1]), (99, [49, 50]), (98, [49, 49]), (30, [30])])
def test_no_point_is_alone_in_a_batch(points, sizes):
    recipe = short("inceptionxml", training__batch_size=49)
    network = networks(recipe, board(points))["training"]
    seen = []
    with patch.object(Loop, "_step", lambda _self, _fabric, some, *_: seen.append(some) or 1.0):
        Loop(network, LoopSettings(epochs=1, batch_size=49)).run("training")
    assert [len(some) for some in seen] == sizes
    assert sorted(np.concatenate(seen)) == list(range(points))
    lt.fit(recipe, board(points))
