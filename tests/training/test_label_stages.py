"""Stages of the models that read label texts: siamese, recluster, phase, level and traverse."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from golden.corpus import corpus
from small import board, dropless, networks, same, short, small

import longtail as lt
from longtail.data.dataset import from_rows
from longtail.errors import DataError, RecipeError
from longtail.labels.tree import clusters
from longtail.labels.walk import normalised, random_walk
from longtail.model import Model
from longtail.parts import DRAWN, Step
from longtail.records import When, named
from longtail.training.loop import Loop
from longtail.training.stages import recluster as stage
from longtail.training.stages import training, traverse
from longtail.training.stages.siamese import Pairs
from longtail.types import label_matrix

pytestmark = pytest.mark.usefixtures("one_thread")  # bit-equal


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def started(recipe, train, moving):
    """Build the networks of all stages, and move everything that one of them would have trained, instead of it."""
    seen, draw = {}, torch.Generator().manual_seed(0)

    def moved(self: Loop, name: str, **_more) -> None:
        seen[name] = self.network
        with torch.no_grad():
            if name == moving:
                parameters = self.network.dense.parameters()
                for value in (*parameters, *(table.values for table in self.network.tables.values())):
                    value.add_(0.3 * torch.randn(value.shape, generator=draw))

    with patch.object(Loop, "run", moved):
        lt.fit(recipe, train)
    return seen


# Phases


def weights_of(term):
    """Name the weights of an objective."""
    parts = dict(term.modules())
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    return state | {name: table.values for name, table in term.classifier.tables.items()}


def test_a_phase_hands_on_what_has_the_same_name_and_shape_and_the_rest_starts_fresh():
    recipe, train = short("inceptionxml_lf"), corpus(120)
    recipe = recipe.override("encoder.max_tokens", 6)
    seen = started(recipe, train, "phase")
    phase, training = seen["phase"], seen["training"]
    fresh = networks(replace(recipe, stages=recipe.stages[-1:]), train)["training"]
    assert torch.equal(training.tables["words"].values, phase.tables["words"].values)
    for name, value in phase.tower.module.state_dict().items():
        assert torch.equal(training.tower.module.state_dict()[name], value), name
    before, after, start = (weights_of(network.terms[0]) for network in (phase, training, fresh))
    assert set(after) - set(before) == {"rows"}  # free rows join in
    kept = {name for name in before if before[name].shape == after[name].shape}
    other = {name for name in before if name not in kept}
    assert {name for name in other if "_u" not in name and "_v" not in name} == {
        "classifier.combine.shares.parametrizations.weight.original"  # three parts instead of two
    }
    assert {"bias", "classifier.label_text.transform.inner", "head.layer.bias"} <= kept
    for name in kept:
        assert torch.equal(after[name], before[name]), name
    for name in other:
        assert torch.equal(after[name], start[name]), name
    assert any(not torch.equal(after[name], start[name]) for name in kept)
    words, weights = training.tables["words"].values.numpy(), training.tower.weights
    counts = training.points.names.bags(len(words)).toarray() * weights
    np.testing.assert_allclose(after["rows"].numpy(), unit(counts) @ words, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reclustered", [True, False])
def test_weights_of_clusters_are_handed_on_as_long_as_the_clusters_are_the_same(reclustered):
    recipe = short("inceptionxml_lf")
    if not reclustered:
        first, _, last = recipe.stages
        recipe = replace(recipe, stages=(short("decaf").stages[0], named("recluster", num_clusters=8), first, last))
    seen = started(recipe, board(200), "phase")
    one, two = (seen[name].over("clusters") for name in ("phase", "training"))
    assert (one.partition is two.partition) != reclustered
    before, after = weights_of(one), weights_of(two)
    moved = {f"{name}.{key}" for name, part in one.modules().items() for key, _ in part.named_parameters()}
    assert moved <= before.keys() == after.keys() and len(moved) > 6
    for name in moved:
        assert torch.equal(before[name], after[name]) != reclustered, name


def test_a_level_trains_the_clusters_alone_and_hands_them_on():
    seen = started(short("decaf"), board(200), "level")
    level, training = seen["level"], seen["training"]
    assert [term.objective.over for term in level.terms] == ["clusters"]
    assert level.terms[0].objective == training.terms[1].objective
    before, after = weights_of(level.terms[0]), weights_of(training.over("clusters"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(level.tables["words"].values, training.tables["words"].values)
    for name in ("bias0", "words"):  # they do not share their memory
        level.tables[name].values.add_(1)
    assert not torch.equal(level.tables["words"].values, training.tables["words"].values)
    assert not torch.equal(level.tables["bias0"].values, training.tables["bias1"].values)


def test_a_reranker_starts_fresh():
    seen = started(short("astec", rerank="rerank"), board(200), "training")
    fresh = networks(short("astec", rerank="rerank"), board(200))["surrogate"].tables["words"].values
    assert torch.equal(seen["rerank"].tables["words"].values, fresh)
    assert not torch.equal(seen["training"].tables["words"].values, fresh)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_frozen_encoder_stays_as_the_first_stage_left_it_in_all_others(freeze):
    trained = networks(short("eclare", surrogate__freeze=freeze), board(200), run=True)
    one, *others = (trained[name].tables["words"] for name in ("surrogate", "level", "training"))
    for other in others:
        assert torch.equal(one.values, other.values) == freeze
        assert other.frozen == freeze


def test_a_phase_without_objectives_is_refused():
    recipe = replace(short("frugal"), stages=(named("phase"), *short("frugal").stages))
    with pytest.raises(RecipeError, match="the stage phase has no objective to train"):
        recipe.check()
    with pytest.raises(RecipeError, match="the stage level has no objective to train"):
        replace(recipe, stages=(named("level"), *short("frugal").stages)).check()


# New clusters


def surrogate_and(recluster, train=None, name="astec"):
    """Return what the stage after the new clusters gets, and the vectors that were clustered."""
    recipe = short(name)
    stages = (recipe.stages[0], recluster, recipe.stages[-1])
    train = from_two_kinds() if train is None else train
    seen = []

    def clustered(vectors, count, *, seed):
        seen.append((vectors, clusters(vectors, count, seed=seed)))
        return seen[-1][1]

    with patch.object(stage, "clusters", clustered):
        fit = networks(replace(recipe, stages=stages), train)["training"].fit
    assert fit.partition.of.tolist() == seen[0][1].tolist()
    return fit, seen[0][0]


def from_two_kinds():
    """Make points with a label that has none, and one that has the points of another."""
    train = corpus(150)
    rows = [train.targets[[row]].indices.tolist() for row in range(150)]
    rows = [[label for label in row if label != 5] for row in rows]
    return from_rows({"train": (train.texts.tolist(), rows)}, label_texts=train.labels.texts.tolist()).train


def directions(fit):
    """Return the mean direction of the original points of each label; without any it is that of its text."""
    original = fit.train.original
    targets = original.targets.toarray()
    points = unit(fit.before.vectors(fit.points.inputs.take(np.arange(len(original)))))
    vectors = unit(fit.before.vectors(fit.points.names))
    assert not targets[:, 5].any()
    for label in np.flatnonzero(targets.any(axis=0)):
        vectors[label] = unit(targets[:, label] @ points)
    return vectors


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("name", ["astec", "astec+gandalf"])
def test_labels_are_clustered_by_their_original_points(name, smooth):
    fit, found = surrogate_and(named("recluster", num_clusters=8, smooth=smooth), name=name)
    original = fit.train.original
    assert (len(fit.train) > len(original)) == (name == "astec+gandalf")
    vectors = directions(fit)
    if smooth:
        vectors = unit(normalised(random_walk(original.targets, seed=0)) @ vectors)
    np.testing.assert_allclose(found, vectors, rtol=1e-4, atol=1e-5)
    assert fit.graph is None and len(fit.partition) == 8


def test_labels_are_clustered_by_the_sums_of_their_words():
    fit, found = surrogate_and(named("recluster", num_clusters=8, by="texts"))
    sums = fit.points.names.matrix @ fit.before.tables["words"].values.numpy()
    np.testing.assert_allclose(found, unit(sums), rtol=1e-4, atol=1e-5)
    by_points, _ = surrogate_and(named("recluster", num_clusters=8))
    assert fit.partition.of.tolist() != by_points.partition.of.tolist()


def test_edges_and_validation_points_are_looked_at_in_blocks(monkeypatch):
    """A graph has too many edges, and a point too many candidates, for all of them at once."""
    train = board(100)
    graph, scorer, texts = random_walk(train.targets), lt.fit("knn", train).voices[0], train.texts.tolist()
    vectors = unit(np.random.default_rng(0).normal(size=(graph.shape[0], 8)))
    whole, right = stage.pruned(graph, vectors, 0.9), training.hits(scorer, texts, train)
    assert 0 < whole.nnz < graph.nnz and right.any()
    for module, name in ((stage, "EDGES"), (training, "ASKED")):
        monkeypatch.setattr(module, name, 7)
    np.testing.assert_array_equal(stage.pruned(graph, vectors, 0.9).toarray(), whole.toarray())
    np.testing.assert_array_equal(training.hits(scorer, texts, train), right)


@pytest.mark.parametrize("prune", [0.3, 1.0])
def test_edges_between_labels_far_apart_are_pruned(prune):
    fit, found = surrogate_and(named("recluster", num_clusters=8, prune=prune, smooth=True))
    whole = random_walk(fit.train.targets, seed=0).toarray()
    vectors, kept = directions(fit), np.zeros_like(whole)
    for row, column in zip(*np.nonzero(whole), strict=True):
        if row == column or 1 - vectors[row] @ vectors[column] <= prune:
            kept[row, column] = whole[row, column]
    np.testing.assert_array_equal(fit.graph.toarray(), kept)
    assert (np.count_nonzero(kept) < np.count_nonzero(whole)) == (prune < 1)  # a relu leaves no angle above 90 degrees
    np.testing.assert_allclose(found, unit(normalised(fit.graph) @ vectors), rtol=1e-4, atol=1e-5)


def test_about_eight_labels_are_in_a_new_cluster_where_nobody_says_how_many():
    assert len(surrogate_and(named("recluster"))[0].partition) == 4  # 40 labels: the power of two below five
    few = from_rows({"train": (["red cat", "old dog"] * 20, [[0], [1]] * 20)}, label_texts=["cat", "dog"]).train
    assert len(surrogate_and(named("recluster"), few)[0].partition) == 2


def test_new_clusters_need_an_encoder_that_a_stage_has_trained():
    recipe = short("astec")
    with pytest.raises(RecipeError, match="needs a stage before it"):
        replace(recipe, stages=(named("recluster"), *recipe.stages)).check()


# Siamese


@pytest.fixture(scope="module")
def siamese():
    torch.set_num_threads(1)
    train = corpus(150)
    excluded = label_matrix(np.arange(151), np.full(150, 7), train.targets.shape)
    without = train.targets.toarray()
    without[:, 7] = 0
    rows = [np.flatnonzero(row).tolist() for row in without]
    data = from_rows({"train": (train.texts.tolist(), rows)}, label_texts=train.labels.texts.tolist()).train
    recipe = dropless(short("siamesexml+gandalf", siamese__training__batch_size=16, sampler__beta=0.5))
    network = networks(recipe, replace(data, excluded=excluded))["siamese"]
    words = network.tables["words"].values
    words.mul_(torch.rand(len(words), 1, generator=torch.Generator().manual_seed(0)) * 3)  # of different lengths
    return network


def test_the_points_of_the_stage_are_the_labels_that_original_points_have(siamese):
    points, train = siamese.points, siamese.fit.train
    counts = np.asarray((train.original.targets > 0).sum(axis=0)).ravel()
    assert points.targets.indices.tolist() == np.flatnonzero(counts).tolist()
    assert 7 not in points.targets.indices and points.targets.shape[1] == 40
    assert np.array_equal(points.inputs.matrix.toarray(), points.names.matrix.toarray()[points.targets.indices])


def test_two_original_points_are_drawn_for_each_label(siamese):
    pairs = siamese.augmentations[-1]
    assert isinstance(pairs, Pairs)
    batch, seen = siamese.points.take(np.array([4, 0, 9])), []
    labels = batch.targets.indices
    targets, original = siamese.fit.train.targets, len(siamese.fit.train.original)
    for seed in range(40):
        step = Step(np.random.default_rng(seed), 1.0, siamese)
        drawn = pairs.apply("batch", batch, step)
        assert step.memory[DRAWN].tolist() == labels.tolist()
        assert (drawn.rows < original).all() and len(drawn.rows) == 6
        for row, label in zip(drawn.rows, [*labels, *labels], strict=True):
            assert label in targets[[row]].indices
        np.testing.assert_array_equal(drawn.weights, np.array([1.4, 1.4, 1.4, 0.6, 0.6, 0.6], np.float32))
        seen.append(drawn.rows)
    for place, label in enumerate(labels):  # each of its points now and then, in both halves
        own = np.flatnonzero(targets[:original, [label]].toarray())
        for half in (0, 3):
            assert set(np.array(seen)[:, half + place].tolist()) == set(own.tolist())


def test_the_loss_is_that_of_points_and_of_middles_between_points_and_labels(siamese):
    siamese.dense.eval()
    rows = np.arange(12)
    loss = float(siamese.loss(rows, np.random.default_rng(3)).detach())
    batch, step = siamese.points.take(rows), Step(np.random.default_rng(3), 1.0, siamese)
    drawn = siamese.augmentations[-1].apply("batch", batch, step)
    labels, words = batch.targets.indices, siamese.tables["words"].values.numpy()
    texts = unit(np.maximum(siamese.points.names.matrix @ words, 0))[labels]
    points = unit(np.maximum(drawn.inputs.matrix @ words, 0))
    relevant = drawn.targets.toarray()[:, labels]

    def costs(vectors, targets):
        total = 0.0
        for vector, row in zip(vectors, targets, strict=True):
            cosines = texts @ vector
            total += sum(t * (-math.log(0.9) + 1.5 * (1 - s)) for s, t in zip(cosines, row, strict=True) if t)
            wrong = [-math.log(1 - 0.9 * math.exp(1.5 * (s - 1))) for s, t in zip(cosines, row, strict=True) if not t]
            total += max(wrong, default=0.0)
        return total / len(vectors)

    middles = unit((points[12:] + texts) / 2)
    expected = 0.7 * costs(points[:12], relevant[:12]) + 0.3 * costs(middles, relevant[12:])
    assert loss == pytest.approx(expected, rel=1e-5)


def test_label_texts_learn_on_both_sides_of_a_middle(siamese):
    """The gradient of a label's own words comes from its text as a target and as half of the middle."""
    siamese.dense.eval()
    for table in siamese.tables.values():
        table.gathered.clear()
    siamese.loss(np.array([0]), np.random.default_rng(0)).backward()
    rows, gradient = siamese.tables["words"].gradient()
    own = siamese.points.inputs.take(np.array([0])).words()
    assert set(own.tolist()) <= set(rows.tolist())
    assert (gradient[np.isin(rows.numpy(), own)].abs().sum(dim=1) > 0).any()


