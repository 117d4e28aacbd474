"""Labels with ids of their own, changed by several at once."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from longtail import artefact
from longtail.artefact import build_artefact
from longtail.errors import DataError, ModelError
from longtail.index import Index
from longtail.pipeline import fit
from longtail.types import Texts


@pytest.fixture
def named(data, tmp_path):
    """A model whose labels have raw ids, one of which looks like the number of a new label."""
    ids = Texts([f"id{place}" for place in range(47)] + ["50"])
    fit("knn", replace(data.train, labels=replace(data.train.labels, ids=ids))).save(tmp_path / "named")
    return tmp_path / "named"


def test_raw_ids_never_collide(named):
    one, two = Index.load(named), Index.load(named)
    one.add(["blue parrot"], ["49"])
    with pytest.raises(DataError, match="'49' is there already"):
        two.add(["green parrot"], ["49"])  # it has not yet seen what the other added
    assert two.add(["grey parrot", "black parrot"]) == [49, 50]
    assert two.labels.ids[48:].tolist() == ["49", "51", "52"]  # 49 was given, a trained label has 50
    with pytest.raises(DataError, match="'51' is there already"):
        one.add(["white parrot"], ["51"])
    one.refresh()
    assert Index.load(named).labels.ids == one.labels.ids == two.labels.ids


@pytest.mark.parametrize("rounds", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_raw_ids_of_several_at_once_never_collide(named, rounds):
    indexes = [Index.load(named) for _ in range(3)]

    def work(index, place):
        for number in range(rounds):
            with suppress(DataError):  # another was first
                index.add([f"parrot {place}"], None if number % 2 else [str(48 + number + place)])

    threads = [threading.Thread(target=work, args=(index, place)) for place, index in enumerate(indexes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = Index.load(named).labels.ids.tolist()
    assert len(ids) > 48 + rounds and len(set(ids)) == len(ids)


def test_labels_added_while_a_model_is_replaced_are_kept(data, named):
    index, done = Index.load(named), threading.Event()
    added = []

    def work():
        while not done.is_set():
            added.extend(index.add([f"parrot {len(added)}"]))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        index.model.save(named, force=True)
    done.set()
    thread.join()
    assert added and len(Index.load(named).labels) == 48 + len(added)


def test_an_index_that_was_replaced_meanwhile_is_refused(run, monkeypatch):
    real = artefact._choose

    def slow(*values, **named):
        monkeypatch.setattr(artefact, "_choose", real)
        build_artefact(run, search="exact")
        return real(*values, **named)

    monkeypatch.setattr(artefact, "_choose", slow)
    with pytest.raises(ModelError, match="replaced meanwhile"):
        build_artefact(run, search="exact", precision="fp16")
    assert Index.load(run, verify=True).served.precision == "int8"
    assert len(list(run.glob("index_*"))) == 1
