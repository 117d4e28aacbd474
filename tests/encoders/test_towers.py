"""Towers and heads against slow formulas, and the arrays of a saved model against the modules that were trained."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from small import TRAINED, board, networks, short
from torch.nn import functional

from longtail.data.sequences import Sequences
from longtail.data.tokens import Words
from longtail.encoders.bag import Bag, FrozenBag
from longtail.encoders.cnn import Cnn
from longtail.encoders.heads import Residual
from longtail.encoders.inception import Inception
from longtail.encoders.inputs import Bags, Ordered
from longtail.encoders.ordered import FrozenOrdered
from longtail.encoders.towers.bag import BagTower
from longtail.encoders.towers.ordered import OrderedTower
from longtail.encoders.towers.residual import ResidualLayer
from longtail.errors import ModelError
from longtail.parts import Query, Step
from longtail.training.noise import StoredNoise
from longtail.training.tables import LocalTable

TEXTS = ["red cat", "old dog", "red fox fox", "", "a wild cat and an old fox"]


class Toy:
    """The little that a tower or a head needs of a network."""

    def __init__(self, seed: int = 0, *, frozen: bool = False) -> None:
        self.noise, self.fit, self.frozen = StoredNoise(seed), SimpleNamespace(seed=seed), frozen

    def table(self, values, *, frozen: bool = False) -> LocalTable:
        return LocalTable(torch.from_numpy(np.array(values)), "adam", frozen)

    def step(self, seed: int = 0, augmentations=()) -> Step:
        return Step(np.random.default_rng(seed), 1.0, self, augmentations)


def inception(**changes) -> Inception:
    return Inception(**({"dim": 64, "max_tokens": 5, "channels": 6, "init": "random"} | changes))


def cnn(**changes) -> Cnn:
    return Cnn(**({"dim": 8, "max_tokens": 5, "filters": 4, "width": 6} | changes))


def moved(layers, seed: int = 0):
    """Move every parameter of layers, so that they are ready to encode and nothing is as it started."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
        for name, buffer in layers.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand(buffer.shape, generator=draw))
    return layers.eval()


def word_vectors(words, dim: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(words), dim)).astype(np.float32)


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
    tower = OrderedTower(settings, {"words": word_vectors(words, settings.dim)}, toy)
    moved(tower.module)
    inputs = settings.inputs(words, TEXTS)
    assert torch.equal(tower(inputs, None).pooled, tower(inputs, None).pooled)
    assert not torch.equal(tower(inputs, toy.step()).pooled, tower(inputs, toy.step()).pooled)


def test_the_dropout_of_a_bag_follows_the_chance_of_its_step():
    toy, words = Toy(), Words.fit(TEXTS)
    vectors = word_vectors(words, 400)
    tower = BagTower(Bag(dim=400, dropout=0.5, relu=True), {"words": vectors}, toy)
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
        tower = BagTower(Bag(dim=8, dropout=0.0), {"words": word_vectors(words, 8)}, toy)
        inputs = Bags(words.bag(TEXTS))
    else:
        words, settings = Sequences.fit(TEXTS), cnn(dropout=0.0)
        tower = OrderedTower(settings, {"words": word_vectors(words, 8)}, toy)
        inputs = settings.inputs(words, TEXTS)
    doubled = tower(inputs, toy.step(augmentations=[Twice()])).pooled
    tower.words.values.mul_(2)
    torch.testing.assert_close(doubled, tower(inputs, None).pooled)


@pytest.mark.parametrize("frozen", [True, False])
def test_only_words_of_the_batch_learn_unless_they_are_frozen(frozen):
    toy, words = Toy(frozen=frozen), Words.fit(TEXTS)
    tower = BagTower(Bag(dim=8), {"words": word_vectors(words, 8)}, toy)
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
    one, two = (OrderedTower(settings, {"words": word_vectors(words, settings.dim)}, Toy(seed)) for seed in (0, 1))
    moved(one.module)
    one.words.values.add_(1)
    two.take_over(one)
    inputs = settings.inputs(words, TEXTS)
    two.module.eval()
    assert torch.equal(one(inputs, None).pooled, two(inputs, None).pooled)
    one.words.values.add_(1)  # they do not share their memory
    assert not torch.equal(one.words.values, two.words.values)


def residual(dim: int, toy: Toy | None = None, **changes) -> ResidualLayer:
    return Residual(**({"dropout": 0.0} | changes)).build(dim, toy or Toy())


