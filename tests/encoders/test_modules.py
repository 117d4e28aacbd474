"""The encoders against slow formulas, and the arrays of a saved model against the modules that were trained."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from small import board, networks, short
from torch.nn import functional

from longtail.data.sequences import Sequences
from longtail.data.tokens import Words
from longtail.encoders.bag import Bag
from longtail.encoders.convolutional import Cnn, Inception
from longtail.encoders.encoding import BagEncoding, OrderedEncoding
from longtail.encoders.inputs import Bags, Ordered
from longtail.encoders.modules import BagEncoder, Noise, Residual, encoder_of
from longtail.errors import ModelError

TEXTS = ["red cat", "old dog", "red fox fox", "", "a wild cat and an old fox"]


def inception(**changes) -> Inception:
    return Inception(**({"dim": 64, "words": 5, "channels": 6, "start": "random"} | changes))


def encoder(settings, seed: int = 0):
    """Build an encoder whose every parameter has moved, ready to encode."""
    made = encoder_of(settings, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
        for name, buffer in made.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand(buffer.shape, generator=draw))
    made.eval()
    return made


@pytest.mark.parametrize("seed", range(3))
def test_attention_is_the_formula_of_the_paper(seed):
    made = encoder(inception(), seed)
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    over_words, over_dims = made.over_words.weight.detach(), made.over_dims.weight.detach()
    g1, g2 = made.gates.detach()
    for one, attended in zip(x, made.attend(x).detach(), strict=True):
        first = g1 * (one @ one.T) @ (over_words @ one) + one
        u, v = first.T, one.T
        torch.testing.assert_close(attended, (g2 * (u @ v.T) @ (over_dims @ u) + u).T, rtol=1e-3, atol=1e-3)


def test_attention_starts_as_the_identity():
    made, x = encoder_of(inception(), seed=0), torch.randn(2, 5, 64)
    assert torch.equal(made.attend(x), x)
    for layer in (made.over_words, made.over_dims):
        assert float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) < 1.1


@pytest.mark.parametrize(("dim", "vector"), [(64, 32), (300, 480)])
def test_every_branch_gives_a_quarter_of_the_dimensions(dim, vector):
    settings = inception(dim=dim, channels=32)
    made = encoder_of(settings, seed=0)
    x = torch.randn(2, 32, dim)
    assert [tuple(branch(x).shape) for branch in made.branches] == [(2, 32, dim // 4)] * 3
    assert made(torch.randn(2, 5, dim), None).shape == (2, vector)
    assert settings.vector == vector


def test_branches_pad_in_a_circle():
    branch = encoder_of(inception(), seed=0).branches[2]  # 16 wide, padded by 6 on both sides
    x = torch.randn(1, 6, 64)
    round_about = torch.cat([x[:, :, -6:], x, x[:, :, :6]], dim=2)
    torch.testing.assert_close(branch(x), functional.conv1d(round_about, branch.weight, branch.bias, stride=4))


def test_inception_step_by_step():
    settings = inception(attention=False)
    made = encoder(settings)
    x = torch.randn(3, 5, 64)

    def norm(x, layer):
        mean, var, weight, bias = (
            value.detach()[None, :, None] for value in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
        )
        return (x - mean) / (var + layer.eps).sqrt() * weight + bias

    projected = torch.einsum("ct,btd->bcd", made.project.weight, x) + made.project.bias[None, :, None]
    held = norm(functional.gelu(projected), made.norms[0])
    held = norm(functional.gelu(torch.cat([branch(held) for branch in made.branches], 1)), made.norms[1])
    held = norm(functional.gelu(functional.conv1d(held, made.second.weight, made.second.bias, stride=4)), made.norms[2])
    torch.testing.assert_close(made(x, None), held.flatten(1), rtol=1e-4, atol=1e-4)


def test_a_permutation_of_dimensions_is_one():
    plain, permuted = encoder_of(inception(), seed=3), encoder_of(inception(permuted=True), seed=3)
    order = permuted.order
    assert sorted(order.tolist()) == list(range(64))
    assert order.tolist() != list(range(64))
    x = torch.randn(2, 5, 64)
    for made in (plain, permuted):
        made.eval()
    torch.testing.assert_close(permuted(x, None), plain(x[:, :, order], None))


def test_the_cnn_takes_the_maximum_over_windows():
    made = encoder(Cnn(dim=3, words=6, filters=2, windows=(2,), stretches=1, vector=4))
    x = torch.randn(1, 6, 3)
    window = made.windows[0]
    padded = torch.cat([torch.zeros(1, 3), x[0], torch.zeros(1, 3)])
    found = [torch.einsum("fdk,kd->f", window.weight, padded[i : i + 2]) + window.bias for i in range(7)]
    most = torch.stack([value.clamp_min(0) for value in found]).max(dim=0).values
    expected = (made.narrow.weight @ most + made.narrow.bias).clamp_min(0)
    torch.testing.assert_close(made(x, None)[0], expected, rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_alone():
    draw = np.random.default_rng(0)
    for settings in (inception(), Cnn(dim=8, words=5, filters=4, vector=6)):
        made = encoder(settings)
        x = torch.randn(2, 5, settings.dim)
        assert torch.equal(made(x, None), made(x, None))
        assert not torch.equal(made(x, draw), made(x, draw))


def test_the_head_of_a_bag_starts_as_the_identity():
    head = Residual(5, "relu", noise=Noise(0))
    x = torch.randn(4, 5)
    torch.testing.assert_close(head(x, np.random.default_rng(0)), x.clamp_min(0) + x)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_spectral_norm_of_a_head_stays_below_one(activation):
    torch.manual_seed(0)
    head = Residual(20, activation, noise=Noise(0))
    with torch.no_grad():
        head.layer.parametrizations.weight.original.mul_(30).add_(torch.randn(20, 20))
    for _ in range(60):  # each pass is one step of the power iteration
        head(torch.randn(2, 20), np.random.default_rng(0))
    assert float(torch.linalg.matrix_norm(head.layer.weight.detach(), 2)) <= 1.01
    assert np.linalg.norm(head.frozen().weight, 2) <= 1.01


@pytest.mark.parametrize("norm", ["spectral", "batchnorm"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_head_as_arrays_equals_the_module(activation, norm):
    torch.manual_seed(1)
    head = Residual(6, activation, noise=Noise(0), norm=norm)
    for _ in range(5):
        head(3 * torch.randn(8, 6) + 1, np.random.default_rng(0))
    with torch.no_grad():
        head.layer.bias.add_(torch.randn(6))
        if head.norm is not None:
            head.norm.weight.add_(torch.randn(6))
            head.norm.bias.add_(torch.randn(6))
    frozen = head.frozen()
    x = torch.randn(7, 6)
    expected = head(x, np.random.default_rng(0)).detach().numpy()
    np.testing.assert_allclose(frozen(x.numpy()), expected, rtol=1e-4, atol=1e-5)
    again = type(frozen).of_arrays(frozen.arrays("h"), "h")
    assert np.array_equal(again(x.numpy()), frozen(x.numpy()))
    assert type(frozen).of_arrays({}, "h") is None


def test_dropout_stands_before_or_behind_the_layer():
    head = Residual(200, "relu", noise=Noise(0))
    x = torch.rand(50, 200) + 0.5
    behind = head(x, np.random.default_rng(0), 0.0, 0.5) - x  # relu(x) dropped: 0 or 2 x
    assert set((behind / x).round().flatten().tolist()) == {0.0, 2.0}
    with torch.no_grad():
        head.layer.bias.fill_(0.25)
    before = head(x, np.random.default_rng(0), 0.5, 0.0) - x  # relu(dropped + 0.25) is never 0
    assert float(before.detach().min()) == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.001])
def test_noise_keeps_the_mean(share):
    values = torch.ones(300, 100)
    kept = Noise(0).drop(values, share, np.random.default_rng(1))
    cut = round(share * 256) / 256
    assert float((kept == 0).float().mean()) == pytest.approx(cut, abs=0.02)
    assert float(kept.mean()) == pytest.approx(1, abs=0.02)


def test_more_noise_than_the_store_holds():
    noise = Noise(0)
    noise.store = noise.store[:100]
    kept = noise.drop(torch.ones(500), 0.5, np.random.default_rng(0))
    assert set(kept.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("relu", [True, False])
def test_a_bag_as_arrays_equals_the_module(relu):
    words = Words.fit(TEXTS)
    vectors = np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float32)
    encoding = BagEncoding(words, vectors, relu)
    bags = encoding.inputs(TEXTS)
    used = np.unique(bags.words())
    made = BagEncoder(Bag(dim=8, relu=relu), seed=0)
    expected = made(made.embed(bags, used, torch.from_numpy(vectors[used])), None).numpy()
    np.testing.assert_allclose(encoding.encode(bags), expected, atol=1e-6)
    assert not expected[3].any()  # the empty text


@pytest.mark.parametrize("settings", [inception(), inception(permuted=True), Cnn(dim=8, words=5, filters=4, vector=6)])
def test_an_ordered_encoding_equals_the_module(settings):
    words = Sequences.fit(TEXTS)
    vectors = np.random.default_rng(0).normal(size=(len(words), settings.dim)).astype(np.float32)
    made = encoder(settings)
    layers = {name: value.numpy() for name, value in made.state_dict().items()}
    encoding = OrderedEncoding(words, vectors, settings, layers)
    inputs = encoding.inputs(TEXTS)
    table = np.where(np.arange(len(vectors))[:, None] > 0, vectors, 0)  # padding is zero whatever its row holds
    with torch.no_grad():
        expected = made(torch.from_numpy(table[inputs.ids].astype(np.float32)), None).numpy()
    np.testing.assert_allclose(encoding.encode(inputs), expected, rtol=1e-4, atol=1e-4)
    longer = Ordered(np.tile(inputs.ids, (60, 1)))  # more than one block
    np.testing.assert_allclose(encoding.encode(longer), np.tile(expected, (60, 1)), rtol=1e-4, atol=1e-4)


def test_layers_that_do_not_fit_are_refused():
    made = encoder_of(inception(), seed=0)
    layers = {name: value.numpy() for name, value in made.state_dict().items()}
    with pytest.raises(ModelError, match="do not fit its settings"):
        encoder_of(inception(channels=7), seed=0, layers=layers)
    with pytest.raises(ModelError, match="do not fit its settings"):
        encoder_of(inception(), seed=0, layers={name: layers[name] for name in list(layers)[1:]})


@pytest.mark.parametrize("name", ["frugal", "astec", "inceptionxml", "inceptionxml_plus", "xmlcnn"])
def test_a_trained_network_scores_as_its_index_does(name):
    """With dropout off, what the loss sees is what predictions come from."""
    train = board(100)
    recipe = replace(short(name, encoder__dropout=0.0, classifier__dropout=0.0), augment=())
    network = networks(recipe, train, run=True)["training"]
    network.dense.eval()
    inputs, pool = network.points.inputs, np.arange(30)
    names = network.points.names if network.plan.classifier.text else None
    used = np.unique(np.concatenate([part.words() for part in (inputs, names) if part is not None]))
    vectors = network.tables["words"].gather(used)
    draw = np.random.default_rng(0)
    encoded = network.dense.encoder(network.dense.encoder.embed(inputs, used, vectors), None)
    scores = network._scores(encoded, pool, names, used, vectors, draw).detach().numpy()
    index = network.index()
    scale = math.exp(float(network.dense.log_scale.detach())) if network.plan.classifier.cosine else 1.0
    found = scale * (index.encode(inputs) @ index.labels.T + index.bias)
    np.testing.assert_allclose(found, scores, rtol=1e-3, atol=1e-3)


def test_bags_are_followed_and_replaced():
    bags = Bags(sp.csr_array(np.array([[0.6, 0.8, 0], [1, 0, 0]], np.float32)))
    names = Bags(sp.csr_array(np.array([[0, 0, 1.0], [1, 0, 0]], np.float32)))
    made = bags.followed(names, np.array([0, -1])).matrix.toarray()
    np.testing.assert_allclose(made, [np.array([0.6, 0.8, 1]) / math.sqrt(2), [1, 0, 0]], rtol=1e-6)
    swapped = bags.replaced(lambda ids: np.array([2, 1, 0])[ids]).matrix.toarray()
    np.testing.assert_allclose(swapped, [[0, 0.8, 0.6], [0, 0, 1]], rtol=1e-6)


def test_ordered_words_are_followed_as_far_as_there_is_room_and_replaced():
    ids = Ordered(np.array([[5, 0, 0], [5, 6, 7], [0, 0, 0]], np.int32))
    names = Ordered(np.array([[8, 9, 0]], np.int32))
    assert ids.followed(names, np.array([0, 0, -1])).ids.tolist() == [[5, 8, 9], [5, 6, 7], [0, 0, 0]]
    assert ids.replaced(lambda held: held + 1).ids.tolist() == [[6, 0, 0], [6, 7, 8], [0, 0, 0]]
