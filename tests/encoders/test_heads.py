"""Heads against their formulas, and the arrays that are served against the modules that were trained."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from encoders.toy import Toy
from torch.nn import functional

from longtail.encoders.heads import Gated, Project, Residual
from longtail.encoders.towers.residual import ResidualLayer
from longtail.errors import ModelError
from longtail.training.noise import StoredNoise


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
    with pytest.raises(ModelError, match=r"h\.weight is missing"):
        settings.open({}, "h", 6)
    for name in ("weight", "scale", "shift"):
        arrays = frozen.arrays("h")
        with pytest.raises(ModelError, match=r"array h\.\w+ is damaged"):
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


def spectral(layer, x):
    """Multiply with a weight that is divided by its largest singular value, as power iteration knows it."""
    weight = layer.parametrizations.weight
    sigma = weight[0]._u @ weight.original @ weight[0]._v
    return (weight.original / sigma) @ x + layer.bias


def literal_gated(head, vectors):
    """Compute a gated layer by its formula, one vector after the other, without dropout."""
    settings, rows = head.settings, []
    for vector in vectors:
        active = vector.clamp_min(0)
        if settings.activation == "gelu":
            active = vector * 0.5 * (1 + torch.erf(vector / math.sqrt(2)))
        if settings.gates == "each":
            inner, outer = (1 / (1 + torch.exp(-gate)) for gate in (head.inner, head.outer))
        else:
            inner, outer = head.inner, 1.0
        out = inner * spectral(head.layer, active) + outer * vector
        rows.append(out.clamp_min(0) if settings.last else out)
    return torch.stack(rows)


def gated(**changes):
    """Build a gated layer in which nothing is as it started."""
    torch.manual_seed(0)
    head = Gated(**({"dropout": 0.0} | changes)).build(6, Toy()).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
    for _ in range(3):  # each pass is one step of the power iteration
        head(torch.randn(2, 6).double(), Toy().step())
    return head


settings_of_gated = pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "gelu"},
        {"gates": "one"},
        {"last": True},
        {"gates": "one", "activation": "gelu", "last": True},
    ],
    ids=str,
)


@settings_of_gated
def test_a_gated_layer_is_its_formula_in_values_and_gradients(changes):
    head = gated(**changes).eval()  # eval: the power iteration stands still
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).double()
    results = []
    for compute in (lambda start: head(start, Toy().step()), lambda start: literal_gated(head, start)):
        start = x.clone().requires_grad_()
        head.zero_grad()
        out = compute(start)
        (out * torch.arange(30.0).reshape(5, 6)).sum().backward()
        results.append([out.detach(), start.grad] + [parameter.grad.clone() for parameter in head.parameters()])
    assert len(results[0]) == 2 + (4 if changes.get("gates") != "one" else 3)
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
        assert expected.abs().sum() > 0


@settings_of_gated
def test_a_gated_layer_as_arrays_equals_the_module(changes):
    head = gated(**changes).float()
    frozen = head.freeze()
    assert head.training  # it goes on being trained as before
    x = torch.randn(7, 6)
    before = x.numpy().copy()
    expected = head.eval()(x, Toy().step()).detach().numpy()
    np.testing.assert_allclose(frozen(x.numpy()), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(frozen(x.numpy()[2]), expected[2], rtol=1e-4, atol=1e-5)  # one vector
    assert np.array_equal(x.numpy(), before)  # what is passed in stays as it is
    opened = head.settings.open(frozen.arrays("h"), "h", 6)
    assert np.array_equal(opened(x.numpy()), frozen(x.numpy()))
    for name in ("weight", "bias", "inner", "outer"):
        arrays = frozen.arrays("h")
        with pytest.raises(ModelError, match=r"array h\.\w+ is damaged"):
            head.settings.open(arrays | {f"h.{name}": arrays[f"h.{name}"][:5]}, "h", 6)


def test_a_gated_layer_starts_at_halves_or_as_a_residual():
    x = torch.randn(4, 5)
    each, one = (Gated(gates=gates, dropout=0.0).build(5, Toy())(x, Toy().step()) for gates in ("each", "one"))
    torch.testing.assert_close(each, 0.5 * x.clamp_min(0) + 0.5 * x)
    torch.testing.assert_close(one, x.clamp_min(0) + x)


def test_gates_drop_what_enters_the_layer_and_at_the_end_what_leaves_it():
    toy, x = Toy(), torch.rand(50, 200) + 0.5
    plain = Gated(gates="one", dropout=0.5).build(200, toy)(x, toy.step())
    assert set(((plain - x) / x).round().flatten().tolist()) == {0.0, 2.0}  # what passes the layer by is whole
    last = Gated(gates="one", dropout=0.5, last=True).build(200, toy)(x, toy.step()) / x
    assert set(last.round().flatten().tolist()) == {0.0, 2.0, 6.0}  # 2 (x + 0), 2 (x + 2 x), or nothing
    assert float((last == 0).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_a_radius_scales_the_layer_of_a_residual():
    head = residual(5, radius=True)
    x = torch.randn(4, 5)
    torch.testing.assert_close(head(x, Toy().step()), x.clamp_min(0) + x)  # it is 1 at the start
    with torch.no_grad():
        head.radius.fill_(-3.0)
        head.layer.bias.fill_(0.5)
    expected = (-3 * (x + 0.5)).clamp_min(0) + x
    torch.testing.assert_close(head(x, Toy().step()), expected)
    np.testing.assert_allclose(head.freeze()(x.numpy()), expected.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [4, 6, 9])
@pytest.mark.parametrize("tanh", [True, False])
def test_a_projection_as_arrays_equals_the_module(tanh, width):
    torch.manual_seed(0)
    settings = Project(dim=6, tanh=tanh, dropout=0.5)
    head = settings.build(width, Toy())
    with torch.no_grad():
        head.layer.bias.add_(torch.randn(6))
    x = torch.randn(7, width)
    before, weight, bias = x.numpy().copy(), *(part.detach().numpy() for part in (head.layer.weight, head.layer.bias))
    expected = np.stack([weight @ vector + bias for vector in before])
    expected = np.tanh(expected) if tanh else expected
    head.settings = replace(settings, dropout=0.0)
    np.testing.assert_allclose(head(x, Toy().step()).detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    frozen = head.freeze()
    assert head.training  # it goes on being trained as before
    np.testing.assert_allclose(frozen(x.numpy()), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(frozen(x.numpy()[2]), expected[2], rtol=1e-5, atol=1e-6)  # one vector
    assert np.array_equal(x.numpy(), before)  # what is passed in stays as it is
    assert settings.out_width(width) == 6 and frozen.operations() == 2 * 6 * width
    opened = settings.open(frozen.arrays("h"), "h", width)
    assert np.array_equal(opened(before), frozen(before))
    frozen.weight[:] = 7  # a copy
    assert not (head.layer.weight == 7).any()


def test_a_projection_of_another_shape_is_refused():
    settings = Project(dim=6)
    arrays = settings.build(4, Toy()).freeze().arrays("h")
    for name, wrong in (("weight", np.zeros((6, 5))), ("weight", np.zeros((4, 6))), ("bias", np.zeros(4))):
        with pytest.raises(ModelError, match=r"array h\.\w+ is damaged"):
            settings.open(arrays | {f"h.{name}": wrong}, "h", 4)
    for other, width in ((settings, 5), (Project(dim=5), 4)):
        with pytest.raises(ModelError, match=r"array h\.\w+ is damaged"):
            other.open(arrays, "h", width)
    with pytest.raises(ModelError, match=r"h\.weight is missing"):
        settings.open({}, "h", 4)


@pytest.mark.parametrize(("dim", "width"), [(4, 9), (9, 4), (5, 5)])
def test_a_projection_starts_orthogonal_and_drops_what_leaves_it(dim, width):
    toy, head = Toy(), Project(dim=dim, dropout=0.0).build(width, Toy())
    weight = head.layer.weight.detach()
    short = weight @ weight.T if dim <= width else weight.T @ weight
    torch.testing.assert_close(short, torch.eye(min(dim, width)), rtol=1e-5, atol=1e-5)
    assert not head.layer.bias.detach().any()
    x = torch.randn(200, width)
    whole, head.settings = head(x, toy.step()).detach(), Project(dim=dim, dropout=0.5)
    dropped = head(x, toy.step()).detach()
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    assert float(kept.float().mean()) == pytest.approx(0.5, abs=0.1)
    bounded = Project(dim=dim, tanh=True, dropout=0.5).build(width, toy)
    assert float(bounded(9 * x, toy.step()).detach().abs().max()) > 1.5  # 2 · tanh: dropout stands behind


def test_a_layer_multiplies_in_half_precision_only_while_it_is_trained():
    toy = Toy()
    vectors = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    whole = residual(8, toy=toy)
    toy.half = torch.bfloat16
    half = residual(8, toy=toy)
    half.load_state_dict(whole.state_dict())
    torch.testing.assert_close(half.eval()(vectors, toy.step()), whole.eval()(vectors, toy.step()))
    found, wanted = (layer.train()(vectors, toy.step()) for layer in (half, whole))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
    assert not torch.equal(found, wanted)
