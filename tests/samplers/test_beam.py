"""The beam: clusters are chosen once, by a level that was trained before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import board, dropless, networks, scores_of, short

import longtail as lt
from longtail.errors import RecipeError
from longtail.parts import DRAWN, Query, States, Step
from longtail.records import When
from longtail.samplers.beam import Beam, BuiltBeam
from longtail.samplers.drawn import Drawn
from longtail.training.loop import Loop

pytestmark = pytest.mark.usefixtures("one_thread")


def never() -> States:
    raise AssertionError("the clusters are known without the encoded batch")


@pytest.fixture(scope="module")
def trained():
    torch.set_num_threads(1)
    return networks(dropless(short("decaf+gandalf", sampler__top=2)), board(200), run=True)


def cluster_scores(network, inputs) -> np.ndarray:
    """Score all clusters of points as the objective over clusters of a network does."""
    network.dense.eval()
    step, term = Step(np.random.default_rng(0), 1.0, network), network.over("clusters")
    with torch.no_grad():
        return scores_of(term, network.tower(inputs, None), np.arange(len(term.partition)), step).numpy()


def test_every_point_keeps_the_best_clusters_of_the_level_before(trained):
    level, network = trained["level"], trained["training"]
    sampler = network.terms[0].sampler
    assert isinstance(sampler, BuiltBeam) and network.fit.before is level
    assert sampler.partition is level.over("clusters").partition is network.over("clusters").partition
    scores = cluster_scores(level, network.points.inputs)
    assert sampler.beams.shape == (200 + 30, 2)  # of the points that gandalf made too
    best = np.argsort(-scores, axis=1)[:, :2]
    assert (np.sort(sampler.beams) == np.sort(best)).all(axis=1).mean() > 0.98  # but ties


def test_a_beam_stays_while_the_network_moves():
    network = networks(short("decaf", sampler__top=1), board(200))["training"]
    sampler = network.terms[0].sampler
    before, rows = sampler.beams.copy(), np.arange(50)

    def proposed():
        step = Step(np.random.default_rng(0), 1.0, network)
        candidates = sampler.propose(network.points.take(rows), never, step)
        return candidates.labels.tolist(), candidates.mask.tolist()

    first = proposed()
    Loop(network, network.settings).run("training")
    assert np.array_equal(sampler.beams, before) and proposed() == first
    assert sampler.state() == {}


@pytest.mark.parametrize("forced", [False, True])
def test_positives_that_no_chosen_cluster_holds_are_forced_in_only_if_asked_for(trained, forced):
    network, rows = trained["training"], np.arange(0, 200, 3)
    sampler = network.terms[0].sampler
    partition, targets = sampler.partition, network.points.targets[rows].toarray()
    elsewhere = (partition.of + 1) % len(partition)  # of each label another cluster
    sampler = BuiltBeam.__new__(BuiltBeam)
    sampler.settings, sampler.partition = Beam(top=1, positives=forced), partition
    sampler.beams = np.zeros((230, 1), np.int32)
    for row in range(200):
        sampler.beams[row] = elsewhere[network.points.targets[[row]].indices[0]]
    candidates = sampler.propose(network.points.take(rows), never, Step(np.random.default_rng(0), 1.0, network))
    pool, mask = candidates.labels, candidates.mask.numpy()
    assert pool.tolist() == sorted(set(pool.tolist()))
    for row, point in enumerate(rows):
        beam = {int(sampler.beams[point, 0])}
        positive = set(partition.of[np.flatnonzero(targets[row])].tolist())
        assert not positive <= beam
        wanted = beam | positive if forced else beam
        seen = set(pool[mask[row]].tolist())
        assert seen == {label for label in range(30) if partition.of[label] in wanted}
        assert (set(np.flatnonzero(targets[row]).tolist()) <= seen) == forced


def test_what_is_not_in_the_beam_is_not_learnt(trained):
    network = trained["training"]
    sampler = network.terms[0].sampler
    network.dense.eval()
    point = np.array([0])
    positive = network.points.targets[point].indices
    of = sampler.partition.of
    outside = np.setdiff1d(np.arange(len(sampler.partition)), of[positive])[:1]
    kept, sampler.beams = sampler.beams, np.repeat(outside[None].astype(np.int32), 230, axis=0)
    try:
        for table in network.tables.values():
            table.gathered.clear()
        network.loss(point, np.random.default_rng(0)).backward()
        rows, gradient = network.tables["rows0"].gradient()
    finally:
        sampler.beams = kept
    assert rows.tolist() == np.flatnonzero(of == outside[0]).tolist()
    assert gradient.abs().sum() > 0


def test_what_is_served_follows_the_network_and_ranks_by_both_probabilities(trained):
    network = trained["training"]
    scorer = network.scorer()
    served = scorer.retriever
    vectors = network.vectors(network.points.inputs)
    scores = cluster_scores(network, network.points.inputs)
    np.testing.assert_allclose(served.scores(vectors), scores, rtol=1e-3, atol=1e-3)
    assert np.abs(scores - cluster_scores(trained["level"], network.points.inputs)).max() > 0.01
    assert (served.top, served.weight, served.undecided) == (2, 1.0, False)
    query = Query.of_inputs(network.points.inputs)
    labels, values = scorer.top(query, 3)
    logits = scorer.encoded(query) @ scorer.store.take(slice(None)).T + scorer.store.bias
    for row in range(0, 200, 17):
        for label, value in zip(labels[row], values[row], strict=True):
            both = -np.log1p(np.exp(-logits[row, label])), -np.log1p(np.exp(-scores[row, served.clusters.of[label]]))
            assert value == pytest.approx(sum(both), rel=1e-2, abs=1e-3)


def test_the_weight_of_clusters_is_given_unless_it_is_asked_for():
    assert Beam().undecided() == When.NEVER and Beam(cluster_weight=None).undecided() == When.WHILE
    model = lt.fit(short("decaf", sampler__cluster_weight=0.5), board(100))
    assert model.vectors.retriever.weight == 0.5


def test_a_level_and_an_objective_over_clusters_are_needed():
    recipe = short("decaf")
    with pytest.raises(RecipeError, match="level=level"):
        recipe.override("level", None).check()
    with pytest.raises(RecipeError, match="objective over clusters"):
        replace(recipe, objectives=recipe.objectives[:1]).check()


def test_what_was_drawn_is_proposed():
    step = Step(np.random.default_rng(0), 1.0, None, memory={DRAWN: np.array([7, 3, 7, 1])})
    assert Drawn().build(None).propose(None, never, step).labels.tolist() == [1, 3, 7]
