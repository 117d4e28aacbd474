from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from longtail.errors import RecipeError
from longtail.recipe import PARTS, RECIPES, Recipe, find_recipe, part_of, recipe_of
from longtail.shortlists.lexical import Lexical


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name):
    made = find_recipe(name)
    assert recipe_of(json.loads(json.dumps(made.dump()))) == made


@pytest.mark.parametrize("name", PARTS)
def test_a_part_survives_json(name):
    made = part_of({"part": name})
    assert made.part == name
    assert part_of(json.loads(json.dumps(made.dump()))) == made


def test_settings_are_reached_by_path():
    made = find_recipe("knn+gandalf").override("lexical.neighbours", 7).override("augment.0.threshold", 0.2)
    assert made.lexical.neighbours == 7
    assert made.augment[0].threshold == 0.2
    assert made.override("lexical", "lexical").lexical == Lexical()
    assert replace(made, seed=3).seed == 3


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("lexical.neighbors", 7, "did you mean 'neighbours'"),
        ("lexical.neighbours", "many", "lexical.neighbours"),
        ("lexical.neighbours", 0, "greater than or equal to 1"),
        ("lexical.share", 2, "less than or equal to 1"),
        ("augment.3.threshold", 0.2, "not a position of a list of 1"),
        ("name.x", 1, "nothing below"),
        ("lexical", "lexicl", "did you mean 'lexical'"),
    ],
)
def test_a_wrong_setting_names_the_field_and_the_nearest_name(path, value, message):
    with pytest.raises(RecipeError, match=message):
        find_recipe("knn+gandalf").override(path, value)


@pytest.mark.parametrize(
    ("name", "message"), [("astek", "there is no recipe"), ("knn+gandlaf", "did you mean 'gandalf'")]
)
def test_an_unknown_name_is_refused(name, message):
    with pytest.raises(RecipeError, match=message):
        find_recipe(name)


def test_only_augmentations_follow_a_plus():
    with pytest.raises(RecipeError, match="not an augmentation"):
        find_recipe("knn+lexical")


def test_a_part_that_a_recipe_lacks_is_set_by_its_name():
    made = find_recipe("astec").override("rerank", "rerank").override("rerank.top", 7)
    assert made.rerank.top == 7
    assert made.override("rerank", None) == find_recipe("astec")
    with pytest.raises(RecipeError, match="rerank"):
        made.override("rerank", "renark")


def test_recipes_are_frozen():
    with pytest.raises(FrozenInstanceError):
        find_recipe("knn").seed = 1


@pytest.mark.parametrize("value", [{"part": "os"}, {"part": "recipe"}, {}, {"part": "lexical", "__class__": "x"}])
def test_a_strange_record_is_a_recipe_error(value):
    with pytest.raises(RecipeError):
        recipe_of(value)


def test_a_part_is_not_a_recipe():
    with pytest.raises(RecipeError, match="not a recipe"):
        recipe_of({"part": "lexical"})
    assert isinstance(find_recipe(Recipe(name="x")), Recipe)
