from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest

from longtail.errors import RecipeError
from longtail.recipe import RECIPES, find_recipe
from longtail.recipes.published import PLACES, _file, published_scores, published_settings

FILE = _file()
SETTINGS = [(model, data) for model, table in FILE["settings"].items() for data in table["data"]]
SCORES = published_scores(misprints=True)


def written(scores):
    return f"{scores.recipe} {scores.data} {scores.source} {dict(scores.set)}"


def changed(name, settings):
    if name.partition("+")[0] not in RECIPES:
        pytest.skip(f"there is no recipe {name} yet")
    recipe = find_recipe(name)
    for path, value in settings.items():
        recipe = recipe.override(path, value)
    return recipe


@pytest.mark.parametrize(("model", "data"), SETTINGS)
def test_our_recipes_take_the_published_settings(model, data):
    changed(model, published_settings(model, data)).check()


@pytest.mark.parametrize("scores", [scores for scores in SCORES if scores.set], ids=written)
def test_our_recipes_take_the_variants(scores):
    changed(scores.recipe, scores.set).check()


def test_a_published_setting_ends_where_it_belongs():
    recipe = changed("astec", published_settings("astec", "LF-AmazonTitles-131K"))
    surrogate, training, rerank = recipe.stages
    assert (surrogate.num_clusters, surrogate.training.learning_rate, training.epochs) == (65536, 0.03, 15)
    assert (rerank.top, rerank.training.decay_every, recipe.objectives[0].sampler.beta) == (200, 0.8, 0.1)
    plus = changed("inceptionxml_plus", published_settings("inceptionxml_plus", "AmazonTitles-3M"))
    assert [objective.classifier.dropout for objective in plus.objectives] == [0.4, 0.3]


@pytest.mark.parametrize(("model", "data"), SETTINGS)
def test_published_settings_are_sane(model, data):
    settings = published_settings(model, data)
    assert settings
    for path, value in settings.items():
        last = path.rpartition(".")[2]
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+|\.\d+)*", path)
        if last in ("dim", "num_clusters", "epochs", "batch_size", "top", "max_candidates"):
            assert isinstance(value, int)
            assert value > 0
        if last in ("learning_rate", "dense_learning_rate", "dropout", "decay_every", "beta"):
            assert 0 <= value <= 1
    for first in {path.rpartition(".")[0] for path in settings if path.endswith(".learning_rate")}:
        assert settings[f"{first}.learning_rate"] == settings[f"{first}.dense_learning_rate"]


def test_what_is_not_published_is_left_out():
    settings = published_settings("inceptionxml_plus", "LF-AmazonTitles-131K")
    assert settings["sampler.num_clusters"] == 16384
    assert "training.epochs" not in settings
    assert "?" not in settings.values()


def test_settings_are_given_out_as_copies():
    published_settings("astec", "EURLex-4K")["encoder.dim"] = 1
    published_settings("astec", "EURLex-4K").clear()
    assert published_settings("astec", "EURLex-4K")["encoder.dim"] == 300


@pytest.mark.parametrize("scores", SCORES, ids=written)
def test_printed_scores_are_sane(scores):
    assert len(scores.P) == len(scores.PSP) == len(PLACES)
    printed = [(k, value) for k, value in zip(PLACES, scores.P, strict=True) if not math.isnan(value)]
    assert len(printed) >= 2
    assert all(0 < value < 100 for value in scores.metrics.values() if not math.isnan(value))
    for (k, before), (further, after) in pairwise(printed):
        assert after <= before
        assert further * after >= k * before  # hits among more places are never fewer


@pytest.mark.parametrize("scores", SCORES, ids=written)
def test_a_source_names_a_paper_and_its_tables(scores):
    papers = re.findall(r"(?:^|, )([A-Za-z]\w*) tables? \d+(?:\.\d)?(?:, \d+(?:\.\d)?)*(?=, [A-Za-z]|$)", scores.source)
    assert papers
    assert set(papers) <= FILE["papers"].keys()
    assert scores.source.count("table") == len(papers)


def test_the_same_row_stands_here_once():
    rows = [(written(scores), scores.single, scores.note) for scores in SCORES]
    assert len(rows) == len(set(rows))


def test_scores_are_found_by_model_and_data():
    found = published_scores("astec", "LF-AmazonTitles-131K")
    assert [scores.recipe for scores in found] == ["astec", "astec+labelmix", "astec+gandalf"]
    assert found[2].metrics == dict(
        zip(("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5"), (43.95, 29.66, 21.39, 37.40, 43.03, 48.31), strict=True)
    )
    assert published_scores("xmlcnn", "LF-AmazonTitles-131K") == []
    with pytest.raises(FrozenInstanceError):
        found[0].model = "decaf"
    assert len(set(found)) == 3


def test_misprints_are_given_out_only_where_they_are_asked_for():
    assert len(SCORES) - len(published_scores()) == 2
    right = {s.recipe: s.P[2] for s in published_scores(data="LF-WikiSeeAlsoTitles-320K") if not s.set}
    assert (right["inceptionxml_lf"], right["decaf+gandalf"]) == (14.79, 16.53)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: published_settings("astek", "EURLex-4K"), "for the model 'astek'; did you mean 'astec'"),
        (lambda: published_settings("xmlcnn", "EURLex-4K"), "no settings are published for the model 'xmlcnn'"),
        (lambda: published_settings("decaf", "LF-AmazonTitles-131k"), "did you mean 'LF-AmazonTitles-131K'"),
        (lambda: published_settings("decaf", "EURLex-4K"), "no settings of decaf are published for the data set"),
        (lambda: published_scores("eclair"), "no scores are published for the model 'eclair'; did you mean 'eclare'"),
        (lambda: published_scores(data="AmazonTitles-3m"), "did you mean 'AmazonTitles-3M'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(ask, message):
    with pytest.raises(RecipeError, match=message):
        ask()
