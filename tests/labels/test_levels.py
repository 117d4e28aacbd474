from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from test_cli import run

import longtail as lt
from longtail.labels.levels import Levels
from longtail.types import TopK

#   0 animal ← 1 mammal ← 2 cat, 3 dog;  0 ← 4 bird ← 5 owl;  6 pet ← 3 dog;  7 ↔ 8 a circle without a top
PAIRS = [(1, 0), (2, 1), (3, 1), (4, 0), (5, 4), (3, 6), (7, 8), (8, 7)]


@pytest.fixture
def levels():
    rows, columns = zip(*PAIRS, strict=True)
    return Levels(sp.csr_array((np.ones(len(PAIRS), np.float32), (rows, columns)), shape=(9, 9)))


def test_labels_have_the_level_of_the_shortest_way_up(levels):
    assert levels.depths.tolist() == [1, 2, 3, 2, 2, 3, 1, 1, 1]


def test_labels_are_rolled_up_with_the_best_score_below(levels):
    top = TopK(np.array([[5, 2, -1, 3, 9]], np.int32), np.array([[0.9, 0.8, -np.inf, 0.5, 0.4]], np.float32))
    rolled = levels.rolled(top, 2, 4)
    assert rolled.labels.tolist() == [[4, 1, 3, 9]]  # 3 is of level 2 itself, 9 came after training
    assert rolled.scores[0].tolist() == pytest.approx([0.9, 0.8, 0.5, 0.4])
    assert levels.rolled(top, 1, 3).labels.tolist() == [[0, 6, 9]]
    assert levels.rolled(top, 1, 3, frozenset({0})).labels.tolist() == [[6, 9, -1]]
    with pytest.raises(lt.DataError, match="level 0"):
        levels.rolled(top, 0, 3)


def test_predictions_of_a_vocabulary_are_rolled_up(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    names = ["animal", "mammal", "cat", "dog", "bird", "owl"]
    (folder / "trn.csv").write_text("text,labels\n" + "".join(f"{w} {n},{n}\n" for w in ("red", "old") for n in names))
    (folder / "lbl.csv").write_text("text\n" + "".join(f"{name}\n" for name in names))
    (folder / "label_broader.txt").write_text("".join(f"{one} {two}\n" for one, two in PAIRS[:5]))
    (folder / "label_alternatives.txt").write_text("2\tkitty\n")
    assert run("train", "knn", "--data", folder, "--out", tmp_path / "run").returncode == 0
    done = run("predict", tmp_path / "run", "-", "--level", 2, "--k", 2, stdin="the owl\na cat\n")
    assert done.returncode == 0, done.stderr
    found = [[entry["text"] for entry in json.loads(line)["labels"]] for line in done.stdout.splitlines()]
    assert [row[0] for row in found] == ["bird", "mammal"]
    kept = lt.Model.load(tmp_path / "run").labels
    assert kept.alternatives.tolist() == ["kitty"] and kept.alternatives_of.indices.tolist() == [2]
    assert kept.broader.nnz == 5
    plain = lt.fit("knn", ["red cat"], [["cat"]])
    plain.save(tmp_path / "plain")
    refused = run("predict", tmp_path / "plain", "-", "--level", 1, stdin="a\n")
    assert refused.returncode == 3 and "have no levels" in refused.stderr
