from __future__ import annotations

import numpy as np
import pytest
import torch

from longtail.training.tables import Adam, Table


def test_adam_equals_torch_when_every_row_is_used():
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    table, reference = Table(start.clone()), start.clone().requires_grad_()
    adam = torch.optim.Adam([reference], lr=0.1)
    for step in range(1, 8):
        weights = torch.arange(12.0).reshape(4, 3) - step
        (table.gather(np.arange(4)) ** 2 * weights).sum().backward()
        table.step(0.1, step)
        adam.zero_grad()
        (reference**2 * weights).sum().backward()
        adam.step()
    torch.testing.assert_close(table.values, reference.detach())


@pytest.mark.parametrize("optimiser", ["adam", "adagrad"])
@pytest.mark.parametrize("shape", [(6, 2), (6,)])
def test_only_the_gathered_rows_change(optimiser, shape):
    table = Table(torch.ones(shape), optimiser)
    (table.gather(np.array([1, 4])) * 3).sum().backward()
    table.step(0.5, 1)
    changed = (table.values != 1).reshape(6, -1).any(dim=1)
    assert changed.tolist() == [False, True, False, False, True, False]
    again = Table(torch.zeros(shape), optimiser)
    again.restore(table.arrays("t"), "t")
    assert torch.equal(again.values, table.values)
    assert all(torch.equal(a, b) for a, b in zip(again.state, table.state, strict=True))


def test_row_wise_adagrad_by_hand():
    table = Table(torch.zeros(1, 2), "adagrad")
    (table.gather(np.array([0])) * torch.tensor([3.0, 4.0])).sum().backward()
    table.step(1.0, 1)
    torch.testing.assert_close(table.values, -torch.tensor([[3.0, 4.0]]) / 12.5**0.5)


def test_dense_adam_is_torchs_and_continues_from_its_arrays():
    layers = [torch.nn.Linear(5, 3) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    theirs, ours = torch.optim.Adam(layers[0].parameters(), lr=0.01), Adam(layers[1].parameters())
    for step in range(20):
        points = torch.from_numpy(np.random.default_rng(step).normal(size=(7, 5)).astype(np.float32))
        theirs.zero_grad()
        ours.clear()
        for layer in layers:
            layer(points).square().sum().backward()
        theirs.step()
        if step == 10:
            held = {name: np.array(array) for name, array in ours.arrays("adam").items()}
            ours = Adam(layers[1].parameters())
            ours.restore(held, "adam")
        ours.step(0.01)
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(layers[0].bias, layers[1].bias)
