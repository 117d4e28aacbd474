from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import Given, board, networks, scores_of, short

import longtail as lt
from longtail.encoders.heads import FrozenResidual, Residual
from longtail.errors import ModelError, RecipeError
from longtail.labels.tree import Clusters
from longtail.parts import Batch, States, Step
from longtail.records import When
from longtail.samplers.clusters import BuiltClusters
from longtail.samplers.clusters import Clusters as Sampler
from longtail.scorers.clusters import WEIGHT, WEIGHTS, ClusterRetriever
from longtail.training.stages import training as stage
from longtail.types import label_matrix, no_pairs


@pytest.fixture(scope="module")
def network():
    trained = networks(short("inceptionxml_plus"), board(200))["training"]
    trained.dense.eval()
    return trained


def retriever(seed: int, *, head: bool, top: int) -> ClusterRetriever:
    draw = np.random.default_rng(seed)
    of = draw.permutation(np.arange(17) % 5)
    weight, bias, rows, shift = (draw.normal(size=size).astype(np.float32) for size in ((3, 3), (3,), (5, 3), (5,)))
    layer = FrozenResidual(weight, bias, np.ones(3, np.float32), np.zeros(3, np.float32), "gelu") if head else None
    return ClusterRetriever(Clusters.build(of), layer, rows, shift, top)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 9))
def test_candidates_are_the_labels_of_the_best_clusters(seed, head, top):
    clusters = retriever(seed, head=head, top=top)
    vectors = np.random.default_rng(seed + 1).normal(size=(4, 3)).astype(np.float32)
    proposed = clusters.propose(vectors, Given)
    every = []
    for row, vector in enumerate(vectors):
        own = clusters.head(vector[None])[0] if head else vector
        scores = clusters.rows @ own + clusters.bias
        every.append(scores[clusters.clusters.of])
        best = set(np.argsort(-scores)[:top].tolist())
        expected = [label for label in range(17) if clusters.clusters.of[label] in best]
        part = slice(proposed.indptr[row], proposed.indptr[row + 1])
        assert proposed.indices[part].tolist() == expected
        np.testing.assert_allclose(proposed.data[part], scores[clusters.clusters.of[expected]], atol=1e-4)
    rows, labels = np.repeat(np.arange(4), 17), np.tile(np.arange(17), 4)
    np.testing.assert_allclose(clusters.beyond(vectors, Given, rows, labels), np.concatenate(every), atol=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_labels_are_ranked_by_both_probabilities(weight):
    clusters = replace(retriever(0, head=True, top=3), weight=weight)
    proposed = clusters.propose(np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32), Given)
    by_rows = np.random.default_rng(2).normal(0, 5, proposed.nnz).astype(np.float32)
    scores = clusters.combine(by_rows, proposed.data, proposed.indptr, np.ones(proposed.nnz, np.bool_))
    assert (scores <= 0).all()
    for score, row, own in zip(scores, by_rows, proposed.data, strict=True):
        expected = -math.log1p(math.exp(-row)) - weight * math.log1p(math.exp(-own))
        assert score == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(clusters.additive(scores), np.exp(scores))
    large = clusters.combine(
        *(np.full(2, size, np.float32) for size in (-1e4, 1e4)), np.array([0, 2]), np.ones(2, bool)
    )
    assert np.isfinite(large).all()  # neither probability is 0


def test_new_labels_never_rank_before_the_best_trained_one():
    scores = retriever(0, head=False, top=2).score_new(np.array([-3.0, 9.0], np.float32), np.zeros(2), -0.5)
    np.testing.assert_allclose(scores, [-math.log1p(math.exp(3)), -0.5], rtol=1e-5)


def test_the_weight_of_clusters_is_the_first_of_the_best():
    class Scorer:
        def led(self, chosen):
            return chosen

    undecided = replace(retriever(0, head=False, top=2), undecided=True)
    assert undecided.choose(Scorer(), lambda trial: -abs(trial.weight - 0.3)).weight == 0.25
    assert undecided.choose(Scorer(), lambda trial: 0.0).weight == 0.0
    fixed = retriever(0, head=False, top=2)
    assert fixed.choose(Scorer(), lambda trial: -trial.weight) is fixed


