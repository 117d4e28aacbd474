from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from longtail.machine import cores, held, in_threads, threads


def blas() -> set[int]:
    """Tell the threads of numpy's BLAS; other libraries may be loaded later than the first pool."""
    assert np.eye(2).trace() == 2
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return {library["num_threads"] for library in libraries if "numpy" in library["filepath"]}


def test_what_is_made_comes_in_order_and_every_thread_works_alone():
    before, outer = blas(), threads()
    seen = list(in_threads(lambda item: (item, threads(), blas()), range(20)))
    assert [item for item, _, _ in seen] == list(range(20))
    assert {alone for _, alone, _ in seen} == {1} and all(inside == {1} for _, _, inside in seen)
    assert threads() == outer == cores() and blas() == before


def test_blas_gets_its_threads_back_when_the_last_of_several_pools_is_done():
    before = blas()
    both = threading.Barrier(2, timeout=30)

    def pool(name: int) -> list[int]:
        def work(item: int) -> int:
            if item == 0:
                both.wait()  # both pools are at work
            return item + name

        return list(in_threads(work, range(1 + 500 * name)))

    with ThreadPoolExecutor(2) as outside:
        assert [len(made) for made in outside.map(pool, (0, 1))] == [1, 501]
    assert blas() == before


def test_an_error_reaches_the_caller_and_blas_is_free_again():
    before = blas()
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda item: 1 // item, [1, 0]))
    assert blas() == before


@pytest.mark.parametrize(("asked", "most"), [("1", 1), ("0", None), ("many", None), ("1000", None)])
def test_openmps_wish_is_heard(monkeypatch, asked, most):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    free = cores()
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert cores() == (most or free)


def test_memory_is_told():
    now, most = held() or (1, 1)
    assert 0 < now <= most
