"""SEED → DAMAGED FILES: models, data sets, and what every other reader reads; each is refused in one line, or used."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pc
import pyarrow.parquet as pq
import scipy.sparse as sp
from data.test_fuzz import canonical, damage, damaged, seeds, sound
from hostile.kinds import QUERIES, VALUES

import longtail as lt
from longtail.artefact import build_artefact
from longtail.bench.lines import read_lines
from longtail.bench.suite import read_suite
from longtail.data.check import check
from longtail.data.formats import load
from longtail.data.formats.columns import Reading
from longtail.data.formats.skos import read_skos
from longtail.data.problems import Problems
from longtail.data.queries import open_feed
from longtail.data.vectors import word_vectors
from longtail.errors import DataError, LongtailError
from longtail.folder import _seal, checksum, read_config
from longtail.index import Index
from longtail.signatures import make_key, sign, trusted_keys
from longtail.types import Texts

Case = Callable[[random.Random], str]  # tries one input and says how it ended; anything wrong is an exception
RECIPES = ("knn", "frugal", "linear", "astec", "lightxml")  # whose folders are damaged: quick to open, without torch
ODD = [*VALUES.values(), -0.0, 2**31, 2**63, 1e308, "", "\u2028", "x" * 3000, [], {}, [[]], False, "bins:2"]
VOCABULARY = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix : <http://example.org/> .
:a a skos:Concept ; skos:prefLabel "red"@en, "rot"@de ; skos:altLabel "scarlet"@en ; skos:notation "7" .
:b a skos:Concept ; skos:prefLabel "green leaf"@en ; skos:broader :a .
"""
SUITE = """title = "two"
data = ["data", "other"]
seeds = [0, 1]
also = ["mistyped"]
[[run]]
name = "knn"
recipe = "knn"
[run.settings]
"lexical.neighbours" = 5
[[run]]
name = "quick"
recipe = "auto"
budget = 60
"""
LINES = [{"suite": "s", "run": "knn", "data": "d", "seed": 0, "key": "k", "P@1": 0.5}, {"key": "l", "error": "none"}]


@contextmanager
def models(place: Path) -> Iterator[Case]:
    """Damage a file of a model folder; most of the time its checksum fits."""
    from small import board, short  # torch, which other kinds do without

    key = make_key(place / "key")
    for name in RECIPES:
        lt.fit(short(name), board(60)).save(place / name)
        with suppress(LongtailError):  # not every model has vectors to search
            build_artefact(place / name, search="ivf", recall=0.5)
        Index.load(place / name).add(["blue parrot"])
        sign(place / name, place / "key")
    folders = {name: shutil.copytree(place / name, place / f"{name}-tried") for name in RECIPES}

    def case(chance: random.Random) -> str:
        name = chance.choice(sorted(folders))
        folder, good = folders[name], place / name
        file = chance.choice(sorted(path.name for path in good.iterdir()))
        try:
            if file == "config.json" and chance.random() < 0.8:
                seal(folder, odd(read_config(good), chance))
            else:
                (folder / file).write_bytes(damaged((good / file).read_bytes(), chance))
                config = read_config(good)
                if file in config["files"] and chance.random() < 0.9:
                    config["files"][file] = checksum(folder / file)
                    seal(folder, config)
            index = Index.load(folder, trusted=[key] if chance.random() < 0.1 else None)
            top = index.predict(QUERIES, k=3)
            scores = top.scores[top.labels >= 0]
            assert (scores == scores).all() and (abs(scores) < float("inf")).all(), "not finite"
            assert ((top.labels >= -1) & (top.labels < len(index.labels))).all(), "labels that do not exist"
            return "used"
        except LongtailError as reason:
            return one_line(reason)
        finally:
            for changed in {file, "config.json"}:
                shutil.copyfile(good / changed, folder / changed)

    yield case


def seal(folder: Path, config: Any) -> None:
    """Write config.json with a seal that fits, whatever it holds."""
    if isinstance(config, dict):
        config = {name: value for name, value in config.items() if name != "checksum"}
        config["checksum"] = _seal(config)
    (folder / "config.json").write_text(json.dumps(config))


def one_line(reason: LongtailError) -> str:
    """Refusals are one line."""
    assert "\n" not in str(reason), f"several lines: {reason}"
    return "refused"


