"""Ensembles: the mean over members, from one scorer to a folder that is served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scorers.toys import TEXTS, product, vector_scorer, with_clusters, with_near
from small import board, same, short, small

import longtail as lt
from longtail.artefact import build_artefact
from longtail.errors import RecipeError
from longtail.estimates import gauge
from longtail.model import Model
from longtail.parts import Query
from longtail.recipe import find_recipe
from longtail.scorers.ensemble import EnsembleScorer
from longtail.types import label_matrix

LABELS = 12
KINDS = ["logits", "cosines", "clusters", "near"]
pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


def member(kind: str, seed: int):
    scorer = vector_scorer(seed, LABELS, layer=True, cosine=kind == "cosines")
    if kind == "clusters":
        return with_clusters(scorer, seed, top=2, weight=0.5)
    return with_near(scorer, seed, keep=6) if kind == "near" else scorer


def added_up(kind: str, one) -> np.ndarray:
    """Return what a member adds, for all texts and labels: probabilities, or cosines and shares as they are."""
    if kind == "logits":
        return 1 / (1 + np.exp(-product(one)))
    if kind == "cosines":
        return product(one)
    rows, labels = np.repeat(np.arange(len(TEXTS)), LABELS), np.tile(np.arange(LABELS), len(TEXTS))
    scores = one.pairs(Query(TEXTS), rows, labels).reshape(len(TEXTS), LABELS)
    return np.exp(scores) if kind == "clusters" else scores


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(KINDS), st.integers(1, 14))
def test_scores_are_the_mean_of_what_members_add_for_many_texts_and_for_one(seed, kind, k):
    members = [member(kind, seed + place) for place in range(3)]
    ensemble = EnsembleScorer(members[0], tuple(members[1:]))
    expected = sum(added_up(kind, one) for one in members) / 3
    labels, scores = ensemble.top(Query(TEXTS), k)
    for row, text in enumerate(TEXTS):
        found = [one.top(Query([text]), LABELS)[0][0] for one in members]
        candidates = np.unique(np.concatenate(found)[np.concatenate(found) >= 0])
        mask = labels[row] >= 0
        best = np.sort(expected[row][candidates])[::-1][:k]
        np.testing.assert_allclose(scores[row][mask], best, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(scores[row][mask], expected[row, labels[row][mask]], rtol=1e-4, atol=1e-5)
        query = Query([text])
        one, values = ensemble.top_one(query, k)
        np.testing.assert_allclose(values, scores[row][mask], rtol=1e-4, atol=1e-5)
        some = np.array([7, 2, 11, 0])
        if mask.any():
            np.testing.assert_allclose(ensemble.score_one(query, some), expected[row, some], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(ensemble.score_one(query, one), values, rtol=1e-4, atol=1e-5)
    assert (labels[4] == -1).all() and len(ensemble.top_one(Query([""]), k)[0]) == 0  # nothing is known


def test_an_ensemble_of_ensembles_adds_what_they_are():
    inner = EnsembleScorer(member("logits", 0), (member("logits", 1),))
    scores = np.array([0.25, 0.5], np.float32)
    assert inner.additive(scores) is scores
    assert not inner.searchable and len(inner) == LABELS
    assert inner.operations() == 2 * member("logits", 0).operations()


@pytest.mark.parametrize("kind", KINDS)
def test_new_labels_are_scored_as_each_member_does(kind):
    members = [member(kind, place) for place in range(2)]
    ensemble = EnsembleScorer(members[0], (members[1],))
    rows = ensemble.rows_for(["red fox", "qwertyuiop"])
    assert rows.shape == (2, 8)
    query, means = Query(["red cat"]), []
    for one, own in zip(members, np.split(rows, 2, axis=1), strict=True):
        np.testing.assert_array_equal(own, one.rows_for(["red fox", "qwertyuiop"]))
        best = float(one.top_one(query, 1)[1][0])
        means.append(one.additive(one.score_rows(query, own, 0.1, best)))
    np.testing.assert_allclose(ensemble.score_rows(query, rows, 0.1, 99.0), sum(means) / 2, rtol=1e-5)


def test_members_have_seeds_that_no_other_ensemble_has():
    recipe = find_recipe("frugal").override("ensemble", 3)
    seeds = [[one.seed for one in recipe.override("seed", seed).members()] for seed in (0, 1, 2)]
    assert seeds == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert all(one.ensemble == 1 for one in recipe.members())
    alone = find_recipe("frugal").override("seed", 5)
    assert alone.members() == [alone]


def test_what_chance_does_not_decide_has_no_ensemble():
    with pytest.raises(RecipeError, match="weights that chance decides"):
        lt.fit(find_recipe("knn").override("ensemble", 2), board(50))
    for wrong in (0, 21):
        with pytest.raises(RecipeError, match="ensemble"):
            find_recipe("frugal").override("ensemble", wrong)


def test_members_are_the_fits_of_their_seeds():
    recipe, train = short("decaf", ensemble=2, seed=3), board(100)
    model = lt.fit(recipe, train)
    for one, seed in zip(model.vectors.members, (6, 7), strict=True):
        alone = lt.fit(short("decaf", seed=seed), train)
        assert same(replace(model, vectors=one), alone)
    assert not same(replace(model, vectors=model.vectors.first), replace(model, vectors=model.vectors.others[0]))


NAMES = ["frugal", "astec", "decaf", "eclare", "inceptionxml_plus"]


@pytest.mark.parametrize("name", NAMES)
def test_an_ensemble_is_one_folder_that_is_served(name, tmp_path):
    count = 3 if name == "frugal" else 2
    model = lt.fit(short(name, ensemble=count), board())
    model.save(tmp_path / "run")
    loaded, index = Model.load(tmp_path / "run"), lt.Index.load(tmp_path / "run")
    assert same(loaded, model) and len(loaded.vectors.members) == count
    texts = [*board().texts.tolist()[:70], "", "unseen words only"]
    one, two, served = model.predict(texts, 4), loaded.predict(texts, 4), index.predict(texts, 4)
    assert np.array_equal(one.labels, two.labels) and np.array_equal(one.scores, two.scores)
    alike = np.isclose(one.scores, served.scores, rtol=1e-4, atol=1e-5) | (one.labels == served.labels)
    assert alike.mean() > 0.98  # labels with the same points tie at the border of what is near
    for row in (0, 1, 70, 71):
        single = index.predict([texts[row]], 4)
        np.testing.assert_allclose(single.scores[0], one.scores[row], rtol=1e-4, atol=1e-5)
    assert build_artefact(tmp_path / "run") is None  # each member searches label vectors of its own

    best = int(index.predict(texts[:1], 1).labels[0, 0])
    allowed = index.predict(texts[:1], 4, allow=[best, 5, 29])
    assert set(allowed.labels[0].tolist()) - {-1} == {best, 5, 29} and allowed.labels[0, 0] == best
    pairs = label_matrix(np.array([0, 1]), np.array([best]), (1, 30))
    assert best not in index.predict(texts[:1], 29, exclude=pairs).labels
    assert best not in index.predict(texts[:1], 3, deny=[best]).labels
    assert index.add(["word7 brandnew"]) == [30]
    assert 30 in index.predict(["word7 brandnew"], 5).labels
    assert index.predict(["word7 brandnew"], 2, allow=[12, 30]).labels[0].tolist() in ([30, 12], [12, 30])
    assert index.explanation(texts[0], best).rank == 1


def test_an_ensemble_learns_what_its_members_learn():
    for name in ("frugal", "siamesexml"):
        model = lt.fit(small(name, ensemble=2), board())
        assert isinstance(model.vectors, EnsembleScorer)
        assert lt.evaluate(model, board()).values["P@1"] >= 90


class Stop(Exception):
    pass


@pytest.mark.parametrize("stopped", ["member 1 of 2, surrogate", "member 2 of 2, level", "member 2 of 2, training"])
def test_an_ensemble_stopped_in_any_member_ends_with_the_same_weights(stopped, tmp_path):
    recipe, train, told = short("decaf", ensemble=2), board(100), []
    for path in ("surrogate.training", "level.training", "training"):
        recipe = recipe.override(f"{path}.save_seconds", 0)
    whole = lt.fit(recipe, train, progress=lambda name, *_: told.append(name))
    assert told[0].startswith("member 1 of 2, surrogate") and told[-1].startswith("member 2 of 2, training")

    def watch(name, done, _total):
        if name.startswith(stopped) and done == 2:
            raise Stop

    with pytest.raises(Stop):
        lt.fit(recipe, train, scratch=tmp_path, progress=watch)
    assert same(lt.fit(recipe, train, scratch=tmp_path), whole)


def test_an_ensemble_costs_as_much_as_its_members():
    sizes = find_recipe("astec").sizes(gauge(board(100), "astec"))
    one, three = (find_recipe("astec").override("ensemble", count).total_cost(sizes) for count in (1, 3))
    assert three.disk == pytest.approx(3 * one.disk)
    assert three.seconds == pytest.approx(3 * one.seconds)
    assert one.memory < three.memory < 3 * one.memory  # one at a time is trained
