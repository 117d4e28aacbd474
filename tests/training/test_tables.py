from __future__ import annotations

import numpy as np
import pytest
import torch

from longtail.training.tables import Adam, LocalTable


def test_adam_equals_torch_when_every_row_is_used():
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    table, reference = LocalTable(start.clone()), start.clone().requires_grad_()
    adam = torch.optim.Adam([reference], lr=0.1)
    for step in range(1, 8):
        weights = torch.arange(12.0).reshape(4, 3) - step
        (table.gather(np.arange(4)) ** 2 * weights).sum().backward()
        table.step(0.1, step)
        adam.zero_grad()
        (reference**2 * weights).sum().backward()
        adam.step()
    torch.testing.assert_close(table.values, reference.detach())


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
@pytest.mark.parametrize("shape", [(6, 2), (6,)])
def test_only_the_gathered_rows_change(optimizer, shape):
    table = LocalTable(torch.ones(shape), optimizer)
    (table.gather(np.array([1, 4])) * 3).sum().backward()
    table.step(0.5, 1)
    changed = (table.values != 1).reshape(6, -1).any(dim=1)
    assert changed.tolist() == [False, True, False, False, True, False]
    restored = LocalTable(torch.zeros(shape), optimizer)
    restored.restore(table.arrays("t"), "t")
    assert torch.equal(restored.values, table.values)
    assert all(torch.equal(a, b) for a, b in zip(restored.state, table.state, strict=True))


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
@pytest.mark.parametrize("shape", [(6, 2), (6,)])
def test_two_gathers_of_a_step_change_rows_as_one_gather_of_the_union_does(optimizer, shape):
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    pull = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    twice, once = LocalTable(start.clone(), optimizer), LocalTable(start.clone(), optimizer)
    one, two, union = np.array([0, 1, 4]), np.array([4, 2, 1]), np.array([0, 1, 2, 4])
    for step in range(1, 4):
        (twice.gather(one) ** 2 * pull[one]).sum().add((twice.gather(two) * pull[two]).sum()).backward()
        rows, gradient = twice.gradient()
        assert rows.tolist() == union.tolist()  # each once
        values = once.gather(union)
        expected = (values[[0, 1, 3]] ** 2 * pull[one]).sum() + (values[[3, 2, 1]] * pull[two]).sum()
        expected.backward()
        torch.testing.assert_close(gradient, once.gradient()[1])
        for table in (twice, once):
            table.step(0.1, step)
            assert table.gradient() == (None, None)  # the next step begins with none
    torch.testing.assert_close(twice.values, once.values)
    for state, expected_state in zip(twice.state, once.state, strict=True):
        torch.testing.assert_close(state, expected_state)
    assert (twice.values != start).reshape(6, -1).any(dim=1).tolist() == [True, True, True, False, True, False]


def test_a_gather_that_the_loss_does_not_use_changes_nothing():
    table = LocalTable(torch.ones(4, 2))
    table.gather(np.array([0, 1]))
    (table.gather(np.array([1, 2])) * 3).sum().backward()
    with torch.no_grad():
        table.gather(np.array([3]))
    table.step(0.5, 1)
    assert (table.values != 1).any(dim=1).tolist() == [False, True, True, False]


def test_a_frozen_table_asks_for_no_gradient():
    table = LocalTable(torch.ones(4, 2), frozen=True)
    assert not table.gather(np.array([0, 1])).requires_grad
    table.step(0.5, 1)
    assert torch.equal(table.values, torch.ones(4, 2))
    assert table.state == []


def test_row_wise_adagrad_by_hand():
    table = LocalTable(torch.zeros(1, 2), "adagrad")
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
            arrays = {name: np.array(array) for name, array in ours.arrays("adam").items()}
            ours = Adam(layers[1].parameters())
            ours.restore(arrays, "adam")
        ours.step(0.01)
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(layers[0].bias, layers[1].bias)