def test_augmentations_of_batches_wait_for_the_next_stage_and_those_of_words_do_not():
    recipe = short("siamesexml+mixup", sampler__beta=0.5)
    built = networks(recipe, board(100))
    assert [type(part).__name__ for part in built["siamese"].augmentations] == ["Pairs"]
    assert [type(part).__name__ for part in built["training"].augmentations] == ["PointMixer"]
    recipe = short("siamesexml+synonyms", augment__0__min_cosine=0.1, sampler__beta=0.5)
    assert len(networks(recipe, board(100))["siamese"].augmentations) == 2


def test_an_encoder_that_points_and_labels_share_brings_them_together():
    train = corpus()
    near = []
    for run in (False, True):
        recipe = small("siamesexml", siamese__training__epochs=12, sampler__beta=0.5)
        built = networks(recipe, train, run=run)
        inputs, network = built["training"].points.inputs, built["siamese"]
        points, names = unit(network.vectors(inputs)), unit(network.vectors(network.points.names))
        best = (points @ names.T).argmax(axis=1)
        near.append(np.mean([label in train.targets[[row]].indices for row, label in enumerate(best)]))
    assert near[1] > max(0.9, near[0])


def test_siamese_refuses_what_it_cannot_draw():
    recipe = short("siamesexml")
    with pytest.raises(RecipeError, match="needs the sampler drawn"):
        recipe.override("siamese.objective.sampler", "batch_pool").check()
    with pytest.raises(RecipeError, match="can only be shuffled"):
        recipe.override("siamese.training.order", "similar").check()
    with pytest.raises(DataError, match="siamese encoder learns from them"):
        lt.fit(recipe, board(50, named=False))


