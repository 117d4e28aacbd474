"""The compiled search of HNSW against faiss, and its products against numpy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest

from longtail.search import hnsw, quantised
from longtail.search.graph import OLDEST
from longtail.search.hnsw import HNSW
from longtail.search.quantised import Quantised

pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(3000, 24)).astype(np.float32)


@pytest.fixture(scope="module")
def graph(rows):
    return HNSW.build(rows, np.random.default_rng(1).normal(size=3000).astype(np.float32))


@pytest.mark.parametrize(("n", "ef"), [(1, 1), (5, 8), (5, 64), (100, 200)])
def test_it_finds_what_faiss_finds(graph, rows, n, ef):
    queries = rows[:300] + 0.1
    found, scores = graph.nearest(queries, n, ef=ef)
    with patch.object(hnsw, "compiles", lambda: False):
        expected, products = graph.nearest(queries, n, ef=ef)
    assert (found == expected).mean() > 0.999  # near-ties are rounded otherwise
    np.testing.assert_allclose(scores, products, rtol=1e-4, atol=1e-4)


def test_what_was_seen_is_forgotten_after_each_query(graph, rows):
    first = graph.nearest(rows[:1], 5)[0]
    for _ in range(2 * OLDEST):
        assert graph.nearest(rows[:1], 5)[0].tolist() == first.tolist()


def test_threads_do_not_disturb_each_other(graph, rows):
    alone = [graph.nearest(rows[row : row + 1], 5)[0].tolist() for row in range(200)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda row: graph.nearest(rows[row : row + 1], 5)[0].tolist(), range(200))) == alone
    assert graph.nearest(rows[:200], 5)[0].tolist() == [own[0] for own in alone]


def test_a_graph_of_one_row_finds_it():
    graph = HNSW.build(np.ones((1, 3), np.float32), np.zeros(1, np.float32))
    found, scores = graph.nearest(np.full((1, 3), 2, np.float32), 4)
    assert found.tolist() == [[0]]
    np.testing.assert_allclose(scores, [[6]], rtol=1e-2)


def test_products_are_those_of_the_rows_as_numbers(rows):
    stored, draw = Quantised.of(rows, "int8"), np.random.default_rng(2)
    owners, places = np.sort(draw.integers(0, 9, 200)), draw.integers(0, len(rows), 200)
    expected = np.einsum("pd,pd->p", rows[owners], stored.take(places))
    np.testing.assert_allclose(stored.pairs(rows[:9], owners, places), expected, rtol=1e-4, atol=1e-4)
    own = owners == 3
    np.testing.assert_allclose(stored.scores(rows[3], places[own]), expected[own], rtol=1e-4, atol=1e-4)
    with patch.object(quantised, "compiles", lambda: False):
        np.testing.assert_allclose(stored.pairs(rows[:9], owners, places), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(stored.scores(rows[3], places[own]), expected[own], rtol=1e-4, atol=1e-4)