def test_the_weight_of_clusters_is_chosen_on_validation_points_and_kept(tmp_path):
    recipe = short("inceptionxml_plus")
    assert recipe.undecided() == When.WHILE and recipe.override("sampler.cluster_weight", 0.5).undecided() == When.NEVER
    tried = []

    def quality(scorer, validation):
        tried.append((scorer.retriever.weight, len(validation)))
        return -abs(scorer.retriever.weight - 0.5)

    with patch.object(stage, "quality", quality):
        model = lt.fit(recipe, board())
    assert tried == [(weight, 20) for weight in WEIGHTS]
    fixed = lt.fit(recipe.override("sampler.cluster_weight", 0.4), board())
    for trained, weight in ((model, 0.5), (fixed, 0.4)):
        assert trained.vectors.retriever.weight == weight
        trained.save(tmp_path / "run", force=True)
        assert type(trained).load(tmp_path / "run").vectors.retriever.weight == weight
    few = lt.fit(recipe, board(19))  # too few to hold any out
    assert few.vectors.retriever.weight == WEIGHT


@pytest.mark.parametrize("head", [True, False])
def test_a_retriever_comes_back_and_a_damaged_one_does_not(head):
    clusters = retriever(0, head=head, top=2)
    arrays = clusters.arrays()
    vectors = np.ones((1, 3), np.float32)

    def opened(**changes) -> ClusterRetriever:
        layer = Residual(activation="gelu").open(arrays, "clusters.head", 3) if head else None
        return ClusterRetriever.of_arrays(arrays | changes, layer, 3, 2)

    assert np.array_equal(opened().scores(vectors), clusters.scores(vectors))
    assert opened(**{"clusters.weight": np.array([0.25])}).weight == 0.25 and not opened().undecided
    assert opened().propose(vectors, Given).indices.tolist() == clusters.propose(vectors, Given).indices.tolist()
    of = arrays["clusters.of"]
    for wrong in (of + 9, of - 1, np.zeros(17, np.int32), of[None]):
        with pytest.raises(ModelError, match=r"array clusters.of is damaged|not all of them used"):
            opened(**{"clusters.of": wrong})


def test_the_best_cluster_is_measured():
    clusters = retriever(0, head=False, top=2)
    vectors = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    best = clusters.scores(vectors).argmax(axis=1)
    labels = [int(np.flatnonzero(clusters.clusters.of == cluster)[0]) for cluster in best]
    labels[0] = int(np.flatnonzero(clusters.clusters.of != best[0])[0])
    targets = label_matrix(np.arange(7), np.array(labels), (6, 17))
    assert clusters.metrics(vectors, Given, targets) == {"meta P@1": pytest.approx(100 * 5 / 6)}


def test_an_objective_over_clusters_is_needed():
    recipe = short("inceptionxml_plus")
    with pytest.raises(RecipeError, match="needs an objective over clusters"):
        replace(recipe, objectives=recipe.objectives[:1]).check()
    with pytest.raises(RecipeError, match="needs a sampler that makes them"):
        networks(recipe.override("sampler", "all_labels"), board(100))
    with pytest.raises(RecipeError, match=r"clusters\.most is now called max_candidates"):
        recipe.override("sampler.most", 3)


def clustered(network, points, *, top=1, most=8192, excluded=None):
    """Ask for the candidates of a batch: the pool, which of them each point sees, the targets, the cluster loss."""
    sampler = BuiltClusters(Sampler(top=top, max_candidates=most), network.terms[0].sampler.partition)
    targets = network.points.targets[points]
    encoded = torch.randn(len(points), network.width, generator=torch.Generator().manual_seed(0))
    excluded = no_pairs(targets.shape) if excluded is None else excluded
    weights = np.ones(len(points), np.float32)
    batch = Batch(points, network.points.inputs.take(points), targets, excluded, weights)
    step = Step(np.random.default_rng(0), 1.0, network)
    candidates = sampler.propose(batch, lambda: States(encoded), step)
    loss = network.over("clusters")(batch, lambda: States(encoded), step)
    return candidates.labels, candidates.mask.numpy(), targets.toarray(), float(loss.detach())


def test_a_cluster_with_an_excluded_label_is_masked_out(network):
    points = np.arange(10)
    partition = network.terms[0].sampler.partition
    targets, of = network.points.targets[points], partition.of
    other = [next(label for label in range(len(of)) if of[label] not in of[row.indices]) for row in targets]
    excluded = label_matrix(np.arange(len(points) + 1), np.array(other), targets.shape)
    plain, masked = clustered(network, points)[3], clustered(network, points, excluded=excluded)[3]
    cells = len(points) * len(partition)
    assert masked != plain
    assert masked * (cells - len(points)) < plain * cells  # ten terms of the sum are gone, and none came
    same = clustered(network, points, excluded=targets)[3]  # the cluster of a positive counts in any case
    assert same == pytest.approx(plain)


