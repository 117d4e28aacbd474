"""What every combination of parts keeps to: all pairs in `make test`, all models in `make test-all`.

A combination that does not fit is refused before anything is trained. The others learn the known-answer corpus, come
back from their folder, continue after a stop with the same bits, and survive empty rows, soft targets and one label.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from small import board, same

import longtail as lt
from longtail.data.dataset import from_rows
from longtail.errors import RecipeError
from longtail.model import Model
from longtail.parts import BatchOrder, Classifier, Encoder, Head, Loss, Objective, Sampler, Stage
from longtail.recipe import Recipe
from longtail.records import PARTS, imported, named
from longtail.training.loop import Loop

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")  # bit-equal

EPOCHS = 3
LOOP = {"batch_size": 36, "learning_rate": 0.05, "dense_learning_rate": 0.02, "save_seconds": 0}
FREE = named("rows", init="label_text", text=None, cosine=False)
KINDS: dict[str, dict[str, Any]] = {
    "encoder": {
        "bag": lambda: named("bag", dim=16, relu=True),
        "inception": lambda: named("inception", dim=64, channels=4, max_tokens=4, init="random"),
        "inception, a mixture": lambda: named(
            "inception", dim=64, channels=4, max_tokens=4, init="random", branches="mixture"
        ),
        "recurrent": lambda: named("recurrent", dim=16, hidden=8, max_tokens=4, init="random"),
        "cnn": lambda: named("cnn", dim=16, filters=8, width=16, max_tokens=4, init="random"),
    },
    "head": {
        "none": lambda: None,
        "residual": lambda: named("residual"),
        "residual, gelu and batch norm": lambda: named("residual", activation="gelu", norm="batchnorm"),
        "gated": lambda: named("gated", last=True),
        "convolved": lambda: named("convolved", channels=4),
        "project": lambda: named("project", dim=16, tanh=True),
    },
    "sampler": {
        "all_labels": lambda: named("all_labels"),
        "batch_pool": lambda: named(
            "batch_pool", positives=1, pick="one", random=10, hard=2, mined=5, refresh=1, start=0, size=40
        ),
        "clusters": lambda: named("clusters", num_clusters=8, top=2),
        "beam": lambda: named("beam", top=3),
        "tree": lambda: named("tree", flat=8, top=3, pool=named("batch_pool", random=10)),
        "near": lambda: named("near", random=5, hard=2, num_candidates=15, num_neighbours=5, beta=0.5),
    },
    "classifier": {
        "rows": lambda: named("rows", init="random", text=None, bias=True, cosine=False),
        "rows from points, with texts": lambda: named("rows", init="points", text="sum"),
        "rows with texts through the head": lambda: named("rows", init="nothing", text="head", bias=True),
        "label_text": lambda: named("label_text", bias=True),
        "graph_text": lambda: named("graph_text", transform=None, dropout=0.1),
        "combined with gates": lambda: named("combined", of=(named("label_text"), FREE), bias=True, bias_init="prior"),
        "combined with attention": lambda: named(
            "combined", of=(named("label_text"), named("graph_text"), FREE), by="attention", cosine=True
        ),
        "dense_rows": lambda: named("dense_rows", dropout=0.1),
        "label_attention": lambda: named("label_attention", layers=(8,)),
    },
    "loss": {
        "bce": lambda: named("bce"),
        "bce_mean": lambda: named("bce_mean"),
        "decoupled": lambda: named("decoupled", directions="both", temperature=0.5),
        "supcon": lambda: named("supcon"),
        "sum_of": lambda: named("sum_of", weights=(1.0, 0.5)),
        "contrastive": lambda: named("contrastive"),
        "triplet": lambda: named("triplet", margin=1.0),
        "chunked_bce": lambda: named("chunked_bce", chunk=7),
    },
    "order": {
        "shuffled": lambda: named("shuffled"),
        "lengths": lambda: named("lengths", window=2),
        "similar": lambda: named("similar", group=4),
        "similar by vectors": lambda: named("similar", by="vectors", group=None, refresh=2),
    },
    "stages": {
        "training": lambda: (),
        "surrogate and rerank": lambda: ("surrogate", "rerank"),
        "siamese": lambda: ("siamese",),
        "phase and recluster": lambda: ("phase", "recluster"),
        "traverse": lambda: ("traverse",),
    },
    "augment": {
        "gandalf": lambda: named("gandalf"),
        "labelmix": lambda: named("labelmix"),
        "mixup": lambda: named("mixup"),
        "manifoldmixup": lambda: named("manifoldmixup"),
        "labelmixup": lambda: named("labelmixup"),
        "synonyms": lambda: named("synonyms", min_cosine=0.1),
        "wordmix": lambda: named("wordmix"),
        "hiddenmix": lambda: named("hiddenmix"),
        "ssmix": lambda: named("ssmix"),
        "tailmix": lambda: named("tailmix", targets=2),
    },
}
TABLE = {"encoder": Encoder, "head": Head, "sampler": Sampler, "classifier": Classifier, "loss": Loss}
TABLE |= {"order": BatchOrder, "stages": Stage}
Combination = tuple[str, ...]


@functools.cache
def part_of(kind: str, name: str) -> Any:
    """Make a part of the table once: thousands of combinations are asked whether they fit."""
    return KINDS[kind][name]()


def recipe_of(combination: Combination, epochs: int = EPOCHS) -> Recipe:
    """Put the named parts together, with what they need beside them."""
    loop = LOOP | {"epochs": epochs}
    parts = {kind: part_of(kind, name) for kind, name in zip(KINDS, combination, strict=True)}
    main = Objective(**{name: parts[name] for name in ("head", "sampler", "classifier", "loss")})
    if parts["loss"].needs_cosines and "cosine" in parts["classifier"].fields():
        for name, value in {"cosine": True, "scale": 1.0, "learn_scale": False, "bias": False}.items():
            main = main.override(f"classifier.{name}", value)
    sampler, objectives = parts["sampler"].part, [main]
    if sampler in ("clusters", "beam"):
        rows = named("dense_rows")
        objectives.append(
            Objective(over="clusters", sampler=named("all_labels"), classifier=rows, loss=named("bce_mean"))
        )
    nested = named("loop", **loop)
    made = {
        "surrogate": lambda: named("surrogate", num_clusters=8, training=nested, freeze=False),
        "siamese": lambda: named("siamese", training=nested, freeze=False),
        "phase": lambda: named("phase", training=nested, objectives=(replace(main, sampler=named("all_labels")),)),
        "recluster": lambda: named("recluster", num_clusters=8, smooth=True, prune=1.0),
        "level": lambda: named("level", training=nested),
        "levels": lambda: named("levels", training=nested),
        "training": lambda: named("training", order=parts["order"], **loop),
        "rerank": lambda: named("rerank", top=5, training=nested, sampler=named("batch_pool", random=5, hard=2)),
        "traverse": lambda: named("traverse", share=0.3, top=10),
    }
    wanted = {*parts["stages"], "training"}
    if sampler in ("near", "beam") and not {"surrogate", "siamese"} & wanted:
        wanted.add("surrogate")
    wanted |= {"recluster", "level"} if sampler == "beam" else set()
    wanted |= {"levels"} if sampler == "tree" else set()
    return Recipe(
        name="combination", augment=(parts["augment"],), encoder=parts["encoder"], objectives=tuple(objectives),
        stages=tuple(make() for name, make in made.items() if name in wanted),
    )  # fmt: skip


def fits(combination: Combination) -> bool:
    """Return whether the parts say that they fit each other."""
    if "chunked_bce" in combination and {"clusters", "beam", "tree", "batch_pool"} & {*combination}:
        return False  # not every point sees all candidates, which the first step refuses
    try:
        recipe_of(combination).check()
    except RecipeError:
        return False
    return True


def drawn(count: int, **fixed: str) -> list[Combination]:
    """Draw combinations by chance, but always the same: there are too many to ask all of them."""
    draw = np.random.default_rng(0)
    names = [[fixed[kind]] if kind in fixed else list(parts) for kind, parts in KINDS.items()]
    return [tuple(some[draw.integers(len(some))] for some in names) for _ in range(count)]


DRAWN = drawn(4000)
DRAWN += drawn(600, encoder="recurrent", head="none", classifier="label_attention")  # which fits little else
FITTING = [combination for combination in DRAWN if fits(combination)]
APART = {frozenset(("augment", kind)) for kind in ("head", "classifier", "loss", "order")}  # they never meet in a step
ALIKE = {
    "supcon": "decoupled",
    "sum_of": "decoupled",
    "triplet": "contrastive",
}  # to a classifier, which gives the scores


def pairs_of(combination: Combination) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """List the pairs of parts of a combination that have to do with each other."""
    named_parts = zip(KINDS, combination, strict=True)
    pairs = {(a, b) for a, b in itertools.combinations(named_parts, 2) if {a[0], b[0]} not in APART}
    return {(a, (b[0], ALIKE.get(b[1], b[1]))) if a[0] == "classifier" else (a, b) for a, b in pairs}


def parts_in(combination: Combination) -> set[tuple[str, str]]:
    """List the parts of a combination."""
    return {*zip(KINDS, combination, strict=True)}


def covering(among: list[Combination], held: Callable[[Combination], set[Any]]) -> list[Combination]:
    """Choose few combinations that hold everything which any holds: greedily, the cheaper ones among equals."""
    of = {combination: held(combination) for combination in among}
    cost = {combination: len(KINDS["stages"][combination[STAGES]]()) for combination in among}
    missing, chosen = set[Any]().union(*of.values()), []
    while missing:
        best = max(of, key=lambda combination: (len(of[combination] & missing), -cost[combination]))
        chosen.append(best)
        missing -= of[best]
    return chosen


def models() -> list[Combination]:
    """List all combinations of the parts that score labels; the others take turns."""
    firsts = itertools.product(*list(KINDS.values())[:MODEL])
    rests = itertools.cycle(itertools.product(*list(KINDS.values())[MODEL:]))
    return [combination for first in firsts if fits(combination := (*first, *next(rests)))]


MODEL = 4  # kinds that score labels: encoder, head, sampler, classifier
STAGES = list(KINDS).index("stages")
CHOSEN = covering(FITTING, pairs_of)  # every pair of parts that fit
ODD = covering(CHOSEN, parts_in)  # every part; every combination in `make test-all`
name_of = " · ".join


def test_the_table_has_every_part():
    known = {
        name for kind in KINDS.values() for name in (make().part for make in kind.values() if hasattr(make(), "part"))
    }
    known |= {"training", *itertools.chain.from_iterable(make() for make in KINDS["stages"].values())}
    known |= {"level", "levels", "drawn"}  # what the samplers beam and tree and the stage siamese bring along
    known |= {"transformer", "tmix"}  # need a folder: encoders/test_transformer.py
    for name, place in PARTS.items():
        part = imported(PARTS, name, "part")
        if issubclass(part, tuple(TABLE.values())) or ".augment." in place:
            assert name in known, f"give {name} a line in the table above"


def test_what_does_not_fit_is_refused_with_the_remedy():
    wrong = ("inception", "none", "all_labels", "rows from points, with texts", "bce", "shuffled", "training", "mixup")
    with pytest.raises(RecipeError, match=r"classifier\.init=random"):
        lt.fit(recipe_of(wrong), board(50))
    alone = recipe_of(("bag", "none", "clusters", "rows", "bce", "shuffled", "training", "mixup"))
    with pytest.raises(RecipeError, match="needs an objective over clusters"):
        lt.fit(replace(alone, objectives=alone.objectives[:1]), board(50))
    near = recipe_of(("bag", "none", "near", "rows", "bce", "shuffled", "training", "mixup"))
    with pytest.raises(RecipeError, match="surrogate=surrogate"):
        lt.fit(replace(near, stages=near.stages[1:]), board(50))
    beam = recipe_of(("bag", "none", "beam", "rows", "bce", "shuffled", "training", "mixup"))
    with pytest.raises(RecipeError, match="level=level"):
        lt.fit(beam.override("level", None), board(50))
    with pytest.raises(RecipeError, match="recluster needs a stage before it"):
        lt.fit(beam.override("surrogate", None), board(50))
    with pytest.raises(RecipeError, match="traverse needs probabilities: the sampler clusters or beam"):
        lt.fit(recipe_of(("bag", "none", "all_labels", "rows", "bce", "shuffled", "traverse", "mixup")), board(50))
    narrow = ("inception", "none", "all_labels", "label_text", "bce", "shuffled", "training", "mixup")
    with pytest.raises(RecipeError, match=r"label_text takes vectors of 64 dimensions and gets 4: .* convolved"):
        lt.fit(recipe_of(narrow), board(50))
    masked = recipe_of(("bag", "none", "clusters", "rows", "chunked_bce", "shuffled", "training", "mixup"))
    with pytest.raises(RecipeError, match=r"candidates that all points of a batch share, such as all_labels"):
        lt.fit(masked, board(50))
    siamese = recipe_of(("bag", "none", "near", "rows", "bce", "shuffled", "siamese", "mixup"))
    with pytest.raises(RecipeError, match="needs the sampler drawn"):
        lt.fit(siamese.override("siamese.objective.sampler", "all_labels"), board(50))
    assert len(DRAWN) / 3 < len(FITTING) < len(DRAWN)


def losses_of(recipe: Recipe, train: Any, **more: Any) -> tuple[Model, dict[str, list[float]]]:
    """Fit, and note the losses of each stage."""
    losses: dict[str, list[float]] = {}
    real_run, real_step, names = Loop.run, Loop._step, {}

    def run(self: Loop, name: str, **rest: Any) -> None:
        names[id(self)] = name
        real_run(self, name, **rest)

    def step(self: Loop, *rest: Any) -> float:
        value = real_step(self, *rest)
        losses.setdefault(names[id(self)], []).append(value)
        return value

    with patch.object(Loop, "run", run), patch.object(Loop, "_step", step):
        return lt.fit(recipe, train, **more), losses


class Stop(Exception):
    pass


def keeps_the_contract(combination: Combination, folder: Any, epochs: int = EPOCHS) -> None:
    recipe, train = recipe_of(combination, epochs), board(72)
    model, losses = losses_of(recipe, train)
    assert list(losses) == [stage.part for stage in recipe.stages if {"epochs", "training"} & stage.fields().keys()]
    for name, values in losses.items():
        assert np.isfinite(values).all()
        means = np.mean(np.reshape(values, (epochs, -1)), axis=1)
        if "label_attention" not in combination and name != "levels":  # need hundreds: classifiers/test_attention.py
            assert means[1:].min() < means[0], (name, means)  # after a phase there may be little left to learn

    texts = [*train.texts[:65], "", "unseen words only"]  # more than are answered one by one
    model.save(folder / "run")
    for loaded in (Model.load(folder / "run"), lt.Index.load(folder / "run")):
        one, other = model.predict(texts, 4), loaded.predict(texts, 4)
        alike = np.isclose(one.scores, other.scores, rtol=1e-4, atol=1e-5) | (one.labels == other.labels)
        assert alike.mean() > 0.95  # labels with the same points tie at the border of what is near
        few, single = loaded.predict(texts[:3], 4), loaded.predict(texts[:1], 4)
        rows = np.isclose(few.scores, one.scores[:3], rtol=1e-4, atol=1e-5).all(axis=1)
        assert rows.sum() >= (2 if "near" in combination else 3)  # such a tie changes the scale of its text's scores
        np.testing.assert_allclose(single.scores, few.scores[:1], rtol=1e-4, atol=1e-5)
    assert same(Model.load(folder / "run"), model)

    stage, steps = list(losses)[-1], len(list(losses.values())[-1])

    def watch(name: str, done: int, _total: int) -> None:
        if name.startswith(stage) and done == steps // 2 + 1:
            raise Stop

    with pytest.raises(Stop):
        lt.fit(recipe, train, scratch=folder / "scratch", progress=watch)
    assert same(lt.fit(recipe, train, scratch=folder / "scratch"), model)


def survives_odd_data(combination: Combination) -> None:
    """One label, empty texts, points without labels, soft targets."""
    texts = ["", "red", "", "old dog", "!!", "", "", "cat"]
    train = from_rows({"train": (texts, [[0], [0], [], [0], [0], [], [0], [0]])}, label_texts=["cat"]).train
    soft = sp.csr_array(
        (train.targets.data * np.float32(0.5), train.targets.indices, train.targets.indptr), shape=(8, 1)
    )
    recipe = recipe_of(combination).override("training.batch_size", 4)
    top = lt.fit(recipe, replace(train, targets=soft)).predict(["old cat", ""], 3)
    assert top.labels.shape == (2, 1)
    assert top.labels[0, 0] == 0
    assert np.isfinite(top.scores[top.labels >= 0]).all()


PAIRS = [  # every part is among the quick ones, every pair among all
    pytest.param(own, marks=[pytest.mark.slow] * (place % 2 == 1 and own not in ODD), id=name_of(own))
    for place, own in enumerate(CHOSEN)
]


@pytest.mark.parametrize("combination", PAIRS)
def test_every_pair_of_parts_keeps_the_contract(combination, tmp_path):
    keeps_the_contract(combination, tmp_path)


@pytest.mark.parametrize("combination", ODD, ids=name_of)
def test_every_part_survives_odd_data(combination):
    survives_odd_data(combination)


def pytest_generate_tests(metafunc):
    if "model" in metafunc.fixturenames:  # all of them are looked for where they are tried
        metafunc.parametrize("model", models() if metafunc.config.getoption("--slow") else CHOSEN[:1], ids=name_of)


@pytest.mark.slow
def test_every_combination_of_parts_keeps_the_contract(model, tmp_path):
    keeps_the_contract(model, tmp_path, epochs=8)  # some learn nothing to speak of in six steps
    survives_odd_data(model)
