"""Stored vectors and the graph over them."""

from __future__ import annotations

import numpy as np
import pytest

from longtail.shortlists.exact import top_products, unit
from longtail.shortlists.hnsw import Graph
from longtail.shortlists.stored import Stored


@pytest.fixture(scope="module")
def case():
    random = np.random.default_rng(0)
    centres = random.normal(size=(30, 24))
    rows = (centres[random.integers(30, size=3000)] + 0.5 * random.normal(size=(3000, 24))).astype(np.float32)
    queries = (centres[random.integers(30, size=200)] + 0.5 * random.normal(size=(200, 24))).astype(np.float32)
    return rows, queries, random.normal(size=3000).astype(np.float32)


@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("fp16", 0.05), ("int8", 0.5)])
def test_products_of_stored_rows(case, precision, error):
    rows, queries, bias = case
    stored = Stored.of(rows, precision)
    assert stored.precision == precision and stored.rows.itemsize == {"fp32": 4, "fp16": 2, "int8": 1}[precision]
    exact = rows @ queries[0]
    np.testing.assert_allclose(stored.all(queries[0]), exact, atol=error)
    some = np.array([5, 2999, 0])
    np.testing.assert_allclose(stored.scores(queries[0], some), stored.all(queries[0])[some], atol=1e-4)
    np.testing.assert_allclose(
        stored.pairs(queries, np.array([0, 0, 0]), some), stored.all(queries[0])[some], atol=1e-4
    )
    labels, scores = stored.top(queries[0], 3, bias)
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)
    again = Stored.of_arrays(stored.arrays())
    np.testing.assert_array_equal(again.top(queries[0], 3, bias)[0], labels)


@pytest.mark.parametrize("kind", ["unit", "lengths", "bias"])
def test_a_graph_finds_most_and_comes_back_from_its_arrays(case, kind):
    rows, queries, bias = case
    rows = unit(rows) if kind == "unit" else rows
    bias = bias if kind == "bias" else np.zeros_like(bias)
    graph = Graph.build(rows, bias).reaching(128)
    assert graph.plain(24) == (kind == "unit")
    exact, _ = top_products(queries, rows, 10, bias=bias)
    found, scores = graph.nearest(queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), exact.tolist(), strict=True)])
    assert recall > 0.9
    again = Graph.of_arrays({name: array.copy() for name, array in graph.arrays().items()})
    others, values = again.nearest(queries, 10)
    np.testing.assert_array_equal(others, found)
    np.testing.assert_array_equal(values, scores)


def test_one_label(case):
    graph = Graph.build(case[0][:1], np.zeros(1, np.float32))
    assert Graph.of_arrays(graph.arrays()).nearest(case[1][:2], 5)[0].tolist() == [[0], [0]]
