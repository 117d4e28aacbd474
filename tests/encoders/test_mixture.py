"""The mixture of the inception encoder and its second convolution, against slow formulas with loops."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small import board, networks, same, scores_of, short, small

import longtail as lt
from longtail.encoders.convolved import Convolved, pooling
from longtail.encoders.inception import Inception
from longtail.encoders.inputs import Ordered
from longtail.encoders.towers.ordered import encode
from longtail.errors import ModelError, RecipeError
from longtail.model import Model
from longtail.parts import Step
from longtail.records import part_of
from longtail.training.noise import StoredNoise

NO_DROPOUT = SimpleNamespace(drop=lambda values, share: values)
modes = pytest.mark.parametrize("training", [True, False], ids=["training", "served"])


def mixture(**changes) -> Inception:
    return Inception(**({"dim": 64, "max_tokens": 5, "channels": 4, "init": "random", "branches": "mixture"} | changes))


def moved(layers, seed: int = 0):
    """Move every parameter, and what batch norms have seen, so far that nothing is as it started."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layers.parameters():
            size = 0.3 if parameter.ndim == 1 else 0.3 / math.sqrt(parameter[0].numel())
            parameter.add_(size * torch.randn(parameter.shape, generator=draw))
        for name, buffer in layers.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand(buffer.shape, generator=draw))
    return layers


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# By the formulas, one number after the other


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def normed(maps, norm, training: bool):
    """Norm (B, C, T) channel by channel, with the batch's own mean and variance or with those that were seen."""
    channels = []
    for channel in range(maps.shape[1]):
        values = maps[:, channel]
        mean, var = norm.running_mean[channel], norm.running_var[channel]
        if training:
            mean = values.sum() / values.numel()
            var = ((values - mean) ** 2).sum() / values.numel()
        channels.append((values - mean) / (var + norm.eps).sqrt() * norm.weight[channel] + norm.bias[channel])
    return torch.stack(channels, 1)


def convolved(one, layer, places: int, padding: int = 0):
    """Convolve one map (C, D) with stride 4; windows go round in a circle."""
    channels, width, size = layer.weight.shape
    rows = []
    for out in range(channels):
        row = []
        for place in range(places):
            total = layer.bias[out]
            for channel in range(width):
                inside = [(4 * place - padding + step) % one.shape[1] for step in range(size)]
                total = total + (layer.weight[out, channel] * one[channel, inside]).sum()
            row.append(total)
        rows.append(torch.stack(row))
    return torch.stack(rows)


def literal_mixture(layers, x, training: bool):
    """Compute the vector of embedded words (B, T, D), without attention and dropout."""
    projected = torch.stack([layers.project.weight @ one + layers.project.bias[:, None] for one in x])
    maps = normed(gelu(projected), layers.norms[0], training)
    places, mixed, pooled = maps.shape[2] // 4, [], []
    for one in maps:
        means = torch.stack([row.sum() / len(row) for row in one])
        powers = [
            torch.exp(row @ means + bias) for row, bias in zip(layers.route.weight, layers.route.bias, strict=True)
        ]
        branches = [
            convolved(one, layer, places, padding)
            for layer, padding in zip(layers.branches, (0, 2, 6), strict=True)
        ]  # fmt: skip
        mixed.append(sum(power / sum(powers) * branch for power, branch in zip(powers, branches, strict=True)))
        pooled.append(torch.stack([one[:, 4 * place : 4 * place + 4].sum(1) / 4 for place in range(places)], 1))
    inner, outer = (1 / (1 + torch.exp(-gate)) for gate in layers.mix)
    both = inner * normed(gelu(torch.stack(mixed)), layers.norms[1], training) + outer * torch.stack(pooled)
    return both.reshape(len(x), -1)


