from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest

from longtail.errors import RecipeError
from longtail.losses.bce import Bce
from longtail.losses.decoupled import Decoupled
from longtail.losses.sums import Sum
from longtail.parts import Objective
from longtail.recipe import RECIPES, Recipe, find_recipe, recipe_of
from longtail.records import PARTS, RENAMED, create, imported, parsed, part_of
from longtail.samplers.all_labels import AllLabels
from longtail.scorers.lexical import Lexical
from longtail.training.orders import Similar

CLASSES = {name: imported(PARTS, name, "part") for name in PARTS}
OLD_SETTINGS = [(name, old, new) for name, cls in CLASSES.items() for old, new in cls.renamed.items()]
OLD_PATHS = {  # what was typed before parts were renamed, and what the answer must name
    ("frugal", "encoder.start"): "init",
    ("frugal", "encoder.residual"): "head",
    ("frugal", "shortlist.random"): "sampler",
    ("frugal", "classifier.start"): "init",
    ("frugal", "training.least"): "min_steps",
    ("frugal", "training.batch"): "batch_size",
    ("frugal", "training.rate"): "learning_rate",
    ("frugal", "training.dense_rate"): "dense_learning_rate",
    ("frugal", "training.halved"): "decay_every",
    ("frugal", "training.optimiser"): "optimizer",
    ("frugal", "training.clustered"): "order.group",
    ("astec", "shortlist.keep"): "sampler",
    ("astec", "sampler.keep"): "num_candidates",
    ("astec", "sampler.points"): "num_neighbours",
    ("astec", "surrogate.clusters"): "num_clusters",
    ("astec", "surrogate.training.rate"): "learning_rate",
    ("inceptionxml", "encoder.words"): "max_tokens",
    ("inceptionxml", "encoder.permuted"): "permute_dims",
    ("inceptionxml", "encoder.head"): "head.norm",
    ("inceptionxml_plus", "sampler.most"): "max_candidates",
    ("inceptionxml_plus", "sampler.clusters"): "num_clusters",
    ("inceptionxml_plus", "sampler.smoothed"): "smooth",
    ("inceptionxml_plus", "sampler.framework"): "objectives.1.head",
    ("inceptionxml_plus", "sampler.detached"): "detach",
    ("inceptionxml_plus", "sampler.dropout"): "objectives.1.classifier.dropout",
    ("xmlcnn", "encoder.windows"): "kernel_sizes",
    ("xmlcnn", "encoder.stretches"): "pools",
    ("xmlcnn", "encoder.vector"): "width",
    ("knn+synonyms", "augment.0.least"): "min_cosine",
    ("knn+synonyms", "augment.0.most"): "max_neighbours",
}


def stages(recipe):
    return [stage.part for stage in recipe.stages]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name):
    recipe = find_recipe(name)
    assert recipe_of(json.loads(json.dumps(recipe.dump()))) == recipe


@pytest.mark.parametrize(
    "name", sorted(PARTS.keys() - {"objective", "recipe"})
)  # these need parts: they are in recipes
def test_a_part_survives_json(name):
    part = part_of({"part": name})
    assert part.part == name
    assert part_of(json.loads(json.dumps(part.dump()))) == part


def test_settings_are_reached_by_path():
    recipe = find_recipe("knn+gandalf").override("lexical.neighbours", 7).override("augment.0.threshold", 0.2)
    assert recipe.voices[0].neighbours == 7
    assert recipe.augment[0].threshold == 0.2
    assert recipe.override("lexical", "lexical").voices == (Lexical(),)
    assert replace(recipe, seed=3).seed == 3


def test_a_part_of_a_list_is_reached_by_its_name_and_by_its_position():
    recipe = find_recipe("astec+gandalf")
    for path, position in {
        "training.epochs": "stages.1.epochs",
        "surrogate.num_clusters": "stages.0.num_clusters",
        "surrogate.training.batch_size": "stages.0.training.batch_size",
        "gandalf.hops": "augment.0.hops",
        "objective.sampler.mined": "objectives.0.sampler.mined",
    }.items():
        changed = recipe.override(path, 77)
        assert changed == recipe.override(position, 77) != recipe, path
        assert recipe_of(changed.dump()) == changed
    assert recipe.override("training.epochs", 77).stages[0] == recipe.stages[0]  # not that of the surrogate


