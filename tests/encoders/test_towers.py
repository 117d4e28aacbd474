"""Towers against slow formulas, and the arrays of a saved model against the modules that were trained."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from encoders.toy import TEXTS, Toy, cnn, inception, moved, start_of
from small import TRAINED, board, dropless, networks, scores_of, short
from torch.nn import functional

from longtail.data.sequences import Sequences
from longtail.data.tokens import Words
from longtail.encoders.bag import Bag, FrozenBag
from longtail.encoders.inputs import Bags, Ordered
from longtail.encoders.ordered import FrozenOrdered
from longtail.encoders.towers.bag import BagTower
from longtail.encoders.towers.ordered import OrderedTower
from longtail.errors import ModelError
from longtail.parts import Query, Step


@pytest.mark.parametrize("seed", range(3))
def test_attention_is_the_formula_of_the_paper(seed):
    layers = moved(inception().layers(seed), seed)
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    over_words, over_dims = layers.over_words.weight.detach(), layers.over_dims.weight.detach()
    g1, g2 = layers.gates.detach()
    for one, attended in zip(x, layers.attend(x).detach(), strict=True):
        first = g1 * (one @ one.T) @ (over_words @ one) + one
        u, v = first.T, one.T
        torch.testing.assert_close(attended, (g2 * (u @ v.T) @ (over_dims @ u) + u).T, rtol=1e-3, atol=1e-3)


def test_attention_starts_as_the_identity():
    layers, x = inception().layers(0), torch.randn(2, 5, 64)
    assert torch.equal(layers.attend(x), x)
    for layer in (layers.over_words, layers.over_dims):
        assert float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) < 1.1


@pytest.mark.parametrize(("dim", "width"), [(64, 32), (300, 480)])
def test_every_branch_gives_a_quarter_of_the_dimensions(dim, width):
    settings = inception(dim=dim, channels=32)
    layers = settings.layers(0)
    x = torch.randn(2, 32, dim)
    assert [tuple(branch(x).shape) for branch in layers.branches] == [(2, 32, dim // 4)] * 3
    assert layers(torch.randn(2, 5, dim), 0.0).shape == (2, width)
    assert settings.width == width


def test_branches_pad_in_a_circle():
    branch = inception().layers(0).branches[2]  # 16 wide, padded by 6 on both sides
    x = torch.randn(1, 6, 64)
    round_about = torch.cat([x[:, :, -6:], x, x[:, :, :6]], dim=2)
    torch.testing.assert_close(branch(x), functional.conv1d(round_about, branch.weight, branch.bias, stride=4))


def test_inception_step_by_step():
    layers = moved(inception(attention=False).layers(0))
    x = torch.randn(3, 5, 64)

    def norm(x, layer):
        mean, var, weight, bias = (
            value.detach()[None, :, None] for value in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
        )
        return (x - mean) / (var + layer.eps).sqrt() * weight + bias

    second = layers.second
    projected = torch.einsum("ct,btd->bcd", layers.project.weight, x) + layers.project.bias[None, :, None]
    values = norm(functional.gelu(projected), layers.norms[0])
    values = norm(functional.gelu(torch.cat([branch(values) for branch in layers.branches], 1)), layers.norms[1])
    values = norm(functional.gelu(functional.conv1d(values, second.weight, second.bias, stride=4)), layers.norms[2])
    torch.testing.assert_close(layers(x, 0.0), values.flatten(1), rtol=1e-4, atol=1e-4)


def test_a_permutation_of_dimensions_is_one():
    plain, permuted = (inception(permute_dims=on).layers(3).eval() for on in (False, True))
    order = permuted.order
    assert sorted(order.tolist()) == list(range(64))
    assert order.tolist() != list(range(64))
    permuted.load_state_dict(plain.state_dict() | {"order": order})
    x = torch.randn(2, 5, 64)
    torch.testing.assert_close(permuted(x, 0.0), plain(x[:, :, order], 0.0))


def test_the_cnn_takes_the_maximum_over_windows():
    layers = moved(cnn(dim=3, max_tokens=6, filters=2, kernel_sizes=(2,), pools=1, width=4).layers(0))
    x = torch.randn(1, 6, 3)
    window = layers.windows[0]
    padded = torch.cat([torch.zeros(1, 3), x[0], torch.zeros(1, 3)])
    features = [torch.einsum("fdk,kd->f", window.weight, padded[i : i + 2]) + window.bias for i in range(7)]
    most = torch.stack([value.clamp_min(0) for value in features]).max(dim=0).values
    expected = (layers.narrow.weight @ most + layers.narrow.bias).clamp_min(0)
    torch.testing.assert_close(layers(x, 0.0)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [inception(), cnn()])
def test_dropout_acts_in_training_alone(settings):
    layers = moved(settings.layers(0))
    x = torch.randn(2, 5, settings.dim)
    assert torch.equal(layers(x, 0.0), layers(x, 0.0))
    assert not torch.equal(layers(x, settings.dropout), layers(x, settings.dropout))
    toy, words = Toy(), Sequences.fit(TEXTS)
    tower = OrderedTower(settings, start_of(words, settings.dim), toy)
    moved(tower.module)
    inputs = settings.inputs(words, TEXTS)
    assert torch.equal(tower(inputs, None).pooled, tower(inputs, None).pooled)
    assert not torch.equal(tower(inputs, toy.step()).pooled, tower(inputs, toy.step()).pooled)


def test_the_dropout_of_a_bag_follows_the_chance_of_its_step():
    toy, words = Toy(), Words.fit(TEXTS)
    tower = BagTower(Bag(dim=400, dropout=0.5, relu=True), start_of(words, 400), toy)
    inputs = Bags(words.bag(TEXTS))
    plain = tower(inputs, None).pooled
    one, same, other = (tower(inputs, toy.step(seed)).pooled for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    kept = one != 0
    torch.testing.assert_close(one[kept], 2 * plain[kept])
    assert float(kept[plain > 0].float().mean()) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("kind", ["bag", "ordered"])
def test_augmentations_change_what_is_embedded(kind):
    class Twice:
        acts_on = ("embeddings",)

        def apply(self, place, value, step):
            assert place == "embeddings"
            return 2 * value

    toy = Toy()
    if kind == "bag":
        words = Words.fit(TEXTS)
        tower = BagTower(Bag(dim=8, dropout=0.0), start_of(words, 8), toy)
        inputs = Bags(words.bag(TEXTS))
    else:
        words, settings = Sequences.fit(TEXTS), cnn(dropout=0.0)
        tower = OrderedTower(settings, start_of(words, 8), toy)
        inputs = settings.inputs(words, TEXTS)
    doubled = tower(inputs, toy.step(augmentations=[Twice()])).pooled
    tower.words.values.mul_(2)
    torch.testing.assert_close(doubled, tower(inputs, None).pooled)


@pytest.mark.parametrize("frozen", [True, False])
def test_only_words_of_the_batch_learn_unless_they_are_frozen(frozen):
    toy, words = Toy(frozen=frozen), Words.fit(TEXTS)
    tower = BagTower(Bag(dim=8), start_of(words, 8), toy)
    pooled = tower(Bags(words.bag(["red cat", "red dog"])), toy.step()).pooled
    assert pooled.requires_grad != frozen
    if frozen:
        assert tower.words.gathered == [] and tower.words.state == []
    else:
        pooled.square().sum().backward()
        rows, gradient = tower.words.gradient()
        assert rows.tolist() == sorted(words.places[word] for word in ("red", "cat", "dog"))
        assert gradient.shape == (3, 8) and (gradient != 0).any()


@pytest.mark.parametrize("settings", [inception(), cnn()])
def test_a_tower_takes_over_the_weights_of_another(settings):
    words = Sequences.fit(TEXTS)
    one, two = (OrderedTower(settings, start_of(words, settings.dim), Toy(seed)) for seed in (0, 1))
    moved(one.module)
    one.words.values.add_(1)
    two.take_over(one)
    inputs = settings.inputs(words, TEXTS)
    two.module.eval()
    assert torch.equal(one(inputs, None).pooled, two(inputs, None).pooled)
    one.words.values.add_(1)  # they do not share their memory
    assert not torch.equal(one.words.values, two.words.values)


@pytest.mark.parametrize("relu", [True, False])
def test_a_bag_as_arrays_equals_the_tower(relu):
    words = Words.fit(TEXTS)
    settings = Bag(dim=8, relu=relu)
    tower = settings.build(start_of(words, 8), Toy())
    bags = settings.inputs(words, TEXTS)
    expected = tower(bags, None).pooled.detach().numpy()
    frozen = tower.freeze(words)
    assert isinstance(frozen, FrozenBag) and not frozen.needs_torch
    np.testing.assert_allclose(frozen.encode_inputs(bags), expected, atol=1e-6)
    np.testing.assert_allclose(frozen.encode(Query(TEXTS)), expected, atol=1e-6)
    np.testing.assert_allclose(frozen.encode(Query.of_inputs(bags)), expected, atol=1e-6)
    for row, text in enumerate(TEXTS):
        np.testing.assert_allclose(frozen.encode_one(Query([text])), expected[row], atol=1e-6)
    assert not expected[3].any()  # the empty text
    slow = bags.matrix.toarray() @ start_of(words, 8)["words"]
    np.testing.assert_allclose(expected, np.maximum(slow, 0) if relu else slow, atol=1e-5)
    opened = settings.open(frozen.arrays(), words)
    assert np.array_equal(opened.encode(Query(TEXTS)), frozen.encode(Query(TEXTS)))
    with pytest.raises(ModelError, match="with vocabulary"):
        settings.open({"words": frozen.vectors[:, :5]}, words)


@pytest.mark.parametrize("settings", [inception(), inception(permute_dims=True), cnn()])
def test_an_ordered_encoder_as_arrays_equals_the_tower(settings):
    words = Sequences.fit(TEXTS)
    start = start_of(words, settings.dim)
    vectors, tower = start["words"], settings.build(start, Toy(3))
    moved(tower.module)
    inputs = settings.inputs(words, TEXTS)
    table = np.where(np.arange(len(vectors))[:, None] > 0, vectors, 0)  # padding is zero whatever its row says
    with torch.no_grad():
        expected = tower.module(torch.from_numpy(table[inputs.ids].astype(np.float32)), 0.0).numpy()
        np.testing.assert_allclose(tower(inputs, None).pooled.numpy(), expected, rtol=1e-4, atol=1e-4)
    expected[(inputs.ids == 0).all(axis=1)] = 0  # an empty text is not answered
    frozen = tower.freeze(words)
    assert isinstance(frozen, FrozenOrdered) and frozen.needs_torch
    opened = settings.open(frozen.arrays(), words)
    for encoder in (frozen, opened):
        np.testing.assert_allclose(encoder.encode_inputs(inputs), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(encoder.encode(Query(TEXTS)), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(encoder.encode_one(Query(TEXTS[:1])), expected[0], rtol=1e-4, atol=1e-4)
    longer = Ordered(np.tile(inputs.ids, (60, 1)))  # more than one block
    np.testing.assert_allclose(frozen.encode(Query.of_inputs(longer)), np.tile(expected, (60, 1)), rtol=1e-4, atol=1e-4)
    assert frozen.operations() > 0
    with torch.no_grad():  # what is served does not change with the next step
        for parameter in tower.module.parameters():
            parameter.add_(1)
    np.testing.assert_array_equal(frozen.encode(Query(TEXTS)), opened.encode(Query(TEXTS)))


def test_layers_that_do_not_fit_are_refused():
    words = Sequences.fit(TEXTS)
    tower = inception().build(start_of(words, 64), Toy())
    arrays = tower.freeze(words).arrays()
    fewer = {name: array for name, array in arrays.items() if name != "encoder.gates"}
    for settings, some in ((inception(channels=7), arrays), (inception(), fewer)):
        with pytest.raises(ModelError, match=r"is damaged|gates is missing"):
            settings.open(some, words)
    for name in ("words", "weights"):
        with pytest.raises(ModelError, match="with vocabulary"):
            inception().open(arrays | {name: arrays[name][1:]}, words)


@pytest.mark.parametrize("settings", [Bag(dim=8), cnn(), inception()], ids=["bag", "cnn", "inception"])
def test_sums_of_word_vectors_by_hand_are_those_of_the_tower_and_of_what_is_served(settings):
    words = Words.fit(TEXTS) if settings.part == "bag" else Sequences.fit(TEXTS)
    start = start_of(words, settings.dim)
    tower = settings.build(start, Toy())
    inputs = settings.inputs(words, TEXTS)
    expected = np.zeros((len(TEXTS), settings.dim))
    for row, bag in enumerate(inputs.bags(len(words)).toarray()):
        weights = bag if settings.part == "bag" else bag * start["weights"]  # bags of words are weighed already
        expected[row] = sum(w * vector for w, vector in zip(weights, start["words"], strict=True))
        expected[row] /= np.sqrt((weights**2).sum()) or 1
    frozen = tower.freeze(words)
    np.testing.assert_allclose(tower.sums(tower.bags(inputs)).detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(frozen.sums(Query(TEXTS)), expected, rtol=1e-5, atol=1e-6)
    opened = settings.open(frozen.arrays(), words)
    np.testing.assert_array_equal(opened.sums(Query(TEXTS)), frozen.sums(Query(TEXTS)))
    assert not expected[3].any()  # the empty text


def test_words_weigh_as_much_as_they_are_rare():
    words, settings = Sequences.fit(TEXTS), cnn()
    inputs = settings.inputs(words, TEXTS)
    weights = settings.start(words, [inputs, inputs.take(np.array([0]))], 0)["weights"]
    places = {word: int(settings.inputs(words, [word]).ids[0, 0]) for word in ("red", "fox", "wild")}
    assert weights[places["red"]] == pytest.approx(math.log(7 / 4))  # three of six texts have it
    assert weights[places["fox"]] == pytest.approx(math.log(7 / 3))  # twice in one text counts once
    assert weights[places["wild"]] == pytest.approx(math.log(7 / 2))


def test_the_cnn_drops_entries_of_embeddings_in_training_alone():
    layers = cnn(dropout=1e-9, embedding_dropout=0.5).layers(0)
    seen = []
    for window in layers.windows:
        window.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.rand(20, 5, 8) + 0.5
    layers(x, 0.0)
    assert torch.equal(seen[0], x.transpose(1, 2))
    layers(x, 1e-9)
    dropped = seen[-1].transpose(1, 2)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(dropped[dropped != 0], 2 * x[dropped != 0])


RETRIEVERS = ["astec", "decaf", "eclare", "siamesexml", "inceptionxml_plus", "inceptionxml_lf", "lightxml"]
JOINED = ["unidec", "ngame"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_network_scores_as_its_scorer_does(name):
    """With dropout off, what the loss sees is what predictions come from."""
    train = board(100)
    recipe = replace(dropless(short(name)), augment=())
    network = networks(recipe, train, run=True)["training"]
    network.dense.eval()
    inputs, labels, scorer = network.points.inputs, np.arange(30), network.scorer()
    step = Step(np.random.default_rng(0), 1.0, network)
    assert (scorer.retriever is not None) == (name in RETRIEVERS)
    terms = [term for term in network.terms if term.objective.over == "labels"]
    assert len(terms) == (2 if name in JOINED else 1)
    for term, part in zip(terms, scorer.parts if name in JOINED else [scorer], strict=True):
        with torch.no_grad():
            scores = scores_of(term, network.tower(inputs, None), labels, step).numpy()
        cosine = term.objective.classifier.fields().get("cosine")
        scale = math.exp(float(term.classifier.module.log_scale.detach())) if cosine else 1.0
        rows, columns = np.repeat(np.arange(len(inputs)), 30), np.tile(labels, len(inputs))
        served = scale * part.by_rows(Query.of_inputs(inputs), rows, columns).reshape(-1, 30)
        np.testing.assert_allclose(served, scores, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(network.vectors(inputs), scorer.tower.encode(Query.of_inputs(inputs)), atol=1e-6)
