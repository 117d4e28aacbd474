"""Several objectives of one network: samplers that they share, what is served of them, losses that take rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from small import board, dropless, networks, same, short

import longtail as lt
from longtail.classifiers.rows import Rows
from longtail.errors import RecipeError
from longtail.losses.bce import Bce
from longtail.losses.chunked import ChunkedBce
from longtail.model import Model
from longtail.parts import Objective, Query, Step
from longtail.recipe import Recipe, find_recipe
from longtail.records import named
from longtail.samplers.batch_pool import BuiltPool
from longtail.training.term import Encoded

pytestmark = pytest.mark.usefixtures("one_thread")  # bit-equal
TEXTS = ["word3 filler1", "word7", "word3 word4"]


def proposals(network) -> tuple[int, list[np.ndarray]]:
    """Compute the loss of a batch; returns how often labels were drawn, and the labels of each objective."""
    labels, draws, real = [], Counter(), BuiltPool.propose

    def propose(self, *rest):
        draws[id(self)] += 1
        return real(self, *rest)

    step = Step(np.random.default_rng(0), 0.5, network)
    with patch.object(BuiltPool, "propose", propose):
        batch = network.points.take(np.arange(6))
        encoded = Encoded(lambda: network.states(batch.inputs, step))
        for term in network.terms:
            term(batch, encoded, step)
            labels.append(step.memory[term.sampler].labels)
    return draws.total(), labels


def test_objectives_with_equal_samplers_share_one_pool_and_one_draw():
    network = networks(short("unidec"), board(100))["training"]
    assert network.terms[0].sampler is network.terms[1].sampler
    count, (one, two) = proposals(network)
    assert count == 1 and np.array_equal(one, two)
    with patch.object(BuiltPool, "on_epoch") as mining:
        network.on_epoch(0)
    assert mining.call_count == 1


def test_label_texts_that_two_heads_read_are_encoded_once():
    network = networks(dropless(short("unidec")), board(100))["training"]
    rows, seen = np.arange(6), []
    encode = network.states
    with patch.object(network, "states", lambda inputs, step: seen.append(len(inputs)) or encode(inputs, step)):
        once = network.loss(rows, np.random.default_rng(0))
    assert len(seen) == 2  # points, and the labels of the pool
    batch, losses = network.points.take(rows), []
    for term in network.terms:  # each with a step of its own, so that nothing is shared
        step = Step(np.random.default_rng(0), 1.0, network)
        losses.append(term(batch, Encoded(partial(network.states, batch.inputs, step)), step).detach())
    assert float(once.detach()) == pytest.approx(float(sum(losses)), rel=1e-5)


def test_objectives_with_other_samplers_draw_their_own():
    network = networks(short("unidec", objectives__1__sampler__random=3), board(100))["training"]
    assert network.terms[0].sampler is not network.terms[1].sampler
    count, (one, two) = proposals(network)
    assert count == 2 and not np.array_equal(one, two)
    with patch.object(BuiltPool, "on_epoch") as mining:
        network.on_epoch(0)
    assert mining.call_count == 2


def test_labels_and_clusters_never_share_a_sampler():
    rows = named("rows", init="random", text=None)
    main = Objective(sampler=named("clusters", num_clusters=8), classifier=rows, loss=Bce())
    every = Objective(sampler=named("all_labels"), classifier=rows, loss=Bce(), served=0)
    over = Objective(over="clusters", sampler=named("all_labels"), classifier=named("dense_rows"), loss=Bce())
    recipe = Recipe(
        name="three", encoder=named("bag", dim=8, init="random"), objectives=(main, every, over),
        stages=(named("training", epochs=1),),
    )  # fmt: skip
    network = networks(recipe, board(60))["training"]
    assert network.terms[1].sampler is not network.terms[2].sampler
    step = Step(np.random.default_rng(0), 0.5, network)
    batch = network.points.take(np.arange(9))
    encoded = Encoded(lambda: network.states(batch.inputs, step))
    shapes = [term.scored(batch, encoded, step).scores.shape for term in network.terms[1:]]
    assert shapes == [(9, 30), (9, 8)]


# What is served


def scores_of(scorer) -> np.ndarray:
    return np.array([scorer.score_one(Query([text]), np.arange(30)) for text in TEXTS])


@pytest.mark.parametrize("served", [(None, None), (1.0, 1.0), (2.0, None), (0.25, 3.0)], ids=str)
def test_scores_are_added_with_the_weights_of_serving(served, tmp_path):
    recipe = short("unidec", objectives__0__served=served[0], objectives__1__served=served[1])
    recipe = recipe.override("objectives.0.weight", 0.7)
    model = lt.fit(recipe, board(100))
    weights = [0.7 if served[0] is None else served[0], 0.5 if served[1] is None else served[1]]
    parts = [scores_of(part) for part in model.vectors.parts]
    assert all(np.abs(part).max() <= 1 + 1e-5 for part in parts)  # cosines of texts, and of rows
    expected = weights[0] * parts[0] + weights[1] * parts[1]
    np.testing.assert_allclose(scores_of(model.vectors), expected, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "run")
    for loaded in (Model.load(tmp_path / "run"), lt.Index.load(tmp_path / "run").model):
        assert same(loaded, model)
        np.testing.assert_allclose(scores_of(loaded.vectors), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("left_out", [0, 1])
def test_an_objective_without_weight_is_trained_but_not_served(left_out, tmp_path):
    recipe = short("unidec").override(f"objectives.{left_out}.served", 0)
    both, one = (networks(some, board(100), run=True)["training"] for some in (short("unidec"), recipe))
    for name, table in both.tables.items():
        assert torch.equal(table.values, one.tables[name].values), name  # they are learnt together all the same
    expected = scores_of(both.terms[1 - left_out].freeze())
    np.testing.assert_allclose(scores_of(one.scorer()), expected, rtol=1e-5)
    model = lt.fit(recipe, board(100))
    assert model.vectors.store.dim == 16
    model.save(tmp_path / "run")
    loaded = Model.load(tmp_path / "run")
    assert same(loaded, model)
    np.testing.assert_allclose(scores_of(loaded.vectors), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("left_out", [0, 1])
def test_what_is_ranked_again_comes_back_whatever_is_served(left_out, tmp_path):
    recipe = short(
        "unidec", rerank="rerank", rerank__training__epochs=1, rerank__top=30, rerank__training__batch_size=64
    )
    model = lt.fit(recipe.override(f"objectives.{left_out}.served", 0), board(100))
    model.save(tmp_path / "run")
    top, again = model.predict(TEXTS, 9), Model.load(tmp_path / "run").predict(TEXTS, 9)
    assert np.array_equal(top.labels, again.labels) and np.array_equal(top.scores, again.scores)


def test_something_must_be_served():
    recipe = short("unidec").override("objectives.0.served", 0)
    with pytest.raises(RecipeError, match="no objective over labels is served"):
        recipe.override("objectives.1.served", 0).check()
    with pytest.raises(RecipeError, match=r"objective\.served"):
        recipe.override("objectives.1.served", -1.0)


def test_an_objective_without_a_weight_in_training_stays_as_it_starts():
    recipe = short("unidec").override("objectives.1.weight", 0)
    start, end = (networks(recipe, board(100), run=run)["training"] for run in (False, True))
    assert torch.equal(start.tables["rows1"].values, end.tables["rows1"].values)
    assert not torch.equal(start.tables["words"].values, end.tables["words"].values)
    assert len(end.scorer().parts) == 2  # what is served has weights of its own
    assert recipe.override("objectives.1.served", None).objectives[1].share == 0


def test_something_must_be_trained():
    recipe = short("unidec", objectives__0__weight=0, objectives__1__weight=0)
    with pytest.raises(RecipeError, match="weight"):
        lt.fit(recipe.override("objectives.0.served", 1.0), board(60))


# Losses that take rows


def moved_by(loss, name: str, train, **changes) -> tuple[float, dict[str, torch.Tensor]]:
    """Compute the loss of a batch and all its gradients."""
    recipe = dropless(replace(short(name, objectives__0__loss=loss, **changes), augment=()))
    network = networks(recipe, train)["training"]
    value = network.loss(np.arange(40), np.random.default_rng(0), 1.0)
    value.backward()
    gradients = {
        key: parameter.grad for key, parameter in network.dense.named_parameters() if parameter.grad is not None
    }
    for key, table in network.tables.items():
        rows, gradient = table.gradient()
        if rows is not None:
            gradients[key] = torch.zeros_like(table.values).index_add_(0, rows, gradient)
    return float(value.detach()), gradients


BY_ROWS = {
    "cosines, texts and a bias": ("frugal", {"sampler": "all_labels", "classifier__bias": True}),
    "a pool": ("frugal", {"sampler__random": 4}),
    "rows with a bias": ("xmlcnn", {}),
    "dense rows": ("xmlcnn", {"classifier": "dense_rows"}),
    "dense rows and a pool": ("xmlcnn", {"classifier": "dense_rows", "sampler": "batch_pool", "sampler__random": 4}),
    "label texts": ("depsl", {"sampler": "all_labels"}),
}


@pytest.mark.parametrize("name", BY_ROWS)
def test_in_chunks_a_network_learns_what_it_learns_at_once(name):
    recipe, changes = BY_ROWS[name]
    train = board(60)
    pairs = (train.targets.toarray() == 0) * (np.random.default_rng(0).random(train.targets.shape) < 0.1)
    train = replace(train, excluded=sp.csr_array(pairs.astype(np.float32)))
    (one, ours), (two, theirs) = (moved_by(loss, recipe, train, **changes) for loss in (ChunkedBce(chunk=7), Bce()))
    assert one == pytest.approx(two, rel=1e-5)
    assert ours.keys() == theirs.keys() and len(ours) >= 2
    for key, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[key], rtol=1e-4, atol=1e-6, msg=key)
        assert gradient.abs().sum() > 0, key


def test_clusters_are_learnt_in_chunks_too():
    values = [
        networks(dropless(short("inceptionxml_plus", objectives__1__loss=loss)), board(60))["training"].loss(
            np.arange(40), np.random.default_rng(0), 1.0
        )
        for loss in (ChunkedBce(chunk=3), Bce())
    ]
    torch.testing.assert_close(*values, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("inceptionxml_plus", {}), ("frugal", {"sampler__positives": 1, "sampler__pick": "one"})],
)
def test_losses_of_rows_refuse_candidates_that_points_do_not_share(name, changes):
    with pytest.raises(RecipeError, match="chunked_bce needs candidates that all points of a batch share"):
        lt.fit(short(name, loss="chunked_bce", **changes), board(60))


def test_losses_of_rows_need_a_classifier_that_scores_by_products():
    recipe = find_recipe("xmlcnn").override("loss", "chunked_bce")
    recipe.check()
    with (
        patch.object(Rows, "has_factors", False),
        pytest.raises(RecipeError, match="chunked_bce needs a classifier that scores by products, such as rows"),
    ):
        recipe.check()


def test_losses_of_rows_learn_in_half_precision():
    recipe = short("xmlcnn", loss="chunked_bce", training__precision="bf16-mixed")
    assert np.isfinite(lt.fit(recipe, board(60)).predict(TEXTS, 3).scores).all()


# Cosines that are served


def test_cosines_may_be_served_although_products_are_trained(tmp_path):
    rows = Rows(init="random", text=None, cosine=False, serve_cosine=True)
    recipe = dropless(short("xmlcnn", classifier=rows, training__epochs=1))
    network = networks(recipe, board(60), run=True)["training"]
    term, inputs = network.terms[0], network.points.inputs
    with torch.no_grad():
        vectors, products = network.vectors(inputs), network.tables["rows0"].values.numpy()
        step, batch = Step(np.random.default_rng(0), 1.0, network), network.points.take(np.arange(60))
        scored = term.scored(batch, Encoded(lambda: network.tower(inputs, None)), step).scores.numpy()
    np.testing.assert_allclose(scored, vectors @ products.T, rtol=1e-3, atol=1e-4)  # no cosines
    lengths = np.linalg.norm(vectors, axis=1)[:, None] * np.linalg.norm(products, axis=1)
    scorer = network.scorer()
    served = scorer.encoded(Query.of_inputs(inputs)) @ scorer.store.take(slice(None)).T
    np.testing.assert_allclose(served, vectors @ products.T / lengths, rtol=1e-3, atol=1e-4)
    model = lt.fit(recipe, board(60))
    model.save(tmp_path / "run")
    top, again = model.predict(TEXTS, 30), Model.load(tmp_path / "run").predict(TEXTS, 30)
    assert np.array_equal(top.scores, again.scores) and np.abs(top.scores).max() <= 1 + 1e-5


def test_a_bias_of_products_does_not_fit_cosines():
    recipe = find_recipe("xmlcnn").override("classifier.serve_cosine", True)
    with pytest.raises(RecipeError, match=r"a bias of products does not fit cosines: rows\.bias=false"):
        recipe.override("classifier.bias", True).check()
    recipe.override("classifier.bias", False).check()
    recipe.override("classifier.bias", True).override("classifier.cosine", True).check()  # it was learnt for cosines