def literal_head(head, vectors, training: bool):
    """Compute what the head makes of flat maps, without dropout."""
    channels, dim = head.settings.channels, head.settings.dim
    maps = vectors.reshape(len(vectors), channels, -1)
    places = (maps.shape[2] - 16) // 4 + 1
    second = torch.stack([convolved(one, head.convolution, places) for one in maps])
    inner = normed(gelu(second), head.norm, training).reshape(len(vectors), -1)
    weight = head.layer.parametrizations.weight
    sigma = weight[0]._u @ weight.original @ weight[0]._v
    rows = []
    for one in inner:
        hidden = gelu(weight.original / sigma @ one + head.layer.bias)
        count = len(one)
        windows = [one[place * count // dim : math.ceil((place + 1) * count / dim)] for place in range(dim)]
        rows.append(hidden + torch.stack([window.sum() / len(window) for window in windows]))
    return torch.stack(rows)


def agree(module, run, literal, x) -> None:
    """Compare values, and gradients of a random sum of them: by the input and by every parameter."""
    results = []
    for compute in (run, literal):
        start = x.clone().requires_grad_()
        values = compute(start)
        module.zero_grad()
        (values * noise(*values.shape, seed=9)).sum().backward()
        gradients = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
        results.append((values.detach(), start.grad, gradients))
    (values, by_input, gradients), (expected, expected_by_input, expected_gradients) = results
    torch.testing.assert_close(values, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(by_input, expected_by_input, rtol=1e-7, atol=1e-8)
    assert (by_input != 0).any()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-7, atol=1e-8, msg=name)
        assert (gradient != 0).any(), name


@modes
def test_the_mixture_is_the_formula_in_value_and_gradient(training):
    layers = moved(mixture(attention=False).layers(0)).double().eval()

    def run(x):
        return layers.train(training)(x, 0.0)

    agree(layers, run, lambda x: literal_mixture(layers, x, training), noise(3, 5, 64))


@modes
@pytest.mark.parametrize(("length", "dim"), [(16, 3), (27, 12), (27, 5), (27, 20)])  # 4 or 12 entries behind it
def test_the_head_is_the_formula_in_value_and_gradient(training, length, dim):
    head = moved(Convolved(channels=4, dim=dim).build(4 * length, None)).double().eval()

    def run(x):
        head.norm.train(training)  # the power iteration of the spectral norm stands still
        return head(x, NO_DROPOUT)

    agree(head, run, lambda x: literal_head(head, x, training), noise(3, 4 * length))


# The mixture


def test_the_shares_of_branches_sum_to_one_and_are_each_texts_own():
    layers = moved(mixture().layers(0)).eval()
    maps = torch.randn(6, 4, 64)
    shares = layers.shares(maps)
    assert shares.shape == (6, 3) and (shares > 0).all()
    torch.testing.assert_close(shares.sum(1), torch.ones(6))
    assert len({tuple(row) for row in shares.tolist()}) == 6
    assert torch.equal(layers.shares(maps.flip(2)).round(decimals=4), shares.round(decimals=4))  # means over places


def test_the_mixture_starts_with_halves():
    layers = mixture().layers(0).eval()
    maps = torch.randn(2, 4, 64)
    with torch.no_grad():
        layers.norms[1].weight.zero_()  # nothing is left of the branches
        torch.testing.assert_close(layers.mixed(maps), maps.reshape(2, 4, 16, 4).mean(3) / 2)


@pytest.mark.parametrize(("dim", "channels", "width"), [(64, 4, 64), (300, 32, 2400)])
def test_the_vector_of_a_mixture_is_the_flat_map(dim, channels, width):
    settings = mixture(dim=dim, channels=channels)
    assert settings.width == width
    assert settings.layers(0)(torch.randn(2, 5, dim), 0.0).shape == (2, width)
    assert settings.flops() < replace(settings, branches="concatenated").flops()
    assert part_of(settings.dump()) == settings


def test_either_kind_has_only_its_own_parameters():
    kinds = [{name.partition(".")[0] for name in mixture(branches=kind).layers(0).state_dict()}
             for kind in ("concatenated", "mixture")]  # fmt: skip
    assert kinds[0] - kinds[1] == {"second"} and kinds[1] - kinds[0] == {"route", "mix"}
    assert Inception().branches == "concatenated" and Inception().width == 480


def test_dropout_of_a_mixture_acts_in_training_alone():
    layers = moved(mixture().layers(0)).eval()
    x = torch.randn(2, 5, 64)
    assert torch.equal(layers(x, 0.0), layers(x, 0.0))
    assert not torch.equal(layers(x, 0.25), layers(x, 0.25))


# The head


@pytest.mark.parametrize(("channels", "length", "dim"), [(4, 16, 7), (4, 75, 60), (32, 75, 300), (3, 20, 6)])
def test_a_head_as_arrays_equals_the_module(channels, length, dim):
    torch.manual_seed(1)
    settings, width = Convolved(channels=channels, dim=dim), channels * length
    assert settings.out_width(width) == dim
    head = settings.build(width, None)
    for _ in range(5):
        head(2 * torch.randn(8, width) + 1, NO_DROPOUT)
    moved(head)
    frozen = head.freeze()
    assert head.training  # it goes on being trained as before
    x = torch.randn(7, width)
    expected = head.eval()(x, NO_DROPOUT).detach().numpy()
    assert expected.shape == (7, dim)
    served = frozen(x.numpy())
    assert served.dtype == np.float32
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(frozen(x.numpy()[2]), expected[2], rtol=1e-5, atol=1e-5)  # one vector
    assert frozen(x.numpy()[:0]).shape == (0, dim)
    opened = settings.open(frozen.arrays("h"), "h", width)
    assert np.array_equal(opened(x.numpy()), served)
    with torch.no_grad():  # what is served does not change with the next step
        for parameter in head.parameters():
            parameter.add_(1)
    assert np.array_equal(frozen(x.numpy()), served)


def test_a_head_of_another_shape_is_refused():
    settings = Convolved(channels=4, dim=7)
    arrays = settings.build(64, None).freeze().arrays("h")
    assert set(arrays) == {f"h.{key}" for key in ("kernels", "offset", "scale", "shift", "weight", "bias")}
    for name, array in arrays.items():
        with pytest.raises(ModelError, match=r"array h\.\w+ is damaged"):
            settings.open(arrays | {name: array[:-1]}, "h", 64)
    with pytest.raises(ModelError, match=r"array h\.\w+ is damaged"):
        settings.open(arrays, "h", 80)
    with pytest.raises(ModelError, match=r"h\.kernels is missing"):
        settings.open({}, "h", 64)


def test_a_head_needs_no_torch_to_be_served():
    arrays = Convolved(channels=4, dim=7).build(64, None).freeze().arrays("h")
    shapes = {name: array.shape for name, array in arrays.items()}
    program = f"""
import sys
import numpy as np
from longtail.encoders.convolved import Convolved
arrays = {{name: np.ones(shape, np.float32) for name, shape in {shapes!r}.items()}}
assert Convolved(channels=4, dim=7).open(arrays, "h", 64)(np.ones(64, np.float32)).shape == (7,)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


CUT, SHORT = r"66 entries into 4 channels.*head\.channels", r"15 for each of 4 channels.*encoder\.branches=mixture"


@pytest.mark.parametrize(("width", "message"), [(66, CUT), (60, SHORT)])
def test_maps_that_do_not_fit_are_refused_with_the_remedy(width, message):
    settings = Convolved(channels=4, dim=7)
    with pytest.raises(RecipeError, match=message):
        settings.build(width, None)
    with pytest.raises(RecipeError, match=message):
        settings.open({}, "h", width)


def test_dropout_of_a_head_follows_the_chance_of_its_step():
    head = Convolved(channels=4, dim=7, dropout=0.5).build(108, None).eval()
    network = SimpleNamespace(noise=StoredNoise(0))
    x = torch.randn(5, 108)
    one, again, other = (head(x, Step(np.random.default_rng(seed), 1.0, network)) for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_the_spectral_norm_of_a_head_stays_below_one():
    torch.manual_seed(0)
    head = Convolved(channels=4, dim=7).build(108, None)
    with torch.no_grad():
        head.layer.parametrizations.weight.original.mul_(30)
    for _ in range(60):  # each pass is one step of the power iteration
        head(torch.randn(2, 108), NO_DROPOUT)
    assert np.linalg.norm(head.freeze().weight, 2) <= 1.01


@pytest.mark.parametrize(("width", "dim"), [(480, 300), (12, 5), (4, 7), (6, 6), (5, 1)])
def test_pooling_is_that_of_torch(width, dim):
    x = torch.randn(3, width)
    expected = torch.nn.functional.adaptive_avg_pool1d(x, dim).numpy()
    np.testing.assert_allclose(x.numpy() @ pooling(width, dim), expected, rtol=1e-5, atol=1e-6)


# Models


def decoupled(recipe, **changes):
    """Give each objective a convolution of its own."""
    recipe = recipe.override("encoder.branches", "mixture")
    head = Convolved(**({"channels": 8, "dim": 12} | changes))
    return replace(recipe, objectives=tuple(replace(objective, head=head) for objective in recipe.objectives))


def test_a_recipe_whose_parts_do_not_fit_is_refused_with_the_remedy():
    recipe = decoupled(short("inceptionxml_plus"))
    recipe.check()
    with pytest.raises(RecipeError, match=r"maps of 8 channels.*head\.channels=8"):
        decoupled(recipe, channels=4).check()
    with pytest.raises(RecipeError, match=r"encoder\.branches=mixture"):
        recipe.override("encoder.branches", "concatenated").check()


def test_a_model_comes_back_from_its_folder(tmp_path):
    train = board(100)
    recipe = decoupled(short("inceptionxml_plus"))
    model = lt.fit(recipe, train)
    model.save(tmp_path / "run")
    loaded = Model.load(tmp_path / "run")
    assert same(loaded, model)
    assert loaded.recipe.encoder.branches == "mixture" and loaded.recipe.objectives[1].head == Convolved(
        channels=8, dim=12
    )
    one, other = model.predict(train.texts, 4), loaded.predict(train.texts, 4)
    assert np.array_equal(one.labels, other.labels)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)
    assert loaded.vectors.store.dim == 12


def test_labels_and_clusters_have_a_convolution_each_and_served_scores_are_those_of_the_loss():
    recipe = decoupled(short("inceptionxml_plus", encoder__dropout=0.0, classifier__dropout=0.0), dropout=0.0)
    network = networks(recipe, board(100), run=True)["training"]
    network.dense.eval()
    heads = [term.head for term in network.terms]
    for one, other in itertools.combinations(heads, 2):
        assert not torch.equal(one.convolution.weight, other.convolution.weight)
    inputs, term = network.points.inputs, network.terms[0]
    with torch.no_grad():
        states = network.tower(inputs, None)
        scores = scores_of(term, states, np.arange(30), Step(np.random.default_rng(0), 1.0, network)).numpy()
    assert states.pooled.shape == (len(inputs), 8 * 16)
    scorer = network.scorer()
    vectors = scorer.tower.encode_inputs(inputs)
    np.testing.assert_allclose(vectors, states.pooled.numpy(), atol=1e-5)
    assert np.array_equal(encode(scorer.tower.layers, Ordered(inputs.ids), scorer.tower.vectors), vectors)
    served = scorer.project.head(vectors) @ scorer.store.take(slice(None)).T + scorer.store.bias
    np.testing.assert_allclose(served, scores, rtol=1e-3, atol=1e-3)


def test_a_mixture_learns_the_rule():
    train = board()
    top = lt.fit(decoupled(small("inceptionxml_plus"), dim=32), train).predict(train.texts, 1)
    assert train.targets.toarray()[np.arange(len(train.texts)), top.labels[:, 0]].mean() > 0.95