@contextmanager
def readers(place: Path) -> Iterator[Case]:
    """Damage a file of a data set, in every format."""
    cases = seeds(place / "seeds")
    everything = [path for paths in cases.values() for path in paths]
    shutil.copytree(place / "seeds", place / "copies")

    def case(chance: random.Random) -> str:
        name = chance.choice(sorted(cases))
        original = chance.choice(cases[name])
        victim = place / "copies" / name / original.name
        damage(victim, chance, everything)
        try:
            if chance.random() < 0.1:
                check(victim.parent)
            data = load(victim.parent)
            sound(data)
            if not name.startswith("arrow"):
                canonical(data)
            return "used"
        except DataError as reason:
            return one_line(reason)
        finally:
            if victim.is_dir():
                victim.rmdir()
            shutil.copyfile(original, victim)

    yield case


@contextmanager
def files(place: Path) -> Iterator[Case]:
    """Damage a file of texts to predict for, a vocabulary, word vectors, a suite, lines of results, or keys."""
    place.mkdir(exist_ok=True)
    words, bags = Texts(["red", "cat", "12"]), sp.csr_array(np.ones((2, 3), np.float32))
    table = 'id,text,own\n1,a red cat,0\nb,"the green, leaf",\n'
    (place / "texts.txt").write_text('a red cat\n\n{"id": 7, "text": "old dog", "own": 0}\n')
    (place / "texts.jsonl").write_text('{"title": "a red cat", "uid": "x", "n": [1]}\n{"title": "", "n": null}\n')
    (place / "texts.csv").write_text(table)
    (place / "texts.tsv").write_text(table.replace(",", "\t"))
    pq.write_table(pc.read_csv(place / "texts.csv"), place / "texts.parquet")
    (place / "words.txt").write_text("red 0.5 -1\ncat 1e-3 2\nthe 0 0\n")
    (place / "words.vec").write_text("2 2\nred 0.5 -1\ncat 1 2\n")
    (place / "table.txt").write_text("red\ncat\n")
    np.save(place / "table.npy", np.ones((2, 2), np.float32))
    (place / "skos.ttl").write_text(VOCABULARY)
    read_skos(place / "skos.ttl", None, Problems())
    _graph(place / "skos.ttl").serialize(place / "skos.rdf", "xml")
    _graph(place / "skos.ttl").serialize(place / "skos.nt", "nt", encoding="utf-8")
    (place / "suite.toml").write_text(SUITE)
    (place / "suite.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    make_key(place / "key")
    names = sorted(path.name for path in place.iterdir())
    good = {name: (place / name).read_bytes() for name in names}

    def use(path: Path, chance: random.Random) -> None:
        if path.stem == "texts":
            with open_feed(path, Reading(), find=chance.choice([None, lambda _label: 0])) as feed:
                for block in feed.blocks:
                    assert len(block.ids) == len(block.texts) == len(block.own)
        elif path.stem in ("words", "table"):
            vectors = word_vectors(words, 3, str(path.with_suffix(".npy") if path.stem == "table" else path), bags,
                                   seed=0)  # fmt: skip
            assert np.isfinite(vectors).all(), "not finite"
        elif path.stem == "skos":
            read_skos(path, chance.choice([None, "en", "xx"]), Problems())
        elif path.suffix == ".toml":
            read_suite(path).jobs()
        elif path.suffix == ".jsonl":
            read_lines(path, repair=chance.random() < 0.5)
        elif path.suffix == ".pub":
            trusted_keys([path])
        else:
            sign(place / "run", path)

    def case(chance: random.Random) -> str:
        path = place / chance.choice(names)
        path.write_bytes(damaged(good[path.name], chance))
        try:
            use(path, chance)
            return "used"
        except LongtailError as reason:
            return one_line(reason)
        finally:
            path.write_bytes(good[path.name])

    yield case


def _graph(path: Path) -> Any:
    """Parse a vocabulary."""
    from rdflib import Graph

    return Graph().parse(path)


def odd(value: Any, chance: random.Random) -> Any:
    """Put something odd somewhere into a JSON value."""
    root: dict[str, Any] = {"": copy.deepcopy(value)}
    holder, place = root, ""
    while isinstance(holder[place], dict | list) and holder[place] and chance.random() < 0.8:
        holder = holder[place]
        place = chance.choice(sorted(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
    way = chance.random()
    if way < 0.1 and holder is not root:
        del holder[place]
    elif way < 0.2 and isinstance(holder, dict) and holder is not root:
        holder[chance.choice(["k", "texts", "\ud800", "", "x" * 200, "id"])] = chance.choice(ODD)
    elif way < 0.3:
        many = [2, 3] if isinstance(holder[place], dict | list) else [2, 3, 1001]  # never many of many
        holder[place] = [holder[place]] * chance.choice(many)
    else:
        holder[place] = chance.choice(ODD)
    return root[""]
