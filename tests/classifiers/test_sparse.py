from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from conftest import shared_data
from sklearn.svm import LinearSVC
from small import board

from longtail.augment.gandalf import Gandalf
from longtail.classifiers.solver import solve
from longtail.classifiers.sparse import Linear
from longtail.data.dataset import from_rows
from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.errors import MissingExtra
from longtail.parts import Query
from longtail.types import label_matrix

NAMES = ["cat", "dog"]
EXACT = {"iterations": 100_000, "tolerance": 1e-7}


def fitted(settings, train, **run):
    return settings.fit(train, Words.fit(train.texts, train.labels.texts or []), **run)


def random_points(seed, points=40, words=12):
    draw = np.random.default_rng(seed)
    dense = (draw.random((points, words)) * (draw.random((points, words)) < 0.4)).astype(np.float32)
    dense /= np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-9)
    return dense, np.where(draw.random(points) < 0.3, 1.0, -1.0), draw.random(points) + 0.1


@pytest.mark.parametrize("seed", range(4))
def test_the_solver_finds_what_liblinear_finds(seed):
    dense, signs, costs = random_points(seed)
    weights, (rows, columns) = np.zeros(dense.shape[1], np.float32), np.nonzero(dense)
    starts = np.append(0, np.cumsum(np.bincount(rows, minlength=len(dense)))).astype(np.int32)
    bias = solve(
        starts, columns.astype(np.int32), dense[rows, columns], (1 + (dense**2).sum(1)).astype(np.float32),
        np.arange(len(dense), dtype=np.int32),
        signs.astype(np.float32), costs.astype(np.float32), len(dense), weights, 100_000, 1e-7, seed,
    )  # fmt: skip
    other = LinearSVC(C=1.0, tol=1e-8, max_iter=100_000, random_state=0).fit(dense, signs, sample_weight=costs)
    np.testing.assert_allclose(weights, other.coef_[0], atol=2e-3)
    assert bias == pytest.approx(other.intercept_[0], abs=2e-3)


def dense_rows(scorer):
    """Spell out the classifiers of a forest: (children, words) and biases."""
    forest = scorer.forest
    matrix, entry, term = np.zeros((len(forest.below), len(scorer.words))), 0, 0
    for word, end in enumerate(forest.starts[1:]):
        while term < end:
            while entry < forest.ends[term]:
                matrix[forest.firsts[forest.owners[term]] + forest.children[entry], word] = forest.weights[entry]
                entry += 1
            term += 1
    return matrix


def probabilities(scorer, texts):
    """Score every label the slow way."""
    forest, rows = scorer.forest, dense_rows(scorer)
    margins = scorer.words.bag(texts).toarray() @ rows.T + forest.biases
    logs = -(np.maximum(0, 1 - margins) ** 2)
    scores = np.zeros((len(texts), len(scorer)))

    def down(node, log):
        for child in range(forest.firsts[node], forest.firsts[node + 1]):
            under, own = forest.below[child], log + logs[:, child]
            if under < 0:
                scores[:, -1 - under] += np.exp(own) / len(forest.roots)
            else:
                down(under, own)

    for root in forest.roots:
        down(root, np.zeros(len(texts)))
    return np.sqrt(scores)


@pytest.mark.parametrize("settings", [{"leaf": 4, "branching": 2}, {"leaf": 8, "trees": 2}, {"leaf": 64}])
def test_a_search_that_follows_all_nodes_scores_as_the_formula_says(settings):
    train = board(200)
    scorer = fitted(Linear(beam=1000, prune=0, **settings), train)
    texts = ["word3 filler1", "word3 word4", "filler2"]
    expected = probabilities(scorer, texts)
    labels, scores = scorer.top(Query(texts), 30)
    for row, text in enumerate(texts):
        known = labels[row] >= 0
        np.testing.assert_allclose(scores[row][known], expected[row][labels[row][known]], atol=1e-5)
        assert expected[row][np.setdiff1d(np.arange(30), labels[row])].max(initial=0) < 1e-5
        chosen = scorer.candidates(Query([text]), 1, also=np.arange(30))
        np.testing.assert_allclose(chosen.scores, expected[row], atol=1e-5)


