"""TailMix and the mix-ups that it is compared with, against slow and literal versions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from encoders.toy import Toy
from small import board, networks, short, small

import longtail as lt
from longtail.augment.mixups import DepthMixer, HiddenMix, LayerMixer, TMix
from longtail.augment.ssmix import SSMix, mixed_spans, windows
from longtail.augment.tailmix import TailMix, TailMixer, drawn_targets
from longtail.classifiers.attention import Contexts
from longtail.encoders.inputs import Ordered
from longtail.errors import RecipeError
from longtail.labels.propensity import Propensity
from longtail.parts import TARGETS, Batch, Candidates, States
from longtail.types import no_pairs

pytestmark = pytest.mark.usefixtures("one_thread")
LABELS, WORDS, DIM = 8, 5, 4
CHANGES = [{}, {"literal": True}, {"graph": False}, {"targets": 3}, {"targets": 3, "alpha": 2}]


def case(seed: int, points: int = 6, *, candidates: int = LABELS):
    """Draw targets, a graph in which label 7 has no neighbours, and what labels see of texts."""
    draw = np.random.default_rng(seed)
    targets = sp.csr_array((draw.random((points, LABELS)) < 0.35).astype(np.float32))
    graph = draw.random((LABELS, LABELS)) < 0.4
    graph |= graph.T
    graph[7] = graph[:, 7] = False
    np.fill_diagonal(graph, False)
    weights = torch.from_numpy(draw.dirichlet(np.ones(WORDS), (points, candidates))).float()
    states = torch.from_numpy(draw.normal(size=(points, WORDS, DIM))).float()
    labels = np.sort(draw.permutation(LABELS)[:candidates]).astype(np.int64)
    inverse = Propensity().inverse(draw.integers(0, 50, LABELS), 1000)
    return targets, sp.csr_array(graph.astype(np.float32)), Contexts(labels, weights, states), inverse


def literal(settings: TailMix, graph, contexts: Contexts, targets: np.ndarray, seen: np.ndarray, drawn, shares):
    """Mix the contexts of one target after the other, as the algorithm of the paper has it."""
    vectors = (contexts.weights @ contexts.states).numpy().astype(np.float64)
    targets, places = targets.copy(), {label: place for place, label in enumerate(contexts.labels.tolist())}
    for rows, labels in drawn:
        shares_left = iter(next(shares))
        for row, label in zip(rows, labels, strict=True):
            share = next(shares_left)
            near = [t for t in range(LABELS) if graph[label, t]] if settings.graph else list(range(LABELS))
            near = [t for t in near if t in places and t != label and seen[row, places[t]]]
            if label not in places or not seen[row, places[label]] or not near:
                continue
            own = vectors[row, places[label]].copy()
            partner = min(near, key=lambda t: (np.linalg.norm(own - vectors[row, places[t]]), t))
            vectors[row, places[label]] = share * own + (1 - share) * vectors[row, places[partner]]
            targets[row, places[label]] *= share
            was = targets[row, places[partner]]
            targets[row, places[partner]] = 1 - share if settings.literal else max(was, 1 - share)
    return vectors, targets


class Shares:
    """Chance whose shares are known: one for every point of a round, whether it is mixed or not."""

    def __init__(self, seed: int) -> None:
        self.draw, self.drawn = np.random.default_rng(seed), []

    def beta(self, a: float, b: float, count: int) -> np.ndarray:
        self.drawn.append(self.draw.beta(a, b, count).astype(np.float32))
        return self.drawn[-1]

    def random(self, shape):
        return self.draw.random(shape)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("candidates", [LABELS, 5])
@pytest.mark.parametrize("odd", [False, True])
def test_tailmix_is_the_algorithm_of_the_paper(seed, changes, candidates, odd):
    """Also with soft targets and candidates that some points do not see."""
    targets, graph, contexts, inverse = case(seed, candidates=candidates)
    draw = np.random.default_rng(seed + 100)
    seen = draw.random(targets.shape)[:, : len(contexts.labels)] < (0.6 if odd else 2)
    if odd:
        targets.data *= draw.choice([0.2, 0.7, 1.0], targets.nnz).astype(np.float32)
    settings = TailMix(**changes)
    mixer = TailMixer(settings, inverse, graph)
    drawn = drawn_targets(targets, inverse, settings.targets, np.random.default_rng(seed))
    wanted = torch.from_numpy(targets.toarray()[:, contexts.labels].copy())
    chance = Shares(seed)
    mask = torch.from_numpy(seen) if odd else None
    step = SimpleNamespace(draw=chance, memory={TARGETS: (wanted, mask), mixer: drawn})
    mixed = mixer.apply("contexts", contexts, step)
    vectors, expected = literal(
        settings, graph.toarray(), contexts, targets.toarray()[:, contexts.labels], seen, drawn, iter(chance.drawn)
    )
    np.testing.assert_allclose((mixed.weights @ mixed.states).numpy(), vectors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(wanted.numpy(), expected, rtol=1e-5)


def test_rare_labels_are_drawn_more_often_and_never_twice():
    targets = sp.csr_array(np.array([[1, 1, 1, 0]] * 2000, np.float32))
    inverse = np.array([1.0, 2.0, 3.0, 9.0])
    (rows, first), (_, second) = drawn_targets(targets, inverse, 2, np.random.default_rng(0))
    assert (first != second).all() and len(rows) == 2000
    expected = np.exp(inverse[:3]) / np.exp(inverse[:3]).sum()
    np.testing.assert_allclose(np.bincount(first, minlength=3) / 2000, expected, atol=0.04)
    assert drawn_targets(no_pairs((3, 4)), inverse, 2, np.random.default_rng(0)) == []


def test_targets_and_neighbours_join_the_candidates_as_far_as_is_allowed():
    _, graph, contexts, inverse = case(0)
    label = int(np.argmax(np.diff(graph.indptr)))
    near = graph[[label]].indices
    before = Candidates(np.array([7], np.int64))
    for added in (0, 1, 99):
        mixer = TailMixer(TailMix(added=added), inverse, graph)
        step = SimpleNamespace(draw=np.random.default_rng(0), memory={mixer: [(np.array([0]), np.array([label]))]})
        after = mixer.apply("candidates", before, step).labels
        assert {7, label} <= set(after) <= {7, label, *near.tolist()}
        assert len(after) == 2 + min(added, len(near))
        assert (np.diff(after) > 0).all()
        masked = Candidates(before.labels, torch.ones(1, 1, dtype=torch.bool))
        assert mixer.apply("candidates", masked, step) is masked
    plain = TailMixer(TailMix(mix=False), inverse, graph)
    wanted = torch.ones(6, LABELS)
    step = SimpleNamespace(memory={TARGETS: (wanted, None), plain: [(np.array([0]), np.array([label]))]})
    assert plain.apply("contexts", contexts, step) is contexts
    assert plain.apply("contexts", contexts, SimpleNamespace(memory={plain: []})) is contexts  # clusters


def test_partners_are_drawn_at_random_without_similarity():
    _, graph, contexts, inverse = case(2)
    mixer = TailMixer(TailMix(similar=False), inverse, graph)
    label = int(np.argmax(np.diff(graph.indptr)))
    found = set()
    for seed in range(60):
        step = SimpleNamespace(draw=np.random.default_rng(seed))
        of = np.array([0]), np.array([label]), np.array([label])
        found |= set(mixer.partners(contexts, of, np.ones((6, LABELS), bool), step).tolist())
    assert found == set(graph[[label]].indices.tolist())


def test_it_needs_labels_that_look_at_words():
    with pytest.raises(RecipeError, match=r"attentionxml\+tailmix"):
        lt.find_recipe("astec+tailmix").check()
    with pytest.raises(RecipeError, match="encoder=transformer"):
        lt.find_recipe("attentionxml+tmix").check()
    with pytest.raises(RecipeError, match="encoder=recurrent"):
        lt.find_recipe("astec+ssmix").check()
    with pytest.raises(RecipeError, match=r"\+ssmix\+wordmix"):
        lt.find_recipe("attentionxml+wordmix+ssmix").check()


def test_several_go_together():
    recipe = small("attentionxml+ssmix+hiddenmix+tailmix+gandalf", training__epochs=2)
    assert lt.fit(recipe, board(100)).predict(["word1 filler1"], 3).labels.shape == (1, 3)


@pytest.mark.parametrize("name", ["tailmix", "wordmix", "hiddenmix", "ssmix"])
@pytest.mark.parametrize("levels", [[], pytest.param([3], marks=pytest.mark.slow)])
def test_recipes_learn_with_it(name, levels):
    train = board()
    model = lt.fit(small(f"attentionxml+{name}", sampler__levels=levels), train)
    assert lt.evaluate(model, train).values["P@1"] > 90


def test_an_ensemble_may_have_members_without_it():
    recipe = small("attentionxml+tailmix", ensemble=3, tailmix__members="odd")
    assert [len(member.augment) for member in recipe.members()] == [0, 1, 0]
    assert [len(member.augment) for member in recipe.override("tailmix.members", "all").members()] == [1, 1, 1]


def test_hiddenmix_mixes_where_it_was_drawn():
    mixer = DepthMixer(HiddenMix(), ("embeddings", "states", "contexts", "hidden"))
    toy, seen = Toy(), set()
    for seed in range(40):
        step = toy.step(seed)
        targets = sp.csr_array(np.eye(3, dtype=np.float32))
        batch = Batch(np.arange(3), Ordered(np.ones((3, 2), np.int32)), targets, no_pairs((3, 3)), np.ones(3))
        mixed_batch = mixer.apply("batch", batch, step)
        depth, mixed = step.memory[mixer, "depth"], step.memory[mixer]
        seen.add(depth)
        share, partners = torch.from_numpy(mixed.share), torch.from_numpy(mixed.points)
        np.testing.assert_allclose(
            mixed_batch.targets.toarray(),
            mixed.share[:, None] * np.eye(3) + (1 - mixed.share)[:, None] * np.eye(3)[mixed.points], atol=1e-6,
        )  # fmt: skip
        values = torch.randn(3, 2, 4)
        wide = share[:, None, None]
        blend = wide * values + (1 - wide) * values[partners]
        for place in ("embeddings", "hidden"):
            torch.testing.assert_close(mixer.apply(place, values, step), blend if place == depth else values)
        mask = torch.tensor([[True, False], [True, True], [True, False]])
        states = mixer.apply("states", States(values.mean(dim=1), values, mask), step)
        torch.testing.assert_close(states.tokens, blend if depth == "states" else values)
        assert torch.equal(states.mask, mask | mask[partners] if depth == "states" else mask)
        contexts = Contexts(np.arange(2), torch.rand(3, 2, 2), values)
        out = mixer.apply("contexts", contexts, step).through(lambda x: x)
        plain = contexts.weights @ values
        torch.testing.assert_close(out, wide * plain + (1 - wide) * plain[partners] if depth == "contexts" else plain)
    assert seen == {"embeddings", "states", "contexts", "hidden"}


def test_tmix_mixes_behind_one_layer_and_keeps_the_larger_share():
    mixer, toy, seen = LayerMixer(TMix()), Toy(), set()
    for seed in range(30):
        step = toy.step(seed)
        batch = Batch(np.arange(9), Ordered(np.ones((9, 2), np.int32)), sp.csr_array(np.eye(9, dtype=np.float32)),
                      no_pairs((9, 9)), np.ones(9))  # fmt: skip
        mixer.apply("batch", batch, step)
        mixed = step.memory[mixer]
        assert (mixed.share >= 0.5).all()
        values = torch.randn(9, 2, 3)
        share = torch.from_numpy(mixed.share)[:, None, None]
        changed = [n for n in range(1, 7) if not torch.equal(mixer.apply("layers", (n, 6, values), step)[2], values)]
        assert len(changed) == 1
        seen.add(changed[0])
        out = mixer.apply("layers", (changed[0], 6, values), step)[2]
        torch.testing.assert_close(out, share * values + (1 - share) * values[torch.from_numpy(mixed.points)])
    assert seen == {4, 6}  # of six layers, as 7, 9 and 12 of twelve: 3.5, 4.5 and 6


@pytest.mark.parametrize("frame", [0, 1])
def test_spans_are_exchanged_as_in_the_slow_version(frame):
    draw = np.random.default_rng(0)
    lengths = [9, 4, 30, 1, 0, 22]
    ids = np.zeros((6, 34), np.int32)
    for row, length in enumerate(lengths):
        ids[row, : length + 2 * frame] = draw.integers(1, 99, length + 2 * frame)
    saliency = draw.random(ids.shape).astype(np.float32)
    first, second = np.array([0, 2, 5, 3, 4, 1]), np.array([2, 5, 0, 1, 0, 3])
    out, share = mixed_spans(ids, saliency, first, second, 0.1, frame)
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        width = max(1, int(0.1 * lengths[one]))
        if lengths[one] <= width or lengths[two] < width:
            assert share[place] == 1
            np.testing.assert_array_equal(out[place], ids[one])
            continue

        def span(row: int, best, width=width):
            starts = range(frame, frame + lengths[row] - width + 1)
            return best(starts, key=lambda start: saliency[row, start : start + width].mean())

        expected = ids[one].copy()
        least, most = span(one, min), span(two, max)
        expected[least : least + width] = ids[two, most : most + width]
        np.testing.assert_array_equal(out[place], expected)
        assert share[place] == pytest.approx(1 - width / lengths[one])
    np.testing.assert_allclose(windows(np.array([1, 2, 6], np.float32), 2), [1.5, 4])


def test_saliency_is_the_gradient_of_the_loss_at_each_word():
    train = board(40)
    recipe = short("attentionxml", sampler__levels=[], encoder__dropout=0.0, encoder__embedding_dropout=0.0)
    network = networks(recipe, train)["training"]
    batch = network.points.take(np.arange(8))
    found = network.saliency(batch, np.random.default_rng(0))
    assert found.shape == (8, 4) and found.max(axis=1) == pytest.approx(np.ones(8))
    assert not found[:, 2:].any()  # padding
    assert all(table.gradients() == [] for table in network.tables.values())
    assert all(part.grad is None for part in network.dense.parameters())


def test_ssmix_adds_the_mixed_texts_to_the_batch():
    train = board(40)
    recipe = short("attentionxml", sampler__levels=[])
    network = networks(recipe, train)["training"]
    mixer = SSMix().prepare(network.fit)
    batch = network.points.take(np.arange(7))
    step = SimpleNamespace(draw=np.random.default_rng(0), network=network)
    mixed = mixer.apply("batch", batch, step)
    assert len(mixed.rows) == len(mixed.inputs) == mixed.targets.shape[0] == len(mixed.weights) == 13
    np.testing.assert_array_equal(mixed.inputs.ids[:7], batch.inputs.ids)
    np.testing.assert_array_equal(mixed.targets[:7].toarray(), batch.targets.toarray())
    assert mixed.targets[7:].toarray().sum(axis=1) == pytest.approx(np.full(6, 2.0))
    alone = network.points.take(np.arange(1))
    assert mixer.apply("batch", alone, step) is alone
