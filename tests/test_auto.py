"""`auto`: what it tries, that it keeps its budget, and that a stopped search goes on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from golden.corpus import sized
from test_cli import run

import longtail as lt
from longtail.auto import portfolio as table
from longtail.auto.portfolio import BAR, PORTFOLIO, Auto, portfolio
from longtail.auto.search import FEW, SMALL, Search, Trial, fewer_epochs, for_share, seconds_of
from longtail.data.dataset import from_rows
from longtail.errors import BadArgument, RecipeError
from longtail.estimates import gauge
from longtail.types import TopK

QUICK = (("linear and knn", "linear", {"lexical": "lexical"}), ("knn", "knn", {}))
BEST = {"frugal": 0.7, "linear": 0.6, "astec+gandalf": 0.5, "inceptionxml_plus+gandalf": 0.55, "knn": 0.3}


@pytest.fixture(scope="module")
def points():
    return sized(5000, 1500)


class World:
    """A machine whose fits take so many times as long as estimated, and whose models are as good as they are told."""

    def __init__(self, pace=1.0, best=BEST, stop=None):
        self.now, self.pace, self.best, self.stop, self.fits = 0.0, pace, best, stop, []

    def fit(self, recipe, train, told):
        """Let the time of a fit pass, in ten steps."""
        if len(train) < SMALL:
            return None  # a fit that loads and compiles
        self.fits.append((recipe, len(train)))
        if len(self.fits) == self.stop:
            raise KeyboardInterrupt
        for step in range(10):
            self.now += self.seconds(recipe, train) / 10
            told("step", step + 1, 10)
        return Answers(self.best[recipe.name])

    def seconds(self, recipe, train):
        return self.pace * seconds_of(recipe, gauge(train, "test"))

    def search(self, budget, train, scratch=None, settings=()):
        auto = Auto(budget, settings)
        found, left_out = portfolio(auto, label_texts=True)
        sizes = gauge(train, "test")
        return Search(auto, train, sizes, found, self.fit, left_out, scratch, None, lambda: self.now)


class Answers:
    """Predictions whose first label is right for a share of the points."""

    def __init__(self, share):
        self.share = share

    def predict_split(self, split, k):
        first = split.targets.indices[split.targets.indptr[:-1]]
        right = np.random.default_rng(3).random(len(split)) < self.share
        labels = np.full((len(split), k), -1)
        labels[:, 0] = np.where(right, first, -1)
        return TopK(labels, np.zeros((len(split), k), np.float32))


@pytest.mark.parametrize(("pace", "budget"), [(1, 1), (4, 10), (0.3, 30), (4, 120), (1, 600)])
def test_the_budget_is_kept(points, budget, pace):
    world = World(pace)
    choice = world.search(budget, points).run()
    trials, record = world.now, choice.record
    whole = world.seconds(choice.recipe, points)
    assert trials <= budget or record["chosen"] == BAR
    assert trials + whole <= 1.2 * budget or "too small" in record["why"]
    if budget >= 10 * pace:
        assert record["chosen"] != BAR  # there is time for better ones
    if budget == 600 and pace <= 1:
        assert record["chosen"] == "frugal"
        assert record["epochs"] == 1


def test_the_better_half_goes_on_with_twice_as_many_points(points):
    search = World().search(30, points)
    record = search.run().record
    shares = sorted({one["share"] for one in record["trials"]})
    assert len(shares) > 1
    assert [later / share for share, later in pairwise(shares)] == [2.0] * (len(shares) - 1)
    order = [name for name, _, _ in PORTFOLIO]
    rounds = [[one for one in record["trials"] if one["share"] == share] for share in shares]
    for before, after in pairwise(rounds):
        before.sort(key=lambda one: (-one["P@1"] - one["PSP@5"], order.index(one["name"])))
        names = [one["name"] for one in before]
        kept = names[: math.ceil(len(names) / 2)]
        assert {kept[0], BAR} <= {one["name"] for one in after} <= {*kept, BAR}  # what there is time for
        assert after[0]["name"] == BAR
    assert record["why"].startswith("frugal has")


def test_among_equals_the_first_of_the_portfolio_is_taken_and_nothing_worse_than_knn(points):
    equal = World(best=dict.fromkeys(BEST, 0.5)).search(600, points).run().record
    assert equal["chosen"] == PORTFOLIO[0][0]
    worse = World(best={**dict.fromkeys(BEST, 0.3), "knn": 0.5}).search(600, points).run().record
    assert worse["chosen"] == BAR


def test_what_would_not_end_in_time_is_shortened_beforehand(points):
    world = World()
    whole = world.seconds(lt.find_recipe("frugal"), points)
    only_frugal = (("encoder.dim", 256), ("linear.trees", 2), ("training.epochs", 5), ("training.min_steps", 400))
    record = world.search(1.3 * whole, points, settings=only_frugal).run()
    assert record.record["chosen"] == "frugal"
    assert 0.5 <= record.record["epochs"] < 1
    assert record.recipe.stages[0].epochs < lt.find_recipe("frugal").stages[0].epochs


def test_too_small_a_budget_for_any_recipe_that_is_allowed_takes_the_cheapest(points):
    world = World()
    choice = world.search(1, points, settings=(("encoder.dim", 300),)).run()
    assert world.fits == []
    assert choice.record["chosen"] == "frugal, short"
    assert choice.recipe.stages[0].epochs == 1
    assert "too small" in choice.record["why"]


def test_a_trial_that_takes_too_long_is_stopped_and_tried_again_with_more_time(points, tmp_path):
    world = World()
    usual = world.seconds
    world.seconds = lambda recipe, train: usual(recipe, train) * (20 if recipe.trains else 1)
    record = world.search(60, points, tmp_path).run().record
    stopped = [one for one in record["trials"] if one["failed"]]
    assert stopped
    assert "takes longer" in stopped[0]["failed"]
    assert world.now < 60
    assert record["chosen"] in ("linear", "linear and knn")
    for file in ("auto.json", "trials/plan.json"):
        (tmp_path / file).unlink()  # as if only trials were kept
    assert not any(one["failed"] for one in World().search(600, points, tmp_path).run().record["trials"])


def test_a_stopped_search_reuses_its_trials(points, tmp_path):
    unbroken = World()
    whole = unbroken.search(130, points).run()
    stopped = World(stop=5)
    with pytest.raises(KeyboardInterrupt):
        stopped.search(130, points, tmp_path).run()
    world = World()
    continued = world.search(130, points, tmp_path).run()
    assert len(world.fits) == len(unbroken.fits) - 4
    assert (continued.recipe, continued.record["trials"]) == (whole.recipe, whole.record["trials"])
    again = World()
    assert again.search(130, points, tmp_path).run().recipe == whole.recipe
    assert again.fits == []  # the choice was made
    other = World()
    other.search(131, points, tmp_path).run()
    assert len(other.fits) < len(unbroken.fits)  # another budget chooses anew, from the same trials


def test_a_trial_has_as_many_epochs_and_fewer_steps():
    recipe = lt.find_recipe("astec")
    quarter, short = for_share(recipe, 0.25), fewer_epochs(recipe, 0.5)
    assert [stage.steps(10**9)[1] for stage in quarter.stages] == [20, 15]
    assert [stage.steps(10**9)[1] for stage in short.stages] == [10, 8]
    assert quarter.stages[1].min_steps == recipe.stages[1].min_steps // 4
    assert for_share(recipe, 1) is fewer_epochs(recipe, 1) is recipe


def test_settings_leave_out_what_cannot_take_them():
    found, left_out = portfolio(Auto(9, (("encoder.dim", 32), ("seed", 4))), label_texts=True)
    assert {one.recipe.encoder.dim for one in found if one.recipe.name != "inceptionxml_plus+gandalf"} == {32}
    assert {one.recipe.seed for one in found} == {4}
    assert "knn" in left_out
    assert "linear" in left_out
    with pytest.raises(RecipeError, match="nonsense=1"):
        portfolio(Auto(9, (("nonsense", 1),)), label_texts=True)
    found, left_out = portfolio(Auto(9, (("linear.trees", 2),)), label_texts=True)
    assert left_out["linear and knn, one tree"] == "with these settings it is the same as another"


def test_without_label_texts_nothing_needs_them():
    found, left_out = portfolio(Auto(9), label_texts=False)
    assert [one.name for one in found] == [name.removesuffix("+gandalf") for name, _, _ in PORTFOLIO]
    assert all(part.calibrate for one in found for part in one.recipe.augment)  # those make no points then
    assert not left_out


@pytest.mark.parametrize("budget", [None, "", "soon", "5d", -3, 0, "0s", "nan", math.inf])
def test_a_budget_is_a_time(budget):
    with pytest.raises(BadArgument, match="budget"):
        Auto.of(budget)


def few(count, texts=True):
    rows = [[index % 3] for index in range(count)]
    words = [f"{animal} number{index}" for index, animal in enumerate(["red cat", "old dog", "wild fox"] * count)]
    data = from_rows({"train": (words[:count], rows)}, label_texts=["cat", "dog", "fox"]).train
    return data if texts else replace(data, labels=replace(data.labels, texts=None))


@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize(("count", "budget", "word"), [(10, 60, "too few"), (FEW, 1e-3, "too small")])
def test_few_points_or_seconds_still_make_a_model(count, budget, word, texts):
    model = lt.fit("auto", few(count, texts), budget=budget)
    assert word in model.trials["why"]
    assert model.recipe.name == "knn"
    assert model.predict(["a dog"], k=1)[0][0][0] == 1


def test_the_model_is_one_of_the_chosen_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "PORTFOLIO", QUICK)
    model = lt.fit("auto", few(200, texts=False), budget="1m", scratch=tmp_path / "scratch")
    record = model.trials
    assert {one["name"] for one in record["trials"]} == {"linear and knn", "knn"}
    assert record["chosen"] == "linear and knn"  # both are always right
    assert model.recipe.name == "linear"
    model.save(tmp_path / "run")
    loaded = lt.Model.load(tmp_path / "run")
    assert loaded.trials == record
    assert loaded.predict(["a dog"], k=1)[0][0][0] == 1
    card = (tmp_path / "run" / "README.md").read_text()
    assert record["why"] in card
    assert "| linear and knn (chosen) | 170 |" in card
    with pytest.raises(BadArgument, match="a budget beside a recipe"):
        lt.fit("knn", few(20), budget=3)


def test_in_scikit_learn():
    texts = few(10).texts.tolist()
    model = lt.LongtailClassifier("auto", budget=60, top=1, seed=2).fit(texts, [["cat"], ["dog"]] * 5)
    assert model.model_.recipe.seed == 2
    assert "too few" in model.model_.trials["why"]
    with pytest.raises(BadArgument, match="beside a recipe"):
        lt.LongtailClassifier("knn", budget=60).fit(texts, [["cat"], ["dog"]] * 5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "PORTFOLIO", QUICK)
    (tmp_path / "d").mkdir()
    for name, split in (("trn", few(150)), ("tst", few(9))):
        rows = zip(split.texts, split.targets.indices.tolist(), strict=True)
        lines = [json.dumps({"text": text, "labels": [label]}) for text, label in rows]
        (tmp_path / "d" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "d" / "lbl.jsonl").write_text('{"text": "cat"}\n{"text": "dog"}\n{"text": "fox"}\n')
    return tmp_path


def test_on_the_command_line(folder):
    data, out = ("--data", folder / "d"), folder / "run"
    done = run("train", "auto", *data, "--out", out, "--budget", "60s", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "(chosen)" in done.stdout
    assert "chose linear and knn: " in done.stderr
    assert not (folder / "run.unfinished").exists()
    model = lt.Model.load(out)
    assert (model.recipe.name, model.recipe.seed, model.trials["budget"]) == ("linear", 3, 60)
    refused = run("train", "auto", *data, "--out", out, "--budget", "60s")
    assert refused.returncode == 3
    assert "--force" in refused.stderr
    again = run("train", "auto", *data, "--out", out, "--budget", "1m", "--force", "--json")
    assert json.loads(again.stdout)["trials"]["chosen"] == "linear and knn"
    assert run("report", out, *data, "--out", folder / "report.html").returncode == 0
    page = (folder / "report.html").read_text()
    assert "Why run is linear and knn" in page
    assert "seconds of a whole fit" in page or page.count("<svg") == 5


def test_the_command_line_says_what_would_be_tried_and_refuses_what_makes_no_sense(folder):
    line = ("train", "auto", "--data", folder / "d", "--out", folder / "dry", "--dry-run")
    shown = run(*line, "--budget", "2m")
    assert "linear and knn" in shown.stdout
    plan = json.loads(run(*line, "--budget", "2m", "--json").stdout)
    assert plan["budget"] == 120
    assert [(one["name"], one["tried"]) for one in plan["portfolio"]] == [("linear and knn", True), ("knn", True)]
    assert not (folder / "dry").exists()
    for flags, code, word in (
        ([], 3, "has no budget"),
        (["--budget", "soon"], 3, "60s, 2m, 1h"),
        (["--budget", "9s", "--published", "X"], 4, "--published"),
        (["--budget", "9s", "--set", "nonsense=1"], 4, "nonsense"),
    ):
        refused = run(*line, *flags)
        assert (refused.returncode, word in refused.stderr) == (code, True), refused.stderr
    refused = run("train", "knn", "--data", folder / "d", "--out", folder / "dry", "--budget", "9s")
    assert refused.returncode == 4
    assert "--budget is for auto" in refused.stderr


def test_a_trial_is_not_begun_that_would_cost_the_fit_of_the_best_so_far(points):
    search = World().search(600, points)
    linear, frugal = (
        next(one for one in search.candidates if one.name == name) for name in ("linear", "frugal, short")
    )
    seconds = search.reckoned_trial(linear, 0.25)
    best = Trial("linear", 0.25, 1000, seconds, 60.0, fitting=seconds)
    search.trials.append(best)
    assert search._no_time(frugal, 0.25, [best]) == ""
    fit, trial = search.ending(linear)[1], search.reckoned_trial(frugal, 0.25)
    search.ending = lambda one, after=0.0: (1.0, fit) if after < trial / 2 or one is frugal else None
    assert search._no_time(frugal, 0.25, [best]) == "the best so far"
    assert search._no_time(frugal, 0.25, [replace(best, failed="too much")]) == ""
