"""Label-wise attention against its formulas, in training and served."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from encoders.toy import TEXTS, Toy, moved, start_of
from small import board, same, small
from torch.nn import functional

import longtail as lt
from longtail.classifiers import attention
from longtail.classifiers.attention import BuiltAttention, Contexts, LabelAttention
from longtail.cli import main
from longtail.data.sequences import Sequences
from longtail.encoders.inputs import Ordered
from longtail.encoders.recurrent import Recurrent
from longtail.encoders.towers.recurrent import RecurrentTower
from longtail.errors import ModelError, RecipeError
from longtail.model import Model
from longtail.parts import Points, Query, States
from longtail.records import named
from longtail.types import Texts, label_matrix, no_pairs

pytestmark = pytest.mark.usefixtures("one_thread")


def random_states(seed: int, lengths: list[int], dim: int = 6) -> States:
    make = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    tokens = (torch.randn(len(lengths), max(lengths), dim, generator=make) * mask[:, :, None]).requires_grad_()
    return States(tokens.detach().mean(dim=1), tokens, mask)


def built(labels: int = 9, dim: int = 6, layers: tuple[int, ...] = (5, 4)) -> tuple[BuiltAttention, Toy]:
    toy = Toy()
    targets = label_matrix(np.array([0, 1, 2]), np.array([0, labels - 1]), (2, labels))
    points = Points(Ordered(np.ones((2, 1), np.int32)), targets, no_pairs(targets.shape), np.ones(2, np.float32))
    made = BuiltAttention(LabelAttention(layers=layers), points, dim, toy)
    moved(made.module)
    return made, toy


def literal(made: BuiltAttention, states: States, rows: torch.Tensor) -> torch.Tensor:
    """Score one text and one label after the other, as methods §5.12 has it."""
    out = []
    for words, mask in zip(states.tokens, states.mask, strict=True):
        own = words[mask]
        for row in rows:
            context = functional.softmax(own @ row, dim=0) @ own if len(own) else torch.zeros(len(row))
            for place, layer in enumerate(made.module):
                context = layer(functional.relu(context) if place else context)
            out.append(context[0])
    return torch.stack(out).reshape(len(states.tokens), len(rows))


@pytest.mark.parametrize("lengths", [[3, 5], [1, 1], [0, 4], [2, 7, 4]])
@pytest.mark.parametrize("layers", [(5,), (5, 4)])
def test_scores_and_gradients_are_those_of_the_formula(lengths, layers):
    made, toy = built(layers=layers)
    states, other = (random_states(1, lengths) for _ in range(2))
    labels = np.array([0, 3, 8])
    scores = made(states, labels, None, toy.step())
    rows = torch.from_numpy(made.rows.values.numpy()[labels].copy()).requires_grad_()
    expected = literal(made, other, rows)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn(scores.shape, generator=torch.Generator().manual_seed(5))
    (scores * weight).sum().backward()
    ours = [part.weight.grad.clone() for part in made.module]
    made.module.zero_grad()
    (expected * weight).sum().backward()
    torch.testing.assert_close(states.tokens.grad, other.tokens.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(made.rows.gathered[0][1].grad, rows.grad, rtol=1e-3, atol=1e-4)
    for part, gradient in zip(made.module, ours, strict=True):
        torch.testing.assert_close(gradient, part.weight.grad, rtol=1e-3, atol=1e-4)


def test_many_labels_are_scored_in_parts_with_the_same_gradient(monkeypatch):
    made, toy = built()
    results = []
    for cells in (10**6, 20):
        monkeypatch.setattr(attention, "CELLS", cells)
        states = random_states(2, [3, 5])
        scores = made(states, np.arange(9), None, toy.step())
        scores.square().sum().backward()
        results.append((scores.detach(), states.tokens.grad, made.rows.gathered[-1][1].grad))
        made.module.zero_grad()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_contexts_of_two_texts_are_mixed_as_vectors_are():
    states = random_states(3, [3, 4])
    weights = torch.rand(2, 5, 4) * states.mask[:, None]
    layer = torch.randn(7, 6)
    share, partners = torch.tensor([0.3, 0.9]), torch.tensor([1, 0])
    mixed = Contexts(np.arange(5), weights, states.tokens, share, partners).through(lambda x: x @ layer.T)
    vectors = weights @ states.tokens
    vectors = share[:, None, None] * vectors + (1 - share)[:, None, None] * vectors[partners]
    torch.testing.assert_close(mixed, vectors @ layer.T, rtol=1e-4, atol=1e-5)


def test_what_is_behind_the_first_layer_is_changed_once():
    made, toy = built(layers=(5, 4))
    calls = []

    class Counting:
        acts_on = ("hidden",)

        def apply(self, place, value, step):
            calls.append(value.shape)
            return value

    made(random_states(1, [3, 5]), np.arange(9), None, toy.step(augmentations=(Counting(),)))
    assert calls == [(2, 9, 5)]


def test_a_text_is_read_as_if_it_were_alone():
    toy, words = Toy(), Sequences.fit(TEXTS)
    settings = Recurrent(dim=5, hidden=4, max_tokens=6, init="random", dropout=0.0, embedding_dropout=0.0)
    tower = RecurrentTower(settings, start_of(words, 5), toy)
    moved(tower.module)
    inputs = settings.inputs(words, [*TEXTS, ""])
    states = tower(inputs, None)
    frozen = tower.freeze(words)
    tokens, mask = frozen.tokens(inputs)
    np.testing.assert_allclose(tokens, states.tokens.detach().numpy(), atol=1e-5)
    np.testing.assert_array_equal(mask, states.mask.numpy())
    np.testing.assert_allclose(frozen.encode(Query([*TEXTS, ""])), states.pooled.detach().numpy(), atol=1e-5)
    assert not states.pooled[-1].any()
    first = tower.module.first
    for place in (place for place, text in enumerate(TEXTS) if text):
        one = inputs.take(np.array([place]))
        length = int((one.ids > 0).sum())
        embedded = tower.embed(Ordered(one.ids[:, :length]))
        alone, _ = tower.module.lstm(embedded, (first[0], first[1]))
        torch.testing.assert_close(states.tokens[place, :length], alone[0], rtol=1e-4, atol=1e-5)
        assert not states.tokens[place, length:].any()
        assert frozen.pieces(Query([TEXTS[place]])) == [str(words.vocabulary[i]) for i in one.ids[0, :length]]


SLOWLY = {"training__epochs": 80, "training__learning_rate": 0.02, "training__dense_learning_rate": 0.01}


@pytest.mark.parametrize("levels, rates", [([], {}), ([3], SLOWLY), ([2, 4], SLOWLY)])
def test_it_learns_and_comes_back(levels, rates, tmp_path):
    train = board()
    model = lt.fit(small("attentionxml", sampler__levels=levels, **rates), train)
    assert lt.evaluate(model, train).values["P@1"] > 90
    model.save(tmp_path / "run")
    loaded = Model.load(tmp_path / "run")
    assert same(loaded, model)
    assert loaded.predict([""], 3).labels.tolist() == [[-1] * 3]
    top = loaded.predict(list(train.texts[:20]), 30)
    rows, places = np.nonzero(top.labels >= 0)
    order = np.lexsort((top.labels[rows, places], rows))
    scorer, query = loaded.vectors, Query(list(train.texts[:20]))
    pairs = scorer.pairs(query, rows[order], top.labels[rows, places][order])
    np.testing.assert_allclose(pairs, top.scores[rows, places][order], rtol=1e-4, atol=1e-4)
    assert scorer.operations() > 0


def test_few_pairs_are_scored_in_parts_too(monkeypatch):
    from longtail.scorers import attention as served

    model = lt.fit(small("attentionxml", training__epochs=1), board())
    query, rows, labels = Query(["word1 filler1", "word2", ""]), np.repeat([0, 1], 30), np.tile(np.arange(30), 2)
    whole = model.vectors.by_rows(query, rows, labels)
    monkeypatch.setattr(served, "CELLS", 50)
    np.testing.assert_allclose(model.vectors.by_rows(Query(query.texts), rows, labels), whole, rtol=1e-5, atol=1e-6)
    assert model.vectors.known(query).tolist() == [[True], [False], [False]]
    one = model.vectors.by_rows(query, np.ones(30, np.int64), np.arange(30))
    assert np.ptp(one) < 1e-5  # of one word all labels see the same
    assert (model.predict(["word2"], 3).labels == -1).all()
    assert model.vectors.tower.operations() > 1000


@pytest.fixture(scope="module")
def tree():
    """A recipe with two levels of a tree, 28 steps for each stage, and what it learns without a stop."""
    recipe = small("attentionxml+tailmix", sampler__levels=[2, 4], training__epochs=4, training__save_seconds=0)
    recipe = recipe.override("levels.training.epochs", 4).override("levels.training.save_seconds", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield recipe, lt.fit(recipe, board())
    torch.set_num_threads(before)


@pytest.mark.parametrize("step", [5, 40, 70])
def test_a_tree_goes_on_after_a_stop(step, tree, tmp_path, no_fsync):
    class Stop(Exception):
        pass

    seen = []

    def watch(*_):
        seen.append(0)
        if len(seen) == step:
            raise Stop

    recipe, whole = tree
    with pytest.raises(Stop):
        lt.fit(recipe, board(), scratch=tmp_path, progress=watch)
    assert same(lt.fit(recipe, board(), scratch=tmp_path), whole)


def test_clusters_of_another_stage_are_not_those_of_the_tree():
    recipe = small("attentionxml", sampler__levels=[3], training__epochs=2, levels__training__epochs=2)
    phase = named("phase", objectives=(recipe.objectives[0].override("sampler", "all_labels"),))
    recipe = replace(recipe, stages=(phase, named("recluster", num_clusters=8), *recipe.stages))
    lt.fit(recipe.override("phase.training.epochs", 1), board(60))


def test_it_refuses_encoders_without_words_heads_and_other_layers():
    with pytest.raises(RecipeError, match="encoder=recurrent"):
        lt.find_recipe("attentionxml").override("encoder", "bag").check()
    with pytest.raises(RecipeError, match="head=none"):
        lt.find_recipe("attentionxml").override("head", "residual").check()
    with pytest.raises(RecipeError, match=r"classifier\.layers"):
        lt.find_recipe("attentionxml").override("classifier.layers", []).check()
    with pytest.raises(RecipeError, match="needs a stage that trains its levels"):
        lt.find_recipe("attentionxml").override("levels", None).check()
    with pytest.raises(RecipeError, match="must widen"):
        lt.find_recipe("attentionxml").override("sampler.levels", [4, 2]).check()
    with pytest.raises(RecipeError, match=r"2\^9 nodes above 30 labels: .* up to 4"):
        lt.fit(small("attentionxml", sampler__levels=[9]), board())


def test_damaged_layers_are_refused(tmp_path):
    model = lt.fit(small("attentionxml", sampler__levels=[], training__epochs=1), board())
    arrays = model.vectors.arrays()
    classifier = model.recipe.objectives[0].classifier
    tower = model.vectors.tower
    assert classifier.open(arrays, tower, None, 32).layers
    with pytest.raises(ModelError, match=r"attention\.0\.weight is damaged"):
        classifier.open(arrays | {"attention.0.weight": np.zeros((3, 3), np.float32)}, tower, None, 32)


def test_explanations_say_what_a_label_looks_at(tmp_path):
    train = board()
    lt.fit(small("attentionxml", sampler__levels=[], training__epochs=5), train).save(tmp_path / "run")
    index = lt.Index.load(tmp_path / "run")
    explanation = index.explanation("word3 filler1", 3)
    assert [word.word for word in explanation.looked] == ["word3", "filler1"]
    assert sum(word.score for word in explanation.looked) == pytest.approx(1, abs=1e-3)
    assert explanation.to_dict()["looked"][0]["word"] == "word3"
    lt.fit("knn", train).save(tmp_path / "knn")
    assert lt.Index.load(tmp_path / "knn").explanation("word3 filler1", 3).looked == ()


def test_the_command_marks_what_labels_look_at(tmp_path, capsys):
    train = board()
    lt.fit(small("attentionxml", sampler__levels=[], training__epochs=5), train).save(tmp_path / "run")
    page = tmp_path / "page.html"
    command = ["longtail", "explain", str(tmp_path / "run")]
    with (
        patch.object(sys, "argv", [*command, "word3 <filler1>", "--html", str(page)]),
        pytest.raises(SystemExit, match="0"),
    ):
        main()
    shown = capsys.readouterr().out
    assert shown.count(" looks at ") == 5
    assert "word3" in shown
    html = page.read_text(encoding="utf-8")
    assert html.count("<h2>") == 5
    assert html.count("<mark ") == 10
    none = [*command, "", "--label", "3", "--html", str(tmp_path / "none.html")]
    with patch.object(sys, "argv", none), pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 3
    assert "look at no words of this text" in capsys.readouterr().err
    lt.fit("knn", train).save(tmp_path / "knn")
    with (
        patch.object(sys, "argv", ["longtail", "explain", str(tmp_path / "knn"), "word3", "--html", str(page)]),
        pytest.raises(SystemExit) as stopped,
    ):
        main()
    assert stopped.value.code == 3
    assert "--html is for attentionxml and laroberta" in capsys.readouterr().err


def test_long_and_empty_texts_and_labels_without_points(caplog):
    train = board(60)
    texts = train.texts.tolist()
    texts[0], texts[1:9] = "word1 " * 100_000, [""] * 8
    targets = train.targets.copy()
    targets.data[targets.indices == 7] = 0
    targets.eliminate_zeros()  # label 7 has no point
    recipe = small("attentionxml+tailmix", sampler__levels=[], training__epochs=2, training__batch_size=8)
    with caplog.at_level(logging.WARNING, "longtail"):
        model = lt.fit(recipe, replace(train, texts=Texts(texts), targets=targets))
    assert f"1 of 60 texts are longer than {recipe.encoder.max_tokens} words" in caplog.text
    top = model.predict([texts[0], "", "word2 word3"], 3)
    assert np.isfinite(top.scores[[0, 2]]).all()
    assert (top.labels[1] == -1).all()
