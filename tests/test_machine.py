from __future__ import annotations

import numpy as np
import pytest

from longtail.machine import cores, in_threads, memory_usage, product, threads


def test_results_come_in_order_and_every_thread_works_alone():
    outer = threads()
    results = list(in_threads(lambda item: (item, threads()), range(20)))
    assert results == [(item, 1) for item in range(20)]
    assert threads() == outer == cores()


def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda item: 1 // item, [1, 0]))


@pytest.mark.parametrize("shape", [(0, 3, 4), (1, 3, 4), (37, 300, 300), (5, 2, 300_000)])
def test_products_are_the_same_in_threads(shape):
    rows, inner, columns = shape
    rng = np.random.default_rng(1)
    left = rng.normal(size=(rows, inner)).astype(np.float32)
    right = rng.normal(size=(columns, inner)).astype(np.float32).T
    for result in in_threads(lambda _: product(left, right), range(2)):
        np.testing.assert_allclose(result, left @ right, rtol=1e-4, atol=1e-4)
    assert product(left, right).shape == (rows, columns)


@pytest.mark.parametrize(("limit", "most"), [("1", 1), ("0", None), ("many", None), ("1000", None)])
def test_omp_num_threads_limits_the_cores(monkeypatch, limit, most):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    free = cores()
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert cores() == (most or free)


def test_memory_usage_is_reported():
    now, most = memory_usage() or (1, 1)
    assert 0 < now <= most
