"""Where label rows start, of labels and of clusters."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from golden.corpus import corpus
from small import networks

from longtail.errors import DataError, RecipeError
from longtail.labels.walk import normalised, random_walk
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.records import named

pytestmark = pytest.mark.usefixtures("one_thread")
INITS = ["label_text", "graph_text", "vectors", "graph_vectors"]


def built(rows, clusters=None, **encoder):
    """Build a network whose objectives over labels and over clusters have these classifiers."""
    over = Objective(over="clusters", sampler=named("all_labels"), classifier=clusters or rows, loss=named("bce"))
    main = Objective(sampler=named("clusters", num_clusters=8), classifier=rows, loss=named("bce"))
    settings = {"dim": 6, "init": "random", "relu": True} | encoder
    recipe = Recipe(name="rows", encoder=named("bag", **settings), objectives=(main, over), stages=(named("training"),))
    return networks(recipe, corpus(150))["training"]


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


@pytest.mark.parametrize("init", INITS[:2])
def test_rows_start_from_the_words_of_labels_and_of_neighbours(init):
    network = built(named("rows", init=init, text=None, cosine=False))
    words, bags = network.tables["words"].values.numpy(), network.points.names.matrix.toarray()
    partition, targets = network.terms[1].partition, network.fit.train.targets
    members = np.equal.outer(np.arange(len(partition)), partition.of).astype(np.float32)
    for place, (own, points) in enumerate(((bags, targets), (unit(members @ bags), partition.targets(targets)))):
        expected = own @ words
        if init == "graph_text":
            expected = normalised(random_walk(points, seed=0)).toarray() @ expected
        np.testing.assert_allclose(network.tables[f"rows{place}"].values.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("init", INITS[2:])
def test_rows_start_from_what_the_encoder_makes_of_texts_and_of_neighbours(init):
    network = built(named("rows", init=init, text=None), clusters=named("dense_rows"))
    words, bags = network.tables["words"].values.numpy(), network.points.names.matrix.toarray()
    expected = unit(np.maximum(bags @ words, 0))
    if init == "graph_vectors":
        expected = normalised(random_walk(network.fit.train.targets, seed=0)).toarray() @ expected
    np.testing.assert_allclose(network.tables["rows0"].values.numpy(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(RecipeError, match="clusters have no texts to encode"):
        built(named("rows", init=init, text=None))


def test_rows_that_start_from_vectors_pass_the_head():
    rows = named("rows", init="vectors", text=None)
    objective = Objective(head=named("project", dim=5), sampler=named("all_labels"), classifier=rows, loss=named("bce"))
    recipe = Recipe(
        name="rows", encoder=named("bag", dim=6), objectives=(objective,), stages=(named("training", epochs=1),)
    )
    with pytest.raises(RecipeError, match="rows takes vectors of 6 dimensions and gets 5"):
        recipe.override("classifier.init", "graph_vectors").check()
    train = corpus(100)
    network = networks(recipe, train)["training"]
    names = unit(network.vectors(network.points.names)) @ network.terms[0].head.layer.weight.detach().numpy().T
    np.testing.assert_allclose(network.tables["rows0"].values.numpy(), names, rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match="labels of this data set have no texts"):
        networks(recipe, replace(train, labels=replace(train.labels, texts=None)))


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_texts_count_beside_rows_as_much_as_is_said(weight):
    network = built(named("rows", init="points", text="sum", text_weight=weight, cosine=False), named("dense_rows"))
    rows, texts = network.tables["rows0"].values.numpy(), network.vectors(network.points.names)
    served = network.terms[0].freeze().store.take(slice(None))
    np.testing.assert_allclose(served, rows + weight * texts, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("init", ["zero", "prior"])
def test_biases_start_at_zero_or_at_how_rare_a_label_is(init):
    rows = named("rows", init="random", text=None, cosine=False, bias=True, bias_init=init)
    network = built(rows, clusters=named("dense_rows", bias_init=init))
    partition, targets = network.terms[1].partition, network.points.targets
    found = network.tables["bias0"].values.numpy(), network.terms[1].classifier.module.bias.detach().numpy()
    for bias, positives in zip(found, (targets, partition.targets(targets)), strict=True):
        expected = math.log(positives.nnz / positives.shape[0] / positives.shape[1]) if init == "prior" else 0.0
        np.testing.assert_allclose(bias, np.full(positives.shape[1], expected), rtol=1e-5)
    assert named("dense_rows").bias_init == "prior"


@pytest.mark.parametrize("init", [*INITS, "text", "points", "both"])
def test_encoders_whose_vectors_are_no_sums_of_words_refuse_what_starts_there(init):
    rows = named("rows", init=init, text=None, cosine=False)
    objective = Objective(sampler=named("all_labels"), classifier=rows, loss=named("bce"))
    encoder = named("cnn", dim=8, width=8, filters=4, max_tokens=4, init="random")
    recipe = Recipe(name="rows", encoder=encoder, objectives=(objective,), stages=(named("training"),))
    if init in INITS:
        recipe.check()
    else:
        with pytest.raises(RecipeError, match=r"classifier\.init=random"):
            recipe.check()