@pytest.mark.parametrize("name", ["astec", "inceptionxml_plus", "frugal"])
def test_what_stands_in_the_first_objective_is_reached_directly(name):
    recipe = find_recipe(name)
    for path, value in {
        "sampler": "all_labels",
        "classifier": "rows",
        "classifier.dropout": 0.125,
        "loss": "sum_of",
        "weight": 3.0,
        "served": 0.25,
        "detach": 0.5,
    }.items():
        changed = recipe.override(path, value)
        assert changed == recipe.override(f"objectives.0.{path}", value)
        assert changed.objectives[0] != recipe.objectives[0], path
        assert changed.objectives[1:] == recipe.objectives[1:], path
    assert recipe.override("sampler", "all_labels").objectives[0].sampler == AllLabels()
    assert recipe.override("sampler", "near").override("sampler.num_neighbours", 7).objectives[0].sampler.hard == 20


@pytest.mark.parametrize("path", ["loss", "objectives.0.loss"])
def test_a_part_is_swapped_for_one_with_settings_given_as_plain_values(path):
    losses = '[{"part": "decoupled", "directions": "both"}, {"part": "bce"}]'
    recipe = find_recipe("frugal").override(path, parsed(f'{{"part": "sum_of", "of": {losses}, "weights": [1, 0.5]}}'))
    expected = Sum(of=(Decoupled(directions="both"), Bce()), weights=(1.0, 0.5))
    assert recipe.objectives[0].loss == expected
    assert find_recipe("frugal").override(path, expected.dump()) == recipe
    assert recipe_of(json.loads(json.dumps(recipe.dump()))) == recipe
    assert recipe.override("loss.of.0.directions", "labels").objectives[0].loss.of[0].directions == "labels"
    assert recipe.override("loss.weights", [1, 2]).objectives[0].loss.weights == (1.0, 2.0)
    recipe.check()


def test_plain_values_stand_for_parts_wherever_parts_stand():
    recipe = find_recipe("frugal").override("training.order", {"part": "similar", "by": "vectors", "group": None})
    assert recipe.stages[0].order == Similar(by="vectors", group=None)
    assert find_recipe("astec").override("training", {"part": "training", "epochs": 7}).stages[1].epochs == 7
    assert recipe.override("augment", [{"part": "gandalf", "hops": 2}]).augment[0].hops == 2
    assert recipe.override("head", "none").override("head", {"part": "project", "dim": 7}).objectives[0].head.dim == 7


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"part": "summ"}, "did you mean 'sum_of'"),
        ({"part": "decoupled_bce"}, "now called 'sum_of'"),
        ({"part": "sum_of", "off": []}, "sum_of has no setting 'off'"),
        ({"part": "sum_of", "of": [{"part": "bag"}]}, r"sum_of\.of"),
        ({"part": "bag"}, r"objective\.loss"),
        ({"of": []}, r"objective\.loss"),
    ],
)
def test_plain_values_that_make_no_such_part_are_refused(value, message):
    with pytest.raises(RecipeError, match=message):
        find_recipe("frugal").override("loss", value)


def test_the_head_of_the_first_objective_is_reached_directly():
    recipe = find_recipe("inceptionxml_plus").override("head.norm", "batchnorm").override("head.dropout", 0.125)
    assert [objective.head.norm for objective in recipe.objectives] == ["batchnorm", "spectral"]
    assert [objective.head.dropout for objective in recipe.objectives] == [0.125, 0.25]
    beside = find_recipe("frugal")  # Gandalf has a setting `head` too
    assert beside.override("head", "none").objectives[0].head is None
    assert beside.override("head.dropout", 0.125).augment == beside.augment


@pytest.mark.parametrize("absent", ["none", None])
def test_an_optional_part_is_left_out_and_comes_back(absent):
    plus = find_recipe("inceptionxml_plus")
    shared = plus.override("objectives.1.head", absent)  # LightXML's framework
    assert shared.objectives[1].head is None and shared.objectives[0] == plus.objectives[0]
    assert recipe_of(json.loads(json.dumps(shared.dump()))) == shared
    bare = find_recipe("astec").override("head", absent)
    assert bare.objectives[0].head is None
    assert bare.override("head", absent) == bare
    assert bare.override("head", "residual") == find_recipe("astec")
    silent = find_recipe("knn").override("lexical", absent)
    assert silent.voices == () and silent.override("lexical", "lexical").voices == (Lexical(),)
    assert find_recipe("knn+gandalf").override("gandalf", absent).augment == ()