def test_a_leaf_is_what_liblinear_finds_on_the_points_of_its_node():
    train = from_rows(
        {"train": (["red cat", "old dog", "red dog", "old cat", "wild"], [[0], [1], [0, 1], [], [0]])},
        label_texts=NAMES,
    ).train
    scorer = fitted(Linear(prune=0, **EXACT), train)
    rows, bags = dense_rows(scorer), scorer.words.bag(train.texts).toarray()
    for label in range(2):
        signs = np.where(train.targets.toarray()[:, label] > 0, 1, -1)
        other = LinearSVC(C=1.0, tol=1e-8, max_iter=100_000).fit(bags, signs)
        child = int(np.flatnonzero(scorer.forest.below == -1 - label)[0])
        np.testing.assert_allclose(rows[child], other.coef_[0], atol=2e-3)
        assert scorer.forest.biases[child] == pytest.approx(other.intercept_[0], abs=2e-3)


def test_a_soft_target_costs_what_it_says_on_either_side():
    texts = ["red cat", "old dog", "red dog", "grey cat"]
    targets = label_matrix(np.array([0, 1, 1, 2, 3]), np.array([0, 0, 0]), (4, 1), np.array([1, 0.3, 0.6]))
    train = replace(from_rows({"train": (texts, [[0], [], [0], [0]])}, label_texts=["cat"]).train, targets=targets)
    scorer = fitted(Linear(prune=0, **EXACT), train)
    bags = scorer.words.bag(texts).toarray()
    other = LinearSVC(C=1.0, tol=1e-8, max_iter=100_000).fit(
        bags[[0, 1, 2, 2, 3, 3]], [1, -1, 1, -1, 1, -1], sample_weight=[1, 1, 0.3, 0.7, 0.6, 0.4]
    )
    np.testing.assert_allclose(dense_rows(scorer)[0], other.coef_[0], atol=2e-3)


def test_an_excluded_pair_is_never_learnt_from():
    rows = (["red cat", "old dog", "red dog"], [[0], [1], [1]])
    train = from_rows({"train": rows}, label_texts=NAMES).train
    excluded = label_matrix(np.array([0, 0, 0, 1]), np.array([0]), (3, 2))
    with_pair = fitted(Linear(prune=0, **EXACT), replace(train, excluded=excluded))
    bags = with_pair.words.bag(train.texts).toarray()[:2]
    other = LinearSVC(C=1.0, tol=1e-8, max_iter=100_000).fit(bags, [1, -1])
    np.testing.assert_allclose(dense_rows(with_pair)[with_pair.forest.below == -1][0], other.coef_[0], atol=2e-3)


def test_a_stopped_fit_continues_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.classifiers.sparse.WORK", 500)  # many blocks
    train, settings = board(200), Linear(leaf=4, branching=4, trees=2)
    fitted(settings, train, scratch=tmp_path)
    assert not any(tmp_path.iterdir())  # so quick that no file is worth it
    monkeypatch.setattr("longtail.classifiers.sparse.SOON", 0)
    whole = fitted(settings, train)
    for stop in (1, 3, 6, 10):
        told = []

        def watch(name, done, total, told=told, stop=stop):
            told.append(name)
            if len(told) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fitted(settings, train, scratch=tmp_path, progress=watch)
        assert any(tmp_path.rglob("*.safetensors"))
    solved = []
    real = sys.modules["longtail.classifiers.solver"].solve_children
    monkeypatch.setattr("longtail.classifiers.solver.solve_children", lambda *a: solved.append(1) or real(*a))
    told = []
    again = fitted(settings, train, scratch=tmp_path, progress=lambda *what: told.append(what))
    assert 0 < len(solved) < len(told)  # some were finished before
    for name, array in whole.forest.arrays().items():
        assert np.array_equal(array, again.forest.arrays()[name]), name
    assert not any(tmp_path.iterdir())


