"""Folders of strangers: each is refused in one line or answers in finite numbers; none crashes, hangs or swells."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hostile.kinds import Attack, attacks
from small import SMALL, board, short

import longtail as lt
from longtail.artefact import build_artefact
from longtail.data.dataset import Split
from longtail.types import Texts

PATIENCE = 180  # seconds that one attempt, or the start, may take on a machine that has much else to do
QUICK = ("knn", "hnsw", "ivf", "astec", "kept")
SHARE = 37  # one attack of so many is tried by `make test`
BASE = {"hnsw": "frugal", "ivf": "frugal", "words": "frugal", "kept": "frugal"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Fit a small model of a recipe, or with an index."""

    def made(name: str) -> Path:
        path = tmp_path_factory.mktemp("hostile") / name
        recipe = short(BASE.get(name, name))
        if name == "words":
            recipe = recipe.override("lexical", "lexical").override("linear", "linear").override("lexical.pairs", True)
        if name == "kept":  # held-out points, other texts of labels, broader labels
            recipe = recipe.override("lexical", "lexical")
        lt.fit(recipe, told(board(300)) if name == "kept" else board(80)).save(path)
        if name in ("hnsw", "ivf"):
            build_artefact(path, search=name, recall=0.5)
        return path

    return made


def told(train: Split) -> Split:
    """Say more of the labels: other texts, and broader labels."""
    count, ones = len(train.labels), np.ones(2, np.float32)
    others = sp.csr_array((ones, ([0, 1], [2, 3])), shape=(2, count))
    broader = sp.csr_array((ones, ([0, 1], [20, 21])), shape=(count, count))
    texts = Texts(["kitty", "puppy"])
    return replace(train, labels=replace(train.labels, alternatives=texts, alternatives_of=others, broader=broader))


def ends(folder: Path, places: list[int]) -> dict[int, str]:
    """Try attacks in a process of their own, and in another one behind each that killed it."""
    found: dict[int, str] = {}
    while rest := [place for place in places if place not in found]:
        command = [sys.executable, str(Path(__file__).with_name("kinds.py")), str(folder), json.dumps(rest)]
        with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            place = None
            while _speaks(child) and (line := child.stdout.readline()):
                place = json.loads(line)["place"]
                if "end" in json.loads(line):
                    found[place] = json.loads(line)["end"]
            hangs = _still_runs(child)
            child.kill()
            code = child.wait()
            if place is not None and place not in found:
                found[place] = "hangs" if hangs else f"signal {-code}"
            assert place is not None, child.stderr.read()
    return found


def _speaks(child: subprocess.Popen[bytes]) -> bool:
    """Wait for a line; second by second, so that a machine that sleeps meanwhile costs one of them."""
    return any(select.select([child.stdout], [], [], 1)[0] for _ in range(PATIENCE))


def _still_runs(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a child that has nothing more to say still runs a moment later."""
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        return True
    return False


def judged(folder: Path, share: int) -> Counter[str]:
    """Try one attack of `share` and return how many kinds ended well; fail with those that did not."""
    every = attacks(folder)
    found = ends(folder, list(range(0, len(every), share)))
    assert found.pop(-1) == "answered", "the good folder"

    def line(place: int, attack: Attack) -> str:
        return f"{attack.kind} ({attack.place}): {found[place]}"

    bad = [line(p, every[p]) for p, end in found.items() if end not in ("refused", "answered", "impossible")]
    assert not bad, f"{len(bad)} of {len(found)}:\n" + "\n".join(bad)
    assert "refused" in found.values()
    return Counter(every[place].kind for place in found)


@pytest.mark.parametrize("name", QUICK)
def test_a_hostile_folder_is_refused_or_harmless(folder, name):
    judged(folder(name), SHARE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMALL, *BASE])
def test_every_hostile_folder_is_refused_or_harmless(folder, name):
    judged(folder(name), 1)


def test_there_are_many_kinds(folder):
    path = folder("hnsw")
    places = {(attack.kind, attack.place.partition(":")[2]) for attack in attacks(path)}
    assert len(places) >= 120
