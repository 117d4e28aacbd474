from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from longtail.machine import beside, cores, halved, in_threads, memory_usage, product, threads


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


def test_two_things_at_once_have_half_of_the_cores_each_and_the_second_has_all_once_it_is_alone(monkeypatch):
    monkeypatch.setattr("longtail.machine.cores", lambda: 4)
    there, ended = threading.Event(), threading.Event()

    def first():
        assert there.wait(10) and halved()
        return threads()

    def second():
        before = threads()
        there.set()
        assert ended.wait(10)
        return before, threads(), halved()

    def ending():
        try:
            return first()
        finally:
            threading.Timer(0.05, ended.set).start()

    assert beside(ending, second) == (2, (2, 4, False))
    assert not halved() and threads() == 4


def test_what_is_done_beside_ends_soon_after_a_failure(monkeypatch):
    monkeypatch.setattr("longtail.machine.cores", lambda: 2)
    began, failed, seen = threading.Event(), threading.Event(), []

    def step(number):
        began.set()
        assert failed.wait(10)
        return number

    def second():
        try:
            seen.extend(in_threads(step, range(1000)))
        except CancelledError:
            seen.append("cancelled")
            raise

    def first():
        assert began.wait(10)
        threading.Timer(0.05, failed.set).start()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        beside(first, second)
    assert seen == ["cancelled"]


def test_a_failure_of_the_second_reaches_the_caller(monkeypatch):
    monkeypatch.setattr("longtail.machine.cores", lambda: 2)
    with pytest.raises(ZeroDivisionError):
        beside(lambda: 1, lambda: 1 // 0)


def test_one_core_does_one_thing_after_the_other(monkeypatch):
    monkeypatch.setattr("longtail.machine.cores", lambda: 1)
    assert beside(threading.current_thread, threading.current_thread) == (threading.main_thread(),) * 2