@pytest.mark.parametrize("path", ["sampler", "classifier", "loss", "objectives.0.sampler", "training.order"])
def test_a_part_that_is_needed_cannot_be_left_out(path):
    with pytest.raises(RecipeError, match=path.rpartition(".")[2]):
        find_recipe("frugal").override(path, "none")


@pytest.mark.parametrize("absent", ["none", None])
def test_a_stage_is_added_and_removed_by_its_name(absent):
    plain = find_recipe("astec")
    assert stages(plain) == ["surrogate", "training"]
    ranked = plain.override("rerank", "rerank").override("rerank.top", 7)
    assert stages(ranked) == ["surrogate", "training", "rerank"] and ranked.stages[2].top == 7
    assert ranked.override("rerank.sampler.hard", 3).stages[2].sampler.hard == 3
    assert ranked.override("rerank", absent) == plain
    assert plain.override("rerank", absent) == plain  # it is not there
    bare = ranked.override("surrogate", absent)
    assert stages(bare) == ["training", "rerank"]
    assert stages(bare.override("surrogate", "surrogate")) == ["surrogate", "training", "rerank"]  # in its place
    with pytest.raises(RecipeError, match="did you mean 'rerank'"):
        ranked.override("rerank", "renark")
    for path, value in (("rerank", "renark"), ("rerank.top", 7), ("rerank", "bag")):
        with pytest.raises(RecipeError, match="rerank=rerank"):
            plain.override(path, value)
    for value in ("bag", None):  # no stage
        with pytest.raises(RecipeError, match="no setting 'bag'"):
            find_recipe("xmlcnn").override("bag", value)


@pytest.mark.parametrize(("name", "old", "new"), OLD_SETTINGS)
def test_an_old_setting_is_refused_with_its_new_name(name, old, new):
    cls = CLASSES[name]
    known = {field.name for field in dataclasses.fields(cls)}
    assert old not in known
    first = re.match(r"\w+", new)[0]
    assert first in known | {field.name for field in dataclasses.fields(Objective)} | {"objectives"}, "leads nowhere"
    with pytest.raises(RecipeError, match=re.escape(f"{name}.{old} is now called {new}")):
        create(cls, {old: 1})
    with pytest.raises(RecipeError, match=re.escape(f"{name}.{old} is now called {new}")):
        part_of({"part": name, old: 1})


@pytest.mark.parametrize(("name", "path"), OLD_PATHS)
def test_an_old_path_is_refused_with_its_new_name(name, path):
    with pytest.raises(RecipeError, match=f"now called .*{re.escape(OLD_PATHS[name, path])}"):
        find_recipe(name).override(path, 1)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_part_is_refused_with_its_new_name(old, new):
    assert new in PARTS and old not in PARTS
    message = re.escape(f"the part {old!r} is now called {new!r}")
    for path in ("sampler", "objectives.0.classifier"):
        with pytest.raises(RecipeError, match=message):
            find_recipe("frugal").override(path, old)
    with pytest.raises(RecipeError, match=message):
        part_of({"part": old})


def test_shortlist_is_called_sampler_now():
    for path, value in (("shortlist", "near"), ("shortlist", None), ("shortlist.top", 3)):
        with pytest.raises(RecipeError, match=r"recipe\.shortlist is now called sampler"):
            find_recipe("astec").override(path, value)
    with pytest.raises(RecipeError, match=r"recipe\.shortlist is now called sampler"):
        recipe_of({"part": "recipe", "name": "x", "shortlist": None})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("lexical.neighbors", 7, "did you mean 'neighbours'"),
        ("lexical.neighbours", "many", "lexical.neighbours"),
        ("lexical.neighbours", 0, "greater than or equal to 1"),
        ("lexical.share", 2, "less than or equal to 1"),
        ("augment.3.threshold", 0.2, "not a position of a list of 1"),
        ("augment.x.threshold", 0.2, "not a position of a list of 1"),
        ("name.x", 1, "nothing below"),
        ("lexical", "lexicl", "did you mean 'lexical'"),
        ("lexcal", "lexical", "did you mean 'lexical'"),
        ("training.epochs", 3, "no stage 'training' yet: add it first, --set training=training"),
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