def test_the_number_of_threads_changes_nothing(monkeypatch):
    train, settings = board(200), Linear(leaf=4, branching=4, trees=2)
    forests = []
    for count in (1, 2, 7):
        monkeypatch.setattr("longtail.classifiers.sparse.cores", lambda count=count: count)  # so many blocks
        forests.append(fitted(settings, train).forest.arrays())
    for name, array in forests[0].items():
        assert all(np.array_equal(array, other[name]) for other in forests[1:]), name


def test_what_was_solved_for_other_points_is_not_taken(tmp_path):
    train, settings = board(200), Linear(leaf=8)

    def stop(*what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(settings, train, scratch=tmp_path, progress=stop)
    other = board(150)
    assert np.array_equal(
        fitted(settings, other, scratch=tmp_path).forest.weights, fitted(settings, other).forest.weights
    )


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["red cat"], [[0]]),
        (["red cat"] * 5, [[0], [1], [0], [1], [2]]),
        (["", "?"], [[0], [1]]),
        (["red cat", "old dog"], [[], []]),
        (["red cat", "old dog"], [[0, 1, 2], [0, 1, 2]]),
    ],
    ids=["one point", "all alike", "no words", "no targets", "all targets"],
)
def test_odd_data_gives_finite_scores(texts, labels):
    train = from_rows({"train": (texts, labels)}, label_texts=["cat", "dog", ""]).train
    scorer = fitted(Linear(), train)
    found, scores = scorer.top(Query(["red cat", "", "unseen"]), 3)
    assert (found[1:] == -1).all()
    assert np.isfinite(scores[found >= 0]).all()
    for name, array in scorer.forest.arrays().items():
        assert np.isfinite(array).all(), name


def test_a_label_without_points_is_found_by_its_text_only_with_label_points():
    train = from_rows({"train": (["red cat", "old dog"] * 5, [[0], [1]] * 5)}, label_texts=["cat", "dog", "fox"]).train
    assert 2 not in fitted(Linear(), train).top(Query(["a fox"]), 3)[0]
    assert fitted(Linear(), Gandalf().augment(train)).top(Query(["a fox"]), 3)[0][0, 0] == 2


def test_without_numba_one_line_says_what_to_install(monkeypatch):
    import longtail.classifiers.solver as solver

    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingExtra, match=r'numba is not installed; run: pip install "longtail\[linear\]"'):
        importlib.reload(solver)
    monkeypatch.undo()
    importlib.reload(solver)


def test_the_levels_of_a_tree_hold_each_other():
    train = load(shared_data("LF-MDNSeeAlsoTitles-6K")).train
    words = Words.fit(train.texts, train.labels.texts)
    levels = Linear(leaf=64, branching=8).levels(words.bag(train.labels.texts), seed=0)
    assert [len(level) for level in levels] == [8, 32, 128]
    for upper, lower in pairwise(levels):
        assert len(np.unique(np.stack([upper.of, lower.of]), axis=1).T) == len(lower)
    assert np.diff(levels[-1].starts).max() <= 64


def test_pairs_of_words_tell_what_words_alone_cannot(tmp_path):
    texts = ["new york", "york new town", "old york", "york old town"] * 6
    train = from_rows({"train": (texts, [[0], [1], [0], [1]] * 6)}, label_texts=["city", "hamlet"]).train
    words = Words.fit(train.texts, train.labels.texts)
    settings = Linear(pairs=True)
    scorer = settings.fit(train, words)
    assert scorer.words is words.paired
    assert {"new york", "york new"} <= set(scorer.words.vocabulary.tolist())
    query = Query(["new york", "york new"])
    assert scorer.top(query, 1)[0].ravel().tolist() == [0, 1]
    plain = Linear().fit(train, words).top(query, 2)[1]
    np.testing.assert_allclose(plain[0], plain[1])
    words.save(tmp_path)
    scorer.save(tmp_path)
    opened = settings.load(tmp_path, Words.load(tmp_path))
    for found, wanted in zip(opened.top(query, 2), scorer.top(query, 2), strict=True):
        np.testing.assert_array_equal(found, wanted)
