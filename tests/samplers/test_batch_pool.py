"""The pool of a batch: which labels are drawn, which stay when it is full, what is mined, and what a point sees."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import board, networks, short

import longtail as lt
from longtail.errors import RecipeError
from longtail.parts import Batch, Candidates, Query, Step
from longtail.samplers import batch_pool
from longtail.samplers.all_labels import AllLabels
from longtail.samplers.batch_pool import BatchPool, BuiltPool, some_of
from longtail.shards import ALONE
from longtail.training.term import Encoded

pytestmark = pytest.mark.usefixtures("one_thread")
LABELS = 40


def matrix(rows: list[list[int]], labels: int = LABELS) -> sp.csr_array:
    """Make soft targets; those of the label 3 are 0.3."""
    dense = np.zeros((len(rows), labels), np.float32)
    for place, row in enumerate(rows):
        dense[place, row] = np.where(np.array(row, int) == 3, 0.3, 1.0)
    return sp.csr_array(dense)


def drawn(pool: BatchPool, targets: sp.csr_array, mined: sp.csr_array | None = None, seed: int = 0):
    """Propose for a batch; returns what was proposed, and the positives that were drawn for each point."""
    rows = np.arange(targets.shape[0])
    batch = Batch(rows, None, targets, sp.csr_array(targets.shape), np.ones(len(rows), np.float32))
    kept: list[Any] = [targets]
    real = batch_pool.some_of
    with patch.object(batch_pool, "some_of", lambda *some: kept.append(real(*some)) or kept[-1]):
        step = Step(np.random.default_rng(seed), 1.0, None)
        return BuiltPool(pool, mined).propose(batch, None, step), kept[-1]


TARGETS = matrix([[0, 1, 2, 3, 4], [3, 4, 5], [6], [], [2, 7, 8, 9]])
MINED = matrix([[20, 21], [22, 23, 24], [25], [26], []])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_some_of_a_row_are_drawn_without_replacement(seed, count):
    draw = np.random.default_rng(seed)
    dense = np.where(draw.random((5, 7)) < 0.5, draw.random((5, 7)), 0).astype(np.float32)
    dense[draw.integers(5)] = 0
    kept = some_of(sp.csr_array(dense), count, draw)
    assert kept.has_canonical_format and kept.shape == dense.shape
    assert np.diff(kept.indptr).tolist() == np.minimum((dense > 0).sum(axis=1), count).tolist()
    rows, columns = kept.nonzero()
    assert np.array_equal(kept.data, dense[rows, columns])


def test_equal_entries_of_a_row_are_drawn_as_often_and_larger_ones_more():
    equal = TARGETS > 0
    counts = sum(some_of(equal, 2, np.random.default_rng(seed)).toarray() > 0 for seed in range(1000))
    expected = {0: 2 / 5, 1: 2 / 3, 2: 1.0, 4: 2 / 4}
    for row, share in expected.items():
        np.testing.assert_allclose(counts[row][TARGETS[[row]].indices] / 1000, share, atol=0.06)
    assert not counts[3].any()
    soft = sp.csr_array(np.array([[1.0, 0.25, 0.0, 0.75]], np.float32))
    counts = sum(some_of(soft, 1, np.random.default_rng(seed)).toarray() > 0 for seed in range(1000))
    np.testing.assert_allclose(counts[0] / 1000, [0.5, 0.125, 0, 0.375], atol=0.06)


@pytest.mark.parametrize("count", [1, 2, 3, None])
def test_the_pool_is_the_union_of_what_was_drawn_for_each_point(count):
    candidates, own = drawn(BatchPool(positives=count, random=0), TARGETS)
    assert candidates.labels.tolist() == sorted(set(own.indices.tolist()))
    each = np.diff(TARGETS.indptr)
    assert np.diff(own.indptr).tolist() == (each if count is None else np.minimum(each, count)).tolist()
    assert candidates.mask is None
    pools = {tuple(drawn(BatchPool(positives=count, random=0), TARGETS, seed=s)[0].labels) for s in range(9)}
    assert (len(pools) == 1) == (count is None)


def test_random_and_hard_labels_join_the_positives():
    candidates, own = drawn(BatchPool(positives=1, random=5, hard=2), TARGETS, MINED)
    others = np.setdiff1d(candidates.labels, own.indices)
    hard = np.intersect1d(others, MINED.indices)
    assert np.array_equal(candidates.labels, np.unique(candidates.labels))
    assert len(hard) >= 4 and {25, 26} <= set(hard.tolist())  # of every point that has any
    assert len(others) <= len(hard) + 5
    without, _ = drawn(BatchPool(positives=1, random=0, hard=2), TARGETS)
    assert not np.isin(without.labels, MINED.indices).any()  # nothing is mined yet


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_picking_one_hides_positives_that_were_not_drawn_for_the_point(seed, count):
    candidates, own = drawn(BatchPool(positives=count, pick="one", random=8), TARGETS, seed=seed)
    assert candidates.mask.shape == (5, len(candidates.labels))
    for i, j in np.ndindex(*candidates.mask.shape):
        label = candidates.labels[j]
        assert bool(candidates.mask[i, j]) == (TARGETS[i, label] == 0 or own[i, label] > 0)


def test_of_all_positives_none_is_hidden():
    candidates, _ = drawn(BatchPool(positives=None, pick="one", random=3), TARGETS)
    assert candidates.mask.all()


def test_one_of_all_labels_may_be_picked_too():
    rows = np.arange(5)
    batch = Batch(rows, None, TARGETS, sp.csr_array(TARGETS.shape), np.ones(5, np.float32))
    every, one = (
        AllLabels(pick=pick).build(None).propose(batch, None, Step(np.random.default_rng(0), 1.0, None))
        for pick in ("all", "one")
    )
    assert every.labels.tolist() == one.labels.tolist() == list(range(LABELS)) and every.mask is None
    right = torch.from_numpy(TARGETS.toarray() > 0)
    assert one.mask[~right].all()
    assert (one.mask & right).sum(dim=1).tolist() == [1, 1, 1, 0, 1]


# A pool of a certain size


@pytest.mark.parametrize("size", [5, 6, 8, 99])
def test_a_full_pool_keeps_drawn_positives_and_leaves_out_hard_negatives(size):
    pool = BatchPool(positives=1, random=0, hard=3, size=size)
    for seed in range(20):
        labels, own = drawn(pool, TARGETS, MINED, seed)
        labels = labels.labels
        assert set(own.indices.tolist()) <= set(labels.tolist())
        assert len(labels) <= size and np.array_equal(labels, np.unique(labels))
        assert set(labels.tolist()) <= {*own.indices.tolist(), *MINED.indices.tolist()}  # no other positives
        free, _ = drawn(replace(pool, size=None), TARGETS, MINED, seed)
        assert len(labels) == min(size, len(free.labels))


def test_what_is_left_out_of_a_full_pool_is_drawn_by_chance():
    pool = BatchPool(positives=1, random=0, hard=9, size=6)
    kept = {label for seed in range(40) for label in drawn(pool, TARGETS, MINED, seed)[0].labels}
    assert set(MINED.indices.tolist()) <= kept


@pytest.mark.parametrize(("hard", "mined"), [(0, MINED), (0, None), (3, None)])
@pytest.mark.parametrize("size", [4, 6, 10, 99])
def test_without_hard_negatives_other_positives_fill_the_pool(size, hard, mined):
    for seed in range(20):
        labels, own = drawn(BatchPool(positives=1, random=0, hard=hard, size=size), TARGETS, mined, seed)
        labels = labels.labels
        assert set(own.indices.tolist()) <= set(labels.tolist()) <= set(TARGETS.indices.tolist())
        assert len(labels) == min(size, 10)  # all positives are ten labels
    unlimited, own = drawn(BatchPool(positives=1, random=0, hard=hard), TARGETS, mined)
    assert set(unlimited.labels.tolist()) == set(own.indices.tolist())


def test_a_point_more_than_a_batch_has_leaves_no_room_for_others():
    """The last batch of an epoch may have one point more; its positives stay, and nothing else."""
    targets, mined = matrix([[0], [1], [2]]), matrix([[20, 21], [22, 23], [24, 25]])
    labels, _ = drawn(BatchPool(positives=1, random=0, hard=2, size=2), targets, mined)
    assert labels.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler__size": 128}, "a pool of 128 labels needs to know sampler.positives"),
        ({"sampler__positives": 2, "sampler__size": 255}, r"128 points with 2 each: --set sampler\.size=256"),
    ],
)
def test_a_pool_smaller_than_the_positives_of_a_batch_is_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        lt.fit(short("frugal", **changes), board(50))


def test_the_largest_batch_of_all_stages_must_fit():
    recipe = short("frugal", sampler__positives=2, sampler__size=256)
    recipe.check()
    siamese = recipe.override("siamese", "siamese").override("siamese.training.batch_size", 200)
    with pytest.raises(RecipeError, match="200 points with 2 each"):
        siamese.check()


# What is mined


def rows_of(labels: sp.csr_array) -> list[list[int]]:
    return [sorted(labels[[row]].indices.tolist()) for row in range(labels.shape[0])]


class Best:
    """A scorer for which the labels 0, 1, 2 … are the best for every point."""

    def __len__(self) -> int:
        return LABELS

    def top(self, query: Query, k: int):
        labels = np.tile(np.arange(k, dtype=np.int32), (len(query), 1))
        return labels, np.zeros(labels.shape, np.float32)


def epochs_of(pool: BatchPool, epochs: int = 9) -> list[int]:
    """List the epochs before which a pool mines."""
    built, excluded = BuiltPool(pool), matrix([[], [], [0], [], []])
    points = SimpleNamespace(inputs=np.zeros(5), targets=TARGETS, excluded=excluded)
    term = SimpleNamespace(sampler=built, group=ALONE, freeze=lambda own: Best())
    network: Any = SimpleNamespace(points=points, terms=[term])
    mined = []
    with patch.object(Query, "of_inputs", lambda rows: rows):
        for epoch in range(epochs):
            built.mined = None
            built.on_epoch(epoch, network)
            mined += [epoch] if built.mined is not None else []
            if built.mined is not None:  # the best without those that are right or excluded
                assert rows_of(built.mined) == [[], [0, 1, 2], [1, 2, 3], [0, 1, 2, 3], [0, 1, 3]]
    return mined


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({"refresh": 3}, [3, 6]),
        ({"refresh": 3, "start": 0}, [0, 3, 6]),
        ({"refresh": 3, "start": 1}, [1, 4, 7]),
        ({"refresh": 1, "start": 6}, [6, 7, 8]),
        ({"refresh": 0, "start": 0}, []),
        ({"refresh": 1, "hard": 0}, []),
    ],
    ids=str,
)
def test_mining_starts_and_is_repeated_when_it_should(changes, epochs, monkeypatch):
    monkeypatch.setattr(batch_pool, "CHUNK", 2)
    assert epochs_of(BatchPool(**({"hard": 2, "mined": 4} | changes))) == epochs


def test_what_is_mined_is_what_the_first_objective_with_the_pool_finds():
    network = networks(short("unidec", sampler__mined=4, objectives__1__sampler__mined=4), board(100))["training"]
    pool, term, targets = network.terms[0].sampler, network.terms[0], network.points.targets
    assert network.terms[1].sampler is pool
    pool.on_epoch(0, network)
    labels, _ = term.freeze().top(Query.of_inputs(network.points.inputs), 4)
    wrong = [sorted(set(row.tolist()) - set(right)) for row, right in zip(labels, rows_of(targets), strict=True)]
    assert rows_of(pool.mined) == wrong
    both, _ = network.scorer().top(Query.of_inputs(network.points.inputs), 4)
    assert not np.array_equal(both, labels)  # not what is served


def test_of_many_labels_most_of_the_best_are_mined(monkeypatch):
    network = networks(short("unidec", sampler__mined=4, objectives__1__sampler__mined=4), board(100))["training"]
    pool = network.terms[0].sampler
    pool.on_epoch(0, network)
    exact = rows_of(pool.mined)
    monkeypatch.setattr(batch_pool, "MANY", 2)
    monkeypatch.setattr(batch_pool, "PROBES", 1)
    pool.on_epoch(0, network)
    few = rows_of(pool.mined)
    monkeypatch.setattr(batch_pool, "PROBES", 1000)
    pool.on_epoch(0, network)
    assert rows_of(pool.mined) == exact != few


def test_what_was_mined_comes_back_from_a_checkpoint():
    one, two = BuiltPool(BatchPool(hard=1), MINED), BuiltPool(BatchPool(hard=1))
    assert two.state() == {}
    two.restore(one.state())
    assert np.array_equal(two.mined.toarray(), MINED.toarray())
    two.restore({})
    assert two.mined is not None


# What a point sees of the pool


def scored_by(**changes):
    """Score a batch of a network whose pool holds one drawn positive of each point."""
    recipe = short("frugal", augment=[], sampler__positives=1, sampler__random=0, **changes)
    network = networks(recipe, board(60))["training"]
    batch = network.points.take(np.arange(24))
    step = Step(np.random.default_rng(3), 1.0, network)
    term = network.terms[0]
    scored = term.scored(batch, Encoded(lambda: network.states(batch.inputs, step)), step)
    candidates: Candidates = step.memory[term.sampler]
    return batch.targets.toarray(), candidates.labels, scored


def test_all_positives_in_the_pool_count_also_those_drawn_for_another_point():
    targets, labels, scored = scored_by()
    assert np.array_equal(scored.targets.numpy(), targets[:, labels])
    assert scored.mask is None
    assert (scored.targets.sum(dim=1) > 1).any()  # one was drawn for each
    assert scored.scores.shape == (24, len(labels)) and len(labels) < (targets.any(axis=0)).sum()


def test_with_one_pick_positives_that_others_drew_are_left_out():
    targets, labels, scored = scored_by(sampler__pick="one")
    seen = scored.targets.numpy() * scored.mask.numpy()
    assert ((seen > 0).sum(axis=1) == 1).all()
    assert scored.mask.numpy()[targets[:, labels] == 0].all()  # all negatives are seen


def test_excluded_pairs_stay_hidden_beside_those_that_were_not_picked():
    recipe = short("frugal", augment=[], sampler__positives=1, sampler__pick="one", sampler__random=500)
    train = board(60)
    pairs = np.zeros(train.targets.shape, np.float32)
    pairs[:, 7] = train.targets.toarray()[:, 7] == 0
    network = networks(recipe, replace(train, excluded=sp.csr_array(pairs)))["training"]
    batch, step = network.points.take(np.arange(24)), Step(np.random.default_rng(3), 1.0, network)
    scored = network.terms[0].scored(batch, Encoded(lambda: network.states(batch.inputs, step)), step)
    labels = step.memory[network.terms[0].sampler].labels
    assert torch.equal(scored.mask[:, labels == 7].squeeze(), torch.from_numpy(pairs[:24, 7] == 0))
    assert (~scored.mask).sum() > pairs[:24].sum()
