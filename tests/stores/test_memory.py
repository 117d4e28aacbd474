"""Label vectors in memory, of every precision, and the graph over them."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from longtail.errors import ModelError
from longtail.search import ivf as ivf_module
from longtail.search.exact import top_products, unit
from longtail.search.hnsw import HNSW
from longtail.search.ivf import IVF
from longtail.search.quantised import Quantised
from longtail.stores import memory
from longtail.stores.memory import MemoryStore


@pytest.fixture(scope="module")
def case():
    random = np.random.default_rng(0)
    centres = random.normal(size=(30, 24))
    rows = (centres[random.integers(30, size=3000)] + 0.5 * random.normal(size=(3000, 24))).astype(np.float32)
    queries = (centres[random.integers(30, size=200)] + 0.5 * random.normal(size=(200, 24))).astype(np.float32)
    return rows, queries, random.normal(size=3000).astype(np.float32)


def recall(labels, exact):
    pairs = zip(labels.tolist(), exact.tolist(), strict=True)
    return np.mean([len(set(a) & set(b)) / exact.shape[1] for a, b in pairs])


@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("fp16", 0.05), ("int8", 0.5)])
def test_products_of_stored_rows(case, precision, error):
    rows, queries, bias = case
    stored = Quantised.of(rows, precision)
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
    opened = Quantised.of_arrays(stored.arrays(), *rows.shape)
    np.testing.assert_array_equal(opened.top(queries[0], 3, bias)[0], labels)


def test_damaged_rows_are_refused(case):
    arrays = Quantised.of(case[0], "int8").arrays()
    for wrong in ({"low": arrays["low"][1:]}, {"step": arrays["step"] * np.nan}, {"rows": arrays["rows"][0]}):
        with pytest.raises(ModelError, match="make the index again"):
            Quantised.of_arrays(arrays | wrong, *case[0].shape)
    with pytest.raises(ModelError, match="make the index again"):
        Quantised.of_arrays({"rows": arrays["rows"]}, *case[0].shape)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_store_looks_at_all_labels(case, precision):
    rows, queries, bias = case
    store = MemoryStore(Quantised.of(rows, precision), bias)
    assert len(store) == 3000 and store.dim == 24 and not store.shares_threads
    full = queries @ store.take(slice(None)).T + bias
    with patch.object(memory, "BLOCK", 700):  # rows that are not floats go block by block
        labels, scores = store.search(queries, 7)
    order = np.argsort(-full, axis=1, kind="stable")[:, :7]
    assert recall(labels, order) > 0.99
    np.testing.assert_allclose(scores, np.take_along_axis(full, order, 1), atol=1e-3)
    for row in (0, 17):
        own, best = store.search_one(queries[row], 7)
        np.testing.assert_allclose(best, scores[row], atol=1e-3)
        np.testing.assert_allclose(full[row, own], scores[row], atol=1e-3)
    some = np.array([2999, 5, 5])
    np.testing.assert_allclose(store.score(queries[3], some), full[3, some], atol=1e-3)
    of_query = np.array([0, 3, 199])
    np.testing.assert_allclose(store.pairs(queries, of_query, some), full[of_query, some], atol=1e-3)
    assert store.search(queries[:2], 4000)[0].shape == (2, 3000)


def test_a_store_without_bias(case):
    rows, queries, _ = case
    store = MemoryStore.of(rows)
    assert not store.bias.any() and store.take(np.array([4])).tolist() == rows[[4]].tolist()
    np.testing.assert_array_equal(store.search(queries, 3)[0], top_products(queries, rows, 3)[0])


@pytest.mark.parametrize("kind", ["unit", "lengths", "bias"])
def test_a_graph_finds_most_and_comes_back_from_its_arrays(case, kind):
    pytest.importorskip("faiss")
    rows, queries, bias = case
    rows = unit(rows) if kind == "unit" else rows
    bias = bias if kind == "bias" else np.zeros_like(bias)
    graph = HNSW.build(rows, bias).searching(128)
    assert graph.plain(24) == (kind == "unit")
    exact, _ = top_products(queries, rows, 10, bias=bias)
    labels, scores = graph.nearest(queries, 10)
    assert recall(labels, exact) > 0.9
    opened = HNSW.of_arrays({name: array.copy() for name, array in graph.arrays().items()}, *rows.shape)
    assert opened.ef_search == 128
    others, values = opened.nearest(queries, 10)
    np.testing.assert_array_equal(others, labels)
    np.testing.assert_array_equal(values, scores)
    assert HNSW.of_arrays({}, *rows.shape) is None


@pytest.mark.parametrize("leader", ["hnsw", "hnsw of the same rows", "ivf"])
def test_a_store_goes_where_it_is_led(case, leader):
    rows, queries, bias = case
    bias = bias if leader == "hnsw" else np.zeros_like(bias)
    rows = unit(rows) if leader == "hnsw of the same rows" else rows
    stored = Quantised(rows)
    if leader == "ivf":
        way = IVF.build(rows).searching(40)
    else:
        pytest.importorskip("faiss")
        way = HNSW.build(rows, bias).searching(128)
        stored = way.stored if leader == "hnsw of the same rows" else stored
    store = MemoryStore(stored, bias, way)
    assert store.shares_threads
    labels, scores = store.search(queries, 10)
    assert labels.dtype == np.int32 and scores.dtype == np.float32
    assert recall(labels, top_products(queries, rows, 10, bias=bias)[0]) > 0.9
    full = queries @ store.take(slice(None)).T + bias
    np.testing.assert_allclose(scores, np.take_along_axis(full, labels.astype(np.int64), 1), rtol=1e-3, atol=1e-3)
    for row in range(5):
        own, best = store.search_one(queries[row], 10)
        np.testing.assert_array_equal(own, labels[row])
        np.testing.assert_allclose(best, scores[row], rtol=1e-5)
    with patch.object(memory, "DEEP", 5):  # so many are wanted that all are looked at
        np.testing.assert_array_equal(store.search(queries, 10)[0], store.exact(queries, 10)[0])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_many_queries_find_in_clusters_what_each_finds_alone(case, precision, monkeypatch):
    rows, queries, bias = case
    stored = Quantised.of(rows, precision)
    monkeypatch.setattr(ivf_module, "CELLS", 5000)  # a few queries at once
    for ivf, k in ((IVF.build(rows).searching(2), 5), (IVF.balanced(rows).searching(1), 10), (IVF.build(rows), 60)):
        store = MemoryStore(stored, bias, ivf)
        labels, scores = store.search(queries, k)
        for row, query in enumerate(queries):
            own, best = store.search_one(query, k)
            np.testing.assert_allclose(scores[row], best, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(store.score(query, labels[row]), best, rtol=1e-4, atol=1e-4)
            assert len(set(labels[row].tolist()) - set(own.tolist())) <= 1  # the last may be as good as another


def test_one_label(case):
    pytest.importorskip("faiss")
    graph = HNSW.build(case[0][:1], np.zeros(1, np.float32))
    assert HNSW.of_arrays(graph.arrays(), 1, 24).nearest(case[1][:2], 5)[0].tolist() == [[0], [0]]
    store = MemoryStore(Quantised(case[0][:1]), np.zeros(1, np.float32), graph)
    assert store.search(case[1][:2], 5)[0].tolist() == [[0], [0]]
