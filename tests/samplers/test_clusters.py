from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import board, networks, short

from longtail.encoders.head import Head
from longtail.errors import ModelError
from longtail.labels.tree import Clusters
from longtail.shortlists.meta import MetaGuide
from longtail.types import label_matrix, no_pairs


@pytest.fixture(scope="module")
def network():
    made = networks(short("inceptionxml_plus"), board(200))["training"]
    made.dense.eval()
    return made


def guide(seed: int, *, head: bool, top: int) -> MetaGuide:
    draw = np.random.default_rng(seed)
    of = draw.permutation(np.arange(17) % 5)
    weight, bias, rows, shift = (draw.normal(size=size).astype(np.float32) for size in ((3, 3), (3,), (5, 3), (5,)))
    layer = Head(weight, bias, np.ones(3, np.float32), np.zeros(3, np.float32), "gelu") if head else None
    return MetaGuide(Clusters.build(of), layer, rows, shift, top)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 9))
def test_candidates_are_the_labels_of_the_best_clusters(seed, head, top):
    made = guide(seed, head=head, top=top)
    vectors = np.random.default_rng(seed + 1).normal(size=(4, 3)).astype(np.float32)
    found = made.candidates(vectors)
    for row, vector in enumerate(vectors):
        own = made.head(vector[None])[0] if head else vector
        scores = made.rows @ own + made.bias
        best = set(np.argsort(-scores)[:top].tolist())
        expected = [label for label in range(17) if made.clusters.of[label] in best]
        part = slice(found.indptr[row], found.indptr[row + 1])
        assert found.indices[part].tolist() == expected
        np.testing.assert_allclose(found.data[part], scores[made.clusters.of[expected]], atol=1e-4)
    by_rows = np.arange(found.nnz, dtype=np.float32)
    assert made.combined(by_rows, found) is by_rows


@pytest.mark.parametrize("head", [True, False])
def test_a_guide_comes_back_and_a_damaged_one_does_not(head):
    made = guide(0, head=head, top=2)
    held = made.arrays()
    vectors = np.ones((1, 3), np.float32)
    assert np.array_equal(MetaGuide.of_arrays(held, 2).scores(vectors), made.scores(vectors))
    for of in (held["meta.of"] + 9, held["meta.of"] - 1, np.zeros(17, np.int32), held["meta.of"][None]):
        with pytest.raises(ModelError, match="clusters of the model are damaged"):
            MetaGuide.of_arrays(held | {"meta.of": of}, 2)


def clustered(network, points, *, top=1, most=8192, excluded=None):
    """Ask for the candidates of a batch: the pool, what counts, and the targets."""
    network.plan = replace(network.plan, shortlist=replace(network.plan.shortlist, top=top, most=most))
    targets = network.points.targets[points]
    weights = torch.ones(len(points))
    size = network.dense.meta_rows.in_features
    encoded = torch.randn(len(points), size, generator=torch.Generator().manual_seed(0))
    out = no_pairs(targets.shape) if excluded is None else excluded
    pool, counted, loss = network._by_clusters(encoded, targets, out, weights, np.random.default_rng(0))
    return pool, counted.numpy(), targets.toarray(), float(loss.detach())


def test_a_cluster_with_an_excluded_label_is_wrong_for_nobody(network):
    points = np.arange(10)
    targets, of = network.points.targets[points], network.plan.clusters.of
    other = [next(label for label in range(len(of)) if of[label] not in of[row.indices]) for row in targets]
    excluded = label_matrix(np.arange(len(points) + 1), np.array(other), targets.shape)
    plain, masked = clustered(network, points)[3], clustered(network, points, excluded=excluded)[3]
    cells = len(points) * len(network.plan.clusters)
    assert masked != plain
    assert masked * (cells - len(points)) < plain * cells  # ten terms of the sum are gone, and none came
    same = clustered(network, points, excluded=targets)[3]  # the cluster of a positive counts in any case
    assert same == pytest.approx(plain)


@pytest.mark.parametrize("most", [1, 10, 8192])
@pytest.mark.parametrize("top", [1, 3, 99])
def test_positives_are_always_in_the_pool_and_count(network, top, most):
    points = np.arange(0, 60)
    pool, counted, targets, loss = clustered(network, points, top=top, most=most)
    assert pool.tolist() == sorted(set(pool.tolist()))
    assert set(np.nonzero(targets)[1]) <= set(pool.tolist())
    places = np.searchsorted(pool, np.nonzero(targets)[1])
    assert counted[np.nonzero(targets)[0], places].all()
    assert np.isfinite(loss)


def test_a_point_sees_the_labels_of_its_own_clusters(network):
    points = np.arange(10)
    pool, counted, targets, _ = clustered(network, points, top=2)
    of = network.plan.clusters.of[pool]
    for row in range(len(points)):
        seen = set(of[counted[row]].tolist())
        positive = set(network.plan.clusters.of[np.flatnonzero(targets[row])].tolist())
        assert positive <= seen
        assert len(seen) == max(2, len(positive))
        assert counted[row].tolist() == [cluster in seen for cluster in of]


def test_the_union_is_cut_where_fewest_points_chose(network):
    clusters = network.plan.clusters
    chosen = np.zeros((4, len(clusters)), bool)
    chosen[:, 1] = chosen[:3, 4] = chosen[0, 6] = chosen[0, 2] = True
    wanted = np.zeros_like(chosen)
    wanted[0, 6] = True
    sizes = np.diff(clusters.starts)

    def clusters_of(most):
        return sorted(set(clusters.of[network._union(chosen, wanted, most)].tolist()))

    assert clusters_of(10**6) == [1, 2, 4, 6]
    assert clusters_of(int(sizes[[6, 1, 4]].sum())) == [1, 4, 6]
    assert clusters_of(int(sizes[[6, 1]].sum())) == [1, 6]
    assert clusters_of(1) == [6]  # what a point has is never cut
    assert network._union(chosen & False, wanted & False, 10).tolist() == []


@pytest.mark.parametrize(
    ("framework", "part", "reaches"),
    [
        ("synchronised", 0.0, False),
        ("synchronised", 0.24, False),
        ("synchronised", 0.25, True),
        ("lightxml", 0.0, True),
    ],
)
def test_label_rows_reach_the_encoder_after_the_first_quarter(framework, part, reaches):
    recipe = short("inceptionxml_plus", shortlist__framework=framework, encoder__dropout=0, classifier__dropout=0)
    made = networks(recipe.override("shortlist.dropout", 0), board(200))["training"]
    assert (made.dense.meta_head is None) == (framework == "lightxml")
    gradients = []
    for scale in (1.0, 2.0):  # what comes from label rows grows with them, what comes from clusters does not
        made.dense.eval()
        made.dense.zero_grad()
        with torch.no_grad():
            made.tables["labels"].values.mul_(scale)
        made.loss(np.arange(20), np.random.default_rng(0), part).backward()
        gradients.append(made.dense.encoder.second.weight.grad.clone())
        assert made.tables["labels"].leaf.grad.abs().sum() > 0  # the rows themselves always learn
    assert gradients[0].abs().sum() > 0
    assert (not torch.equal(*gradients)) == reaches
