"""The compiled search over trees of classifiers against one in plain numpy, which looks at every node of a level."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.scorers import beam
from longtail.scorers.linear import Forest
from longtail.search import prefetching

WORDS, LABELS, TREES = 30, 60, 2


def made(seed: int) -> tuple[Forest, sp.csr_array]:
    """Make two trees of three levels with labels in another order in each, and a row of weights for each child."""
    draw = np.random.default_rng(seed)
    sizes, below, roots = list[int](), list[int](), list[int]()
    for _ in range(TREES):
        roots.append(len(sizes))
        below += range(len(sizes) + 1, len(sizes) + 4)
        first = len(sizes) + 4
        below += range(first, first + 12)
        below += (-1 - draw.permutation(LABELS)).tolist()
        sizes += [3] + 3 * [4] + 12 * [5]
    rows = sp.csr_array(
        draw.normal(size=(len(below), WORDS)) * (draw.random((len(below), WORDS)) < 0.3), dtype=np.float32
    )
    biases = draw.normal(size=len(below)).astype(np.float32)
    firsts = np.append(0, np.cumsum(sizes))
    return Forest.of_rows(np.array(roots, np.int32), firsts, np.array(below, np.int32), biases, rows), rows


def plain(forest: Forest, rows: sp.csr_array, text: np.ndarray, wide: int) -> dict[int, float]:
    """Search level by level, with all margins at hand."""
    margins, sums = rows @ text + forest.biases, dict[int, float]()
    for root in forest.roots:
        level = [(0.0, int(root))]
        while level:
            found = []
            for log, node in level:
                for child in range(forest.firsts[node], forest.firsts[node + 1]):
                    own = log - max(0.0, 1 - margins[child]) ** 2
                    if forest.below[child] >= 0:
                        found.append((own, int(forest.below[child])))
                    elif own >= -beam.FAR:
                        label = int(-1 - forest.below[child])
                        sums[label] = sums.get(label, 0) + np.exp(own) / TREES
            level = sorted((pair for pair in found if pair[0] >= -beam.FAR), key=lambda one: (-one[0], one[1]))[:wide]
    return sums


def answers(search, forest: Forest, texts: np.ndarray, wide: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ask for the k best labels of texts."""
    bags = sp.csr_array(texts)
    labels, scores = np.full((len(texts), k), -1, np.int32), np.full((len(texts), k), -np.inf, np.float32)
    search(
        bags.indptr, bags.indices, bags.data, 0, forest.roots, forest.firsts, forest.starts, forest.owners, forest.ends,
        forest.children, forest.weights, forest.biases, forest.below, wide, forest.widest, labels, scores,
    )  # fmt: skip
    return labels, scores


def drawn(seed: int, count: int) -> np.ndarray:
    """Draw texts of a few words each, and of the first one."""
    draw = np.random.default_rng(seed)
    texts = draw.random((count, WORDS)) * (draw.random((count, WORDS)) < 0.2)
    texts[:, 0] = 0.5
    return texts.astype(np.float32)


@pytest.mark.parametrize("wide", [1, 2, 5, 12])
@pytest.mark.parametrize("k", [1, 5, 60])
def test_it_finds_the_best_labels_of_the_nodes_that_look_best(wide, k):
    for seed in range(10):
        forest, rows = made(seed)
        texts = drawn(100 + seed, 20)
        texts[3] = 0
        labels, scores = answers(beam.search, forest, texts, wide, k)
        assert (labels[3] == -1).all()
        for row in (place for place in range(20) if place != 3):
            sums = plain(forest, rows, texts[row], wide)
            expected = sorted(sums, key=lambda label: -sums[label])[:k]
            known = labels[row] >= 0
            assert known.sum() == len(expected)
            np.testing.assert_allclose(scores[row][known], [sums[label] for label in expected], rtol=1e-3)
            assert [sums[label] for label in labels[row][known]] == pytest.approx(scores[row][known], rel=1e-3)


def test_in_plain_python_the_same_is_found():
    spec = importlib.util.spec_from_file_location("plain_beam", beam.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in vars(module).copy().items():
        setattr(module, name, getattr(value, "py_func", value))
    module.prefetch = prefetching.nothing
    forest, _ = made(0)
    texts = drawn(1, 6)
    for one, two in zip(
        answers(module.search, forest, texts, 3, 7), answers(beam.search, forest, texts, 3, 7), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-4)


def test_the_first_of_nodes_that_is_not_below():
    nodes = np.sort(np.random.default_rng(0).integers(0, 500, 200)).astype(np.int32)
    for start, end in ((0, 200), (0, 0), (7, 7), (3, 10), (150, 200)):
        for node in range(-1, 502, 3):
            assert beam.first_from(nodes, start, end, node) == start + np.searchsorted(nodes[start:end], node)
