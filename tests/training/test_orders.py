"""Learning rates over the steps, and which points stand side by side in a batch."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from small import board, networks, short

import longtail as lt
from longtail.training import orders
from longtail.training.loop import Loop, rate_factor
from longtail.training.orders import Lengths, Shuffled, Similar
from longtail.training.settings import LoopSettings
from longtail.types import Texts

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
        order = (Similar(group=size) if size > 1 else Shuffled()).build(fit, 20)
    one, two = (order.rows(epoch, np.random.default_rng([0, 1, epoch])) for epoch in (0, 1))
    assert sorted(one) == sorted(two) == list(range(50))
    assert one.tolist() != two.tolist()
    assert one.tolist() == order.rows(0, np.random.default_rng([0, 1, 0])).tolist()
    if size > 1:
        beside = np.diff(place[one]) % 50 == 1
        assert beside.mean() >= 1 - math.ceil(50 / size) / 49


def test_texts_of_one_length_share_a_batch():
    """The order is another in each epoch, every point comes once, and batches hold little padding."""
    fit = networks(short("xmlcnn"), board(50))["training"].fit
    words = np.random.default_rng(0).integers(1, 100, 50)
    train = replace(fit.train, texts=Texts(" ".join(["w"] * count) for count in words))
    order = Lengths(window=3).build(replace(fit, train=train), 8)
    one, two = (order.rows(epoch, np.random.default_rng([0, epoch])) for epoch in (0, 1))
    assert sorted(one) == sorted(two) == list(range(50)) and one.tolist() != two.tolist()
    padding = [np.mean([words[batch].max() for batch in np.split(rows[:48], 6)]) for rows in (one, np.arange(50))]
    assert padding[0] < 0.75 * padding[1]
    assert order.rows(0, np.random.default_rng(1))[-2:].tolist() != one[-2:].tolist()


@pytest.mark.parametrize("name", ["frugal", "xmlcnn"])
def test_similar_batches_bring_similar_texts_together(name):
    train = board()
    recipe = short(name, augment=[], training__order="similar", training__order__group=8, training__epochs=1)
    seen = []
    with patch.object(Loop, "_step", lambda _self, rows, *_: seen.append(rows) or 1.0):
        lt.fit(recipe, train)
    assert [len(rows) for rows in seen] == [128, 128, 128, 16]
    kinds = train.targets.indices[::2]
    assert (np.diff(kinds[np.concatenate(seen)]) == 0).mean() > 0.2  # 0.05 by chance


def standing(points: int, batch_size: int = 16, **settings):
    """Make an order of points that stand side by side as they are numbered."""
    order = Similar(by="vectors", **settings).build(None, batch_size)
    order.similar = np.arange(points)
    return order


def runs(rows: np.ndarray, points: int) -> list[int]:
    """Count the points of each run of neighbours, in a circle."""
    ends = np.flatnonzero(np.diff(rows) % points != 1)
    return np.diff([-1, *ends, len(rows) - 1]).tolist()


@pytest.mark.parametrize("points", [3, 15, 16, 17, 50, 64])
@pytest.mark.parametrize("group", [None, 1, 4, 7, 16, 99])
def test_every_point_stands_once_and_the_rest_last(group, points):
    order, size = standing(points, group=group), group or 16
    for epoch in range(5):
        rows = order.rows(epoch, np.random.default_rng([3, epoch]))
        assert sorted(rows) == list(range(points))
        whole, rest = rows[: points // size * size].reshape(-1, size), rows[points // size * size :]
        assert (np.diff(whole, axis=1) % points == 1).all()
        assert (np.diff(rest) % points == 1).all()


def test_groups_are_cut_somewhere_else_each_time():
    order = standing(64, group=4)
    cuts = [set((order.rows(0, np.random.default_rng(seed))[::4] % 4).tolist()) for seed in range(40)]
    assert all(len(cut) == 1 for cut in cuts) and set.union(*cuts) == {0, 1, 2, 3}


def test_a_group_of_none_is_a_batch():
    order = standing(64, group=None)
    batches = order.rows(0, np.random.default_rng(0)).reshape(4, 16)
    assert all(runs(batch, 64) == [16] for batch in batches)
    assert len({tuple(order.rows(0, np.random.default_rng(s)).tolist()) for s in range(5)}) == 5


def test_groups_double_up_to_a_batch():
    order = standing(960, batch_size=20, group=4, double_every=3)
    assert [order.group(epoch) for epoch in range(12)] == [4] * 3 + [8] * 3 + [16] * 3 + [20] * 3
    assert order.group(10**6) == 20
    for epoch in (0, 3, 6, 9):
        lengths = runs(order.rows(epoch, np.random.default_rng(1)), 960)
        assert all(length % order.group(epoch) == 0 for length in lengths)  # two groups may meet by chance
        assert min(lengths) == order.group(epoch)
    assert [standing(64, group=None, double_every=1).group(epoch) for epoch in (0, 5)] == [16, 16]
    assert [standing(64, group=32, double_every=1).group(epoch) for epoch in (0, 5)] == [32, 32]  # larger than a batch
    assert [standing(64, group=4).group(epoch) for epoch in (0, 99)] == [4, 4]


def by_vectors(**changes):
    """Build the network of a recipe whose batches hold points with similar vectors."""
    order = {"part": "similar", "by": "vectors", "group": None} | changes
    recipe = short("frugal", augment=[], training__order=order, training__batch_size=32, training__epochs=5)
    return networks(recipe, board(128))["training"]


def test_vectors_are_clustered_again_after_some_epochs():
    network, seen = by_vectors(refresh=2), []
    real = orders.clusters

    def watch(vectors, count, *, seed, rounds):
        expected = network.vectors(network.points.inputs)  # as they are at this time
        seen.append((network.epoch, count, seed, np.array_equal(vectors, expected), vectors.copy()))
        return real(vectors, count, seed=seed, rounds=rounds)

    on_epoch = type(network).on_epoch

    def note(self, epoch):
        self.epoch = epoch
        on_epoch(self, epoch)

    with patch.object(orders, "clusters", watch), patch.object(type(network), "on_epoch", note):
        Loop(network, network.settings).run("training")
    assert [(epoch, count, fresh) for epoch, count, _, fresh, _ in seen] == [(0, 4, True), (2, 4, True), (4, 4, True)]
    assert len({seed for _, _, seed, *_ in seen}) == 3
    assert not np.array_equal(seen[0][-1], seen[1][-1])


def test_batches_hold_points_with_similar_vectors():
    network, batches = by_vectors(refresh=1, group=8), []
    kinds = network.points.targets.indices[::2]
    with patch.object(Loop, "_step", lambda _self, rows, *_: batches.append(rows) or 1.0):
        Loop(network, LoopSettings(epochs=1, batch_size=32)).run("training")
    assert [len(rows) for rows in batches] == [32] * 4
    assert (np.diff(kinds[np.concatenate(batches)]) == 0).mean() > 0.2  # 0.05 by chance


def test_what_words_tell_is_not_clustered_again_nor_kept():
    network = by_vectors(by="words", refresh=1)
    before = network.order.similar.copy()
    with patch.object(orders, "clusters", side_effect=AssertionError):
        network.order.on_epoch(1, network)
    assert np.array_equal(network.order.similar, before) and network.order.state() == {}
    assert sorted(before) == list(range(128))


def test_an_order_by_vectors_comes_back_from_its_state():
    network = by_vectors()
    one, two = network.order, Similar(by="vectors", group=None).build(network.fit, 32)
    one.on_epoch(0, network)
    two.restore(one.state())
    draws = [order.rows(0, np.random.default_rng(5)) for order in (one, two)]
    assert np.array_equal(*draws) and draws[1].dtype == np.int64
    two.restore({})
    assert np.array_equal(two.similar, one.similar)


@pytest.mark.parametrize(("points", "sizes"), [(50, [49 + 1]), (99, [49, 50]), (98, [49, 49]), (30, [30])])
def test_no_point_is_alone_in_a_batch(points, sizes):
    recipe = short("inceptionxml", training__batch_size=49)
    network = networks(recipe, board(points))["training"]
    seen = []
    with patch.object(Loop, "_step", lambda _self, some, *_: seen.append(some) or 1.0):
        Loop(network, LoopSettings(epochs=1, batch_size=49)).run("training")
    assert [len(some) for some in seen] == sizes
    assert sorted(np.concatenate(seen)) == list(range(points))
    lt.fit(recipe, board(points))