# Traverse


def test_the_share_that_neighbours_hand_on_is_chosen_on_validation_points_and_kept(tmp_path):
    recipe = short("eclare")
    assert recipe.stages[-1].undecided() == When.WHILE
    assert recipe.override("traverse.share", 0.5).undecided() == When.NEVER
    tried = []

    def quality(scorer, validation):
        tried.append((scorer.share, len(validation)))
        return -abs(scorer.share - 0.2)

    with patch.object(traverse, "quality", quality):
        model = lt.fit(recipe, board())
    assert tried == [(share, 20) for share in traverse.SHARES]
    assert model.vectors.share == 0.25
    model.save(tmp_path / "run")
    assert Model.load(tmp_path / "run").vectors.share == 0.25
    assert same(Model.load(tmp_path / "run"), model)
    assert lt.fit(recipe, board(19)).vectors.share == 0.5  # too few to hold any out: the paper's
    assert lt.fit(recipe.override("traverse.share", 0.3), board(100)).vectors.share == 0.3


def test_the_graph_that_is_walked_over_is_the_pruned_one_where_there_is_one():
    train = board(200)
    recipe = short("eclare", recluster__prune=0.0, traverse__share=0.5)
    pruned = lt.fit(recipe, train).vectors.graph
    whole = lt.fit(recipe.override("recluster.prune", None), train).vectors.graph
    np.testing.assert_allclose(whole.toarray(), normalised(random_walk(train.targets, seed=0)).toarray(), rtol=1e-6)
    assert 30 <= pruned.nnz < whole.nnz


def test_a_graph_of_other_labels_is_refused():
    model = lt.fit(short("eclare", traverse__share=0.5), board(100))
    last, arrays = model.recipe.stages[-1], model.vectors.arrays()
    opened = last.open(arrays, model.vectors.first, None)
    assert (opened.graph != model.vectors.graph).nnz == 0 and opened.depth == 100
    fewer = {name: array for name, array in arrays.items() if not name.startswith("traverse.graph")}
    other = lt.arrays.matrix_arrays("traverse.graph", model.vectors.graph[:5, :5])
    with pytest.raises(lt.errors.ModelError, match=r"traverse.graph is damaged: it is \(5, 5\)"):
        last.open(fewer | other, model.vectors.first, None)
