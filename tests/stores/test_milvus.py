"""Milvus, embedded: the labels and scores of exact search, filters, half a collection, a server that is away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stores.handing import handed_over

from longtail.errors import DataError, ModelError, StoreDown
from longtail.stored import place_of
from longtail.stores.memory import MemoryStore
from longtail.stores.milvus import MilvusPlace, MilvusStore

pytestmark = pytest.mark.slow
pytest.importorskip("milvus_lite", reason="no Milvus; `make test-all` installs one")
draw = np.random.default_rng(0)
MODEL = MemoryStore.of(draw.normal(size=(500, 12)).astype(np.float32), draw.normal(size=500).astype(np.float32))
QUERIES = draw.normal(size=(20, 12)).astype(np.float32)


def test_searches_are_those_of_all_labels(tmp_path: Path) -> None:
    place = MilvusPlace(f"milvus://{tmp_path}/labels.db", "0" * 32)
    assert place.facts() is None
    place.client.create_collection(f"{place.collection}_0123abcd", dimension=4)  # what a killed command left
    place.build(MODEL)
    place.build(MODEL)
    assert place.client.list_collections() == [place.collection]
    place.keep({"recall": 1.0})
    assert place.facts() == {"recall": 1.0}
    store, (expected, values) = place.open(MODEL), MODEL.search(QUERIES, 7)
    for effort in (0, 400):  # all labels, and a graph that is followed far
        labels, scores = store.searching(effort).search(QUERIES, 7)
        np.testing.assert_array_equal(labels, expected)
        np.testing.assert_allclose(scores, values, rtol=1e-5)
        allowed = np.array([3, 12, 77, 400])
        found, _ = store.searching(effort).search_within(QUERIES[1], 3, allowed)
        assert found.tolist() == allowed[np.argsort(-MODEL.score(QUERIES[1], allowed))][:3].tolist()
    with pytest.raises(ModelError, match="holds 500 labels, the model 499"):
        place.open(MemoryStore.of(MODEL.take(slice(499))))
    store.close()


def test_a_model_is_handed_over_and_answers_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, _ = handed_over(tmp_path / "run", f"milvus://{tmp_path}/labels.db", monkeypatch)
    assert isinstance(index._vectors.store, MilvusStore) and index.describe()["index"]["search"] == "milvus"


def test_a_server_that_is_away_is_told() -> None:
    with pytest.raises(StoreDown, match="Milvus does not answer"):
        MilvusPlace("milvus://me:secret@127.0.0.1:9", "0" * 32).facts()
    with pytest.raises(DataError, match="is not a store"):
        place_of("milvus://", {"files": {}})
