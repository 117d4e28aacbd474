"""Compiled steps against what torch does in many passes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn import functional

from longtail import machine
from longtail.classifiers.normalised import normalised, normalised_sum
from longtail.encoders.inputs import Bags
from longtail.encoders.towers import words as towers
from longtail.training.noise import StoredNoise
from longtail.training.tables import LocalTable

pytest.importorskip("numba", reason="numba is not installed: pip install 'longtail[linear]'")


def without_compiler(monkeypatch):
    for module in ("training.tables", "training.noise", "encoders.towers.words", "classifiers.normalised"):
        monkeypatch.setattr(f"longtail.{module}.compiles", lambda: False)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
@pytest.mark.parametrize("shape", [(9, 5), (9,)])
def test_rows_change_as_in_torch(monkeypatch, optimizer, shape):
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=draw)
    steps = [
        (np.array(rows), torch.randn((len(rows), *shape[1:]), generator=draw)) for rows in ([1, 4, 8], [0, 4], [], [4])
    ]
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as context:
            if not compiled:
                without_compiler(context)
            table = LocalTable(start.clone(), optimizer)
            for number, (rows, gradient) in enumerate(steps, 1):
                leaf = table.gather(np.array(rows, np.int64))
                leaf.grad = gradient
                table.step(0.1, number)
            found.append([table.values, *table.state])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found[0][0], start)


@pytest.mark.parametrize("count", [7, 0])
def test_rows_and_texts_of_length_one_and_their_gradients_are_those_of_torch(monkeypatch, count):
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn((count, 5), generator=draw) for _ in range(3)]
    start[0][:1], start[1][:1] = 0, 0  # nothing has no direction
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as context:
            if not compiled:
                without_compiler(context)
            rows, texts = (part.clone().requires_grad_() for part in start[:2])
            out = normalised_sum(rows, texts, 2.0)
            out.backward(start[2])
            found.append([out.detach(), rows.grad[1:], texts.grad[1:]])
    torch.testing.assert_close(*found)


def test_sums_of_word_vectors_and_their_gradients_are_those_of_torch(monkeypatch):
    draw = np.random.default_rng(0)
    bags = Bags(sp.random_array((6, 10), density=0.3, format="csr", dtype=np.float32, random_state=draw))
    start, upstream = (draw.normal(size=(rows, 4)).astype(np.float32) for rows in (10, 6))
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as context:
            if not compiled:
                without_compiler(context)
            vectors = torch.from_numpy(start.copy()).requires_grad_()
            tower = towers.WordTower.__new__(towers.WordTower)
            tower.gather = lambda ids, vectors=vectors: (torch.from_numpy(ids.astype(np.int64)), vectors)
            out = tower.sums(bags)
            out.backward(torch.from_numpy(upstream))
            found.append([out.detach(), vectors.grad])
    torch.testing.assert_close(*found)
    np.testing.assert_allclose(found[0][0], bags.matrix @ start, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(50, 7), (3,), (0, 4)])
def test_dropout_is_that_of_torch_to_the_bit(monkeypatch, shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as context:
            if not compiled:
                without_compiler(context)
            leaf = values.clone().requires_grad_()
            out = StoredNoise(1).drop(leaf, 0.3, np.random.default_rng(2))
            (2 * out).sum().backward()
            found.append([out.detach(), leaf.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
        assert torch.equal(one == 0, other == 0)


def test_lengths_of_one_and_their_gradients_are_those_of_torch():
    vectors = torch.randn((5, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    vectors[2] = 0
    upstream = torch.randn((5, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for compute in (normalised, functional.normalize):
        leaf = vectors.clone().requires_grad_()
        out = compute(leaf)
        out.backward(upstream)
        found.append([out.detach(), leaf.grad])
    torch.testing.assert_close(*found)


def test_half_precision_is_left_to_torch():
    values = torch.ones(4, 3, dtype=torch.bfloat16, requires_grad=True)
    assert StoredNoise(1).drop(values, 0.5, np.random.default_rng(0)).dtype == torch.bfloat16


def test_there_is_a_compiler():
    assert machine.compiles()
