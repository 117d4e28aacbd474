from __future__ import annotations

import numpy as np
import pytest

from longtail.machine import cores, held, in_threads, product, threads


def test_what_is_made_comes_in_order_and_every_thread_works_alone():
    outer = threads()
    seen = list(in_threads(lambda item: (item, threads()), range(20)))
    assert seen == [(item, 1) for item in range(20)]
    assert threads() == outer == cores()


def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda item: 1 // item, [1, 0]))


@pytest.mark.parametrize("shape", [(0, 3, 4), (1, 3, 4), (37, 300, 300), (5, 2, 300_000)])
def test_products_are_the_same_in_threads(shape):
    rows, inner, columns = shape
    draw = np.random.default_rng(1)
    left = draw.normal(size=(rows, inner)).astype(np.float32)
    right = draw.normal(size=(columns, inner)).astype(np.float32).T
    for made in in_threads(lambda _: product(left, right), range(2)):
        np.testing.assert_allclose(made, left @ right, rtol=1e-4, atol=1e-4)
    assert product(left, right).shape == (rows, columns)


@pytest.mark.parametrize(("asked", "most"), [("1", 1), ("0", None), ("many", None), ("1000", None)])
def test_openmps_wish_is_heard(monkeypatch, asked, most):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    free = cores()
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert cores() == (most or free)


def test_memory_is_told():
    now, most = held() or (1, 1)
    assert 0 < now <= most