def test_the_head_of_a_bag_starts_as_the_identity():
    head = residual(5, activation="relu")
    x = torch.randn(4, 5)
    torch.testing.assert_close(head(x, Toy().step()), x.clamp_min(0) + x)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_spectral_norm_of_a_head_stays_below_one(activation):
    torch.manual_seed(0)
    head, step = residual(20, activation=activation), Toy().step()
    with torch.no_grad():
        head.layer.parametrizations.weight.original.mul_(30).add_(torch.randn(20, 20))
    for _ in range(60):  # each pass is one step of the power iteration
        head(torch.randn(2, 20), step)
    assert float(torch.linalg.matrix_norm(head.layer.weight.detach(), 2)) <= 1.01
    assert np.linalg.norm(head.freeze().weight, 2) <= 1.01


@pytest.mark.parametrize("norm", ["spectral", "batchnorm"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_head_as_arrays_equals_the_module(activation, norm):
    torch.manual_seed(1)
    settings = Residual(activation=activation, norm=norm, dropout=0.0)
    head, step = settings.build(6, Toy()), Toy().step()
    for _ in range(5):
        head(3 * torch.randn(8, 6) + 1, step)
    with torch.no_grad():
        head.layer.bias.add_(torch.randn(6))
        if head.norm is not None:
            head.norm.weight.add_(torch.randn(6))
            head.norm.bias.add_(torch.randn(6))
    frozen = head.freeze()
    assert head.training  # it goes on being trained as before
    x = torch.randn(7, 6)
    head.eval()
    expected = head(x, step).detach().numpy()
    np.testing.assert_allclose(frozen(x.numpy()), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(frozen(x.numpy()[2]), expected[2], rtol=1e-4, atol=1e-5)  # one vector
    opened = settings.open(frozen.arrays("h"), "h", 6)
    assert np.array_equal(opened(x.numpy()), frozen(x.numpy()))
    with pytest.raises(KeyError, match=r"h\.weight"):  # the loader of models turns this into one line
        settings.open({}, "h", 6)
    for name in ("weight", "scale", "shift"):
        arrays = frozen.arrays("h")
        with pytest.raises(ModelError, match="layer h has a shape"):
            settings.open(arrays | {f"h.{name}": arrays[f"h.{name}"][:5]}, "h", 6)


def test_dropout_stands_before_or_behind_the_layer():
    toy, x = Toy(), torch.rand(50, 200) + 0.5
    head = residual(200, toy, activation="relu", dropout=0.5)
    behind = head(x, toy.step()) - x  # relu(x) dropped: 0 or 2 x
    assert set((behind / x).round().flatten().tolist()) == {0.0, 2.0}
    head = residual(200, toy, activation="gelu", norm="batchnorm", dropout=0.5)
    head.norm = None
    with torch.no_grad():
        torch.nn.init.eye_(head.layer.weight)
        head.layer.bias.fill_(0.25)
    before = head(x, toy.step()) - x  # gelu(dropped + 0.25) is never 0
    assert float(before.detach().min()) == pytest.approx(float(functional.gelu(torch.tensor(0.25))), abs=1e-4)
    assert torch.equal(head(x, toy.step(3)), head(x, toy.step(3)))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.001])
def test_noise_keeps_the_mean(share):
    values = torch.ones(300, 100)
    kept = StoredNoise(0).drop(values, share, np.random.default_rng(1))
    cut = round(share * 256) / 256
    assert float((kept == 0).float().mean()) == pytest.approx(cut, abs=0.02)
    assert float(kept.mean()) == pytest.approx(1, abs=0.02)


def test_more_noise_than_the_store_holds():
    noise = StoredNoise(0)
    noise.store = noise.store[:100]
    kept = noise.drop(torch.ones(500), 0.5, np.random.default_rng(0))
    assert set(kept.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("relu", [True, False])
def test_a_bag_as_arrays_equals_the_tower(relu):
    words = Words.fit(TEXTS)
    settings = Bag(dim=8, relu=relu)
    tower = settings.build({"words": word_vectors(words, 8)}, Toy())
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
    slow = bags.matrix.toarray() @ word_vectors(words, 8)
    np.testing.assert_allclose(expected, np.maximum(slow, 0) if relu else slow, atol=1e-5)
    opened = settings.open(frozen.arrays(), words)
    assert np.array_equal(opened.encode(Query(TEXTS)), frozen.encode(Query(TEXTS)))
    with pytest.raises(ModelError, match="do not fit the vocabulary"):
        settings.open({"words": frozen.vectors[:, :5]}, words)


@pytest.mark.parametrize("settings", [inception(), inception(permute_dims=True), cnn()])
def test_an_ordered_encoder_as_arrays_equals_the_tower(settings):
    words = Sequences.fit(TEXTS)
    vectors = word_vectors(words, settings.dim)
    tower = settings.build({"words": vectors}, Toy(3))
    moved(tower.module)
    inputs = settings.inputs(words, TEXTS)
    table = np.where(np.arange(len(vectors))[:, None] > 0, vectors, 0)  # padding is zero whatever its row says
    with torch.no_grad():
        expected = tower.module(torch.from_numpy(table[inputs.ids].astype(np.float32)), 0.0).numpy()
        np.testing.assert_allclose(tower(inputs, None).pooled.numpy(), expected, rtol=1e-4, atol=1e-4)
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
    tower = inception().build({"words": word_vectors(words, 64)}, Toy())
    arrays = tower.freeze(words).arrays()
    fewer = {name: array for name, array in arrays.items() if name != "encoder.gates"}
    for settings, some in ((inception(channels=7), arrays), (inception(), fewer)):
        with pytest.raises(ModelError, match="do not fit its settings"):
            settings.open(some, words).encode(Query(TEXTS))
    with pytest.raises(ModelError, match="do not fit the vocabulary"):
        inception().open(arrays | {"words": arrays["words"][1:]}, words)


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_network_scores_as_its_scorer_does(name):
    """With dropout off, what the loss sees is what predictions come from."""
    train = board(100)
    recipe = replace(short(name, encoder__dropout=0.0, classifier__dropout=0.0), augment=())
    if recipe.objectives[0].head is not None:
        recipe = recipe.override("head.dropout", 0.0)
    network = networks(recipe, train, run=True)["training"]
    network.dense.eval()
    inputs, labels, term = network.points.inputs, np.arange(30), network.terms[0]
    step = Step(np.random.default_rng(0), 1.0, network)
    with torch.no_grad():
        scores = term.scores(network.tower(inputs, None), labels, step).numpy()
    scorer = network.scorer()
    assert (scorer.retriever is not None) == (name in ("astec", "inceptionxml_plus"))
    scale = math.exp(float(term.classifier.module.log_scale.detach())) if term.objective.classifier.cosine else 1.0
    encoded = scorer.encoded(Query.of_inputs(inputs))
    served = scale * (encoded @ scorer.store.take(slice(None)).T + scorer.store.bias)
    np.testing.assert_allclose(served, scores, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(network.vectors(inputs), scorer.tower.encode(Query.of_inputs(inputs)), atol=1e-6)


def test_bags_are_followed_and_replaced():
    bags = Bags(sp.csr_array(np.array([[0.6, 0.8, 0], [1, 0, 0]], np.float32)))
    names = Bags(sp.csr_array(np.array([[0, 0, 1.0], [1, 0, 0]], np.float32)))
    followed = bags.followed(names, np.array([0, -1])).matrix.toarray()
    np.testing.assert_allclose(followed, [np.array([0.6, 0.8, 1]) / math.sqrt(2), [1, 0, 0]], rtol=1e-6)
    swapped = bags.replaced(lambda ids: np.array([2, 1, 0])[ids]).matrix.toarray()
    np.testing.assert_allclose(swapped, [[0, 0.8, 0.6], [0, 0, 1]], rtol=1e-6)
    assert len(bags) == 2 and bags.take(np.array([1])).bags(3).toarray().tolist() == [[1, 0, 0]]


def test_ordered_words_are_followed_as_far_as_there_is_room_and_replaced():
    ids = Ordered(np.array([[5, 0, 0], [5, 6, 7], [0, 0, 0]], np.int32))
    names = Ordered(np.array([[8, 9, 0]], np.int32))
    assert ids.followed(names, np.array([0, 0, -1])).ids.tolist() == [[5, 8, 9], [5, 6, 7], [0, 0, 0]]
    assert ids.replaced(lambda words: words + 1).ids.tolist() == [[6, 0, 0], [6, 7, 8], [0, 0, 0]]
    assert len(ids) == 3 and ids.take(np.array([2, 1])).ids.tolist() == [[0, 0, 0], [5, 6, 7]]
    counts = Ordered(np.array([[2, 1, 2], [0, 0, 0]], np.int32)).bags(4).toarray()
    assert counts.tolist() == [[0, 1, 2, 0], [0, 0, 0, 0]]
