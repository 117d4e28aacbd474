"""Small models of every kind that is served, fitted once."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from longtail.artefact import build_artefact
from longtail.data.dataset import from_rows
from longtail.pipeline import fit
from longtail.recipe import find_recipe

ANIMALS = ("cat", "dog", "fox", "owl", "bee", "ant", "cow", "hen")
COLOURS = ("red", "old", "wild", "small", "grey", "quick")
NAMES = [f"{colour} {animal}" for animal in ANIMALS for colour in COLOURS]


def rows():
    random = np.random.default_rng(0)
    texts, labels = [], []
    for place, name in enumerate(NAMES):
        for extra in ("in the garden", "of the neighbour", "by night"):
            texts.append(f"{name} {extra}")
            labels.append([place, int(random.integers(len(NAMES)))])
    return texts, labels


@pytest.fixture(scope="session")
def data():
    texts, labels = rows()
    return from_rows({"train": (texts, labels)}, label_texts=NAMES)


@pytest.fixture(scope="session")
def folders(data, tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    frugal = find_recipe("frugal")
    for path, value in {
        "encoder.dim": 16, "training.epochs": 2, "training.batch_size": 32, "sampler.random": 20,
    }.items():  # fmt: skip
        frugal = frugal.override(path, value)
    fit(frugal, data.train).save(place / "frugal")
    fit("knn", data.train).save(place / "knn")
    fit(find_recipe("knn").override("lexical.pairs", True), data.train).save(place / "pairs")
    fit(frugal.override("lexical.pairs", True).override("blend", 0.5), data.train).save(place / "mixed")
    shutil.copytree(place / "frugal", place / "indexed")
    info = build_artefact(place / "indexed", search="hnsw", recall=0.9)
    assert info.recall >= 0.9
    return place


@pytest.fixture
def run(folders, tmp_path, request):
    name = getattr(request, "param", "frugal")
    return shutil.copytree(folders / name, tmp_path / name)


every = pytest.mark.parametrize("run", ["knn", "frugal", "indexed", "mixed"], indirect=True)
QUERIES = ["a red cat", "the neighbour's old dog", "", "xyzzy", "night night bee", "Wild FOX, small hen?"]