@pytest.mark.parametrize("most", [1, 10, 8192])
@pytest.mark.parametrize("top", [1, 3, 99])
def test_positives_are_always_in_the_pool_and_seen(network, top, most):
    points = np.arange(0, 60)
    pool, mask, targets, loss = clustered(network, points, top=top, most=most)
    assert pool.tolist() == sorted(set(pool.tolist()))
    assert set(np.nonzero(targets)[1]) <= set(pool.tolist())
    places = np.searchsorted(pool, np.nonzero(targets)[1])
    assert mask[np.nonzero(targets)[0], places].all()
    assert np.isfinite(loss)


def test_a_point_sees_the_labels_of_its_own_clusters(network):
    points = np.arange(10)
    pool, mask, targets, _ = clustered(network, points, top=2)
    partition = network.terms[0].sampler.partition
    of = partition.of[pool]
    for row in range(len(points)):
        seen = set(of[mask[row]].tolist())
        positive = set(partition.of[np.flatnonzero(targets[row])].tolist())
        assert positive <= seen
        assert len(seen) == max(2, len(positive))
        assert mask[row].tolist() == [cluster in seen for cluster in of]


def test_the_union_is_cut_where_fewest_points_chose():
    partition = Clusters.build(np.repeat(np.arange(8), 4))  # of four labels each
    chosen = np.zeros((4, len(partition)), bool)
    chosen[:, 1] = chosen[:3, 4] = chosen[0, 6] = chosen[0, 2] = True
    positive = np.zeros_like(chosen)
    positive[0, 6] = True

    def labels_of(most, points=4, positive=positive):
        sampler = BuiltClusters(Sampler(max_candidates=most), partition)
        return sampler._union(chosen[:points], positive[:points])

    def clusters_of(most, **more):
        return sorted(set(partition.of[labels_of(most, **more)].tolist()))

    assert clusters_of(10**6) == [1, 2, 4, 6]
    assert clusters_of(4) == [1, 2, 4, 6]  # for each of four points
    assert clusters_of(3) == [1, 4, 6]
    assert clusters_of(2) == [1, 6]
    assert clusters_of(3, points=2) == [6]  # fewer points have room for fewer labels
    assert clusters_of(4, points=2) == [1, 6]
    assert clusters_of(1) == [6]
    assert clusters_of(1, positive=chosen) == [1, 2, 4, 6]  # what a point has is never cut
    assert labels_of(10, points=0).tolist() == []


def test_what_is_served_is_what_was_learnt(network):
    """The frozen retriever scores clusters as the objective over clusters does."""
    points = np.arange(20)
    inputs = network.points.inputs.take(points)
    step = Step(np.random.default_rng(0), 1.0, network)
    term = network.over("clusters")
    served = network.terms[0].sampler.freeze(network)
    dropless = replace(term.objective.classifier, dropout=0.0)
    term.classifier.settings, before = dropless, term.classifier.settings
    term.head.settings, head = replace(term.head.settings, dropout=0.0), term.head.settings
    try:
        states = network.tower(inputs, None)
        scores = scores_of(term, states, np.arange(len(served.rows)), step).detach().numpy()
    finally:
        term.classifier.settings, term.head.settings = before, head
    np.testing.assert_allclose(served.scores(network.vectors(inputs)), scores, rtol=1e-3, atol=1e-3)
    assert served.top == 2 and len(served.clusters) == len(network.terms[0].sampler.partition)


@pytest.mark.parametrize(
    ("framework", "progress", "reaches"),
    [
        ("synchronised", 0.0, False),
        ("synchronised", 0.24, False),
        ("synchronised", 0.25, True),
        ("lightxml", 0.0, True),
    ],
)
def test_label_rows_reach_the_encoder_after_the_first_quarter(framework, progress, reaches):
    recipe = short("inceptionxml_plus", encoder__dropout=0, classifier__dropout=0, head__dropout=0)
    recipe = recipe.override("objectives.1.classifier.dropout", 0).override("objectives.1.head.dropout", 0)
    if framework == "lightxml":
        recipe = recipe.override("objectives.1.head", "none").override("detach", 0)
    network = networks(recipe, board(200))["training"]
    assert (network.over("clusters").head is None) == (framework == "lightxml")
    gradients = []
    rows = network.tables["rows0"]
    for scale in (1.0, 2.0):  # what comes from label rows grows with them, what comes from clusters does not
        network.dense.eval()
        network.dense.zero_grad()
        with torch.no_grad():
            rows.values.mul_(scale)
        network.loss(np.arange(20), np.random.default_rng(0), progress).backward()
        gradients.append(network.tower.module.second.weight.grad.clone())
        assert rows.gradient()[1].abs().sum() > 0  # the rows themselves always learn
        rows.gathered.clear()
    assert gradients[0].abs().sum() > 0
    assert (not torch.equal(*gradients)) == reaches
