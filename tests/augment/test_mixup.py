"""MixUp and Label-MixUp against their formulas, and what all mixers of batches have in common."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.augment.gandalf import Gandalf
from longtail.augment.labelmix import LabelMix
from longtail.augment.mixed import EmbeddingMixer, blended, drawn_labels, rows_of
from longtail.augment.mixup import LabelMixUp, ManifoldMixUp, MixUp
from longtail.data.dataset import Labels, Split, from_rows
from longtail.errors import DataError, RecipeError
from longtail.parts import Batch, Prepared, States, Step
from longtail.recipe import augmentations, find_recipe
from longtail.types import no_pairs

ROWS = st.lists(st.lists(st.integers(0, 5), max_size=4, unique=True), min_size=1, max_size=12)
PARTS = [MixUp(), MixUp(alpha=3.0), LabelMixUp(), LabelMixUp(graph="walk", alpha=1.0), LabelMix(probability=0.7)]
PARTS.append(ManifoldMixUp())


def small(rows: list[list[int]], seed: int | None = None) -> Split:
    split = from_rows(
        {"train": ([f"point {n}" for n in range(len(rows))], rows)}, label_texts=[f"label {n}" for n in range(6)]
    ).train
    if seed is None:
        return split
    values = np.random.default_rng(seed).choice([0.06, 0.3, 1.0], split.targets.nnz).astype(np.float32)
    soft = sp.csr_array((values, split.targets.indices, split.targets.indptr), shape=split.targets.shape)
    return replace(split, targets=soft)


def mixer_of(part, split: Split, seed: int = 0):
    """Make an augmentation ready as a training does."""
    return part.prepare(SimpleNamespace(train=split, seed=seed))


@settings(deadline=None)  # the first case pays for imports and threads
@given(ROWS, st.integers(0, 99), st.booleans())
@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.part}-{getattr(part, 'alpha', '')}")
def test_a_mixed_batch_is_a_batch(part, rows, seed, softened):
    split = small(rows, seed if softened else None)
    before = split.targets.toarray()
    mixer = mixer_of(part, split, seed)
    mixed, same = (mixer.draw(split.targets, np.random.default_rng(seed)) for _ in range(2))
    after = mixed.targets.toarray()
    np.testing.assert_array_equal(after, same.targets.toarray())
    np.testing.assert_array_equal(split.targets.toarray(), before)
    assert mixed.targets.shape == split.targets.shape
    assert mixed.targets.dtype == np.float32
    assert mixed.targets.indices.dtype == np.int32
    assert mixed.targets.has_canonical_format
    assert ((mixed.targets.data > 0) & (mixed.targets.data <= 1)).all()
    np.testing.assert_array_equal(after[~before.any(axis=1)], 0)  # points without labels stay as they are
    if mixed.share is not None:
        assert mixed.share.dtype == np.float32
        assert ((mixed.share >= 0) & (mixed.share <= 1)).all()
        np.testing.assert_array_equal(after[mixed.share == 1], before[mixed.share == 1])
        np.testing.assert_array_equal(mixed.share[~before.any(axis=1)], 1)


@settings(deadline=None)
@given(ROWS, st.integers(0, 99), st.booleans())
def test_mixup_follows_the_formula(rows, seed, softened):
    split = small(rows, seed if softened else None)
    mixed = mixer_of(MixUp(), split).draw(split.targets, np.random.default_rng(seed))
    before, share = split.targets.toarray(), mixed.share[:, None]
    assert sorted(mixed.points.tolist()) == list(range(len(rows)))
    assert mixed.labels is mixed.followed is None
    np.testing.assert_allclose(
        mixed.targets.toarray(), share * before + (1 - share) * before[mixed.points], rtol=1e-5, atol=1e-7
    )


@settings(deadline=None)
@given(ROWS, st.integers(0, 99), st.booleans(), st.sampled_from(["conditionals", "walk", "glas"]))
def test_label_mixup_follows_the_formula(rows, seed, softened, graph):
    split = small(rows, seed if softened else None)
    part = LabelMixUp(graph=graph)
    mixed = mixer_of(part, split, seed).draw(split.targets, np.random.default_rng(seed))
    whole = part.weights(split.targets, threshold=part.threshold, seed=seed).toarray()
    before = split.targets.toarray()
    assert mixed.points is mixed.followed is None
    for row, label in enumerate(mixed.labels):
        expected = before[row]
        if label >= 0:
            assert before[row, label] > 0
            assert whole[label, label] == 1
            expected = mixed.share[row] * before[row] + (1 - mixed.share[row]) * whole[label]
        else:
            assert not before[row].any()
        np.testing.assert_allclose(mixed.targets.toarray()[row], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("part", [MixUp(alpha=2.0), LabelMixUp(alpha=2.0)], ids=lambda part: part.part)
def test_shares_are_drawn_from_beta_for_each_point(part):
    split = small([[0, 1], [2]] * 4000)
    share = mixer_of(part, split).draw(split.targets, np.random.default_rng(0)).share
    assert share.mean() == pytest.approx(1 / 2, abs=0.01)
    assert share.var() == pytest.approx(1 / 20, abs=0.005)  # of Beta(2, 2)


def test_labels_are_drawn_as_labelmix_draws_them():
    split = small([[0, 1]] * 4000 + [[0]] * 12000)
    mix, mixup = LabelMix(probability=1), LabelMixUp()
    np.testing.assert_array_equal(mix.mixer(split).weights, mixup.mixer(split).weights)
    labels = mixup.mixer(split).draw(split.targets[:4000], np.random.default_rng(0)).labels
    assert abs((labels == 1).mean() - 2 / 3) < 0.03


@given(ROWS, st.integers(0, 99))
def test_only_labels_of_the_point_are_drawn(rows, seed):
    targets = small(rows, seed).targets
    labels = drawn_labels(targets, np.linspace(0.1, 1, 6), np.random.default_rng(seed))
    for row, label in zip(rows, labels.tolist(), strict=True):
        assert label in row or (label == -1 and not row)


@given(ROWS, ROWS, st.integers(0, 99))
def test_a_share_of_one_or_none_gives_one_side(first, second, seed):
    size = min(len(first), len(second))
    own, other = (small(rows[:size], seed).targets for rows in (first, second))
    for share, side in ((1, own), (0, other)):
        mixed = blended(own, other, np.full(size, share, np.float32))
        np.testing.assert_array_equal(mixed.toarray(), side.toarray())
        assert mixed.nnz == side.nnz


def test_rows_of_a_graph_are_gathered():
    graph = sp.csr_array(np.arange(9, dtype=np.float32).reshape(3, 3))
    rows = rows_of(graph, np.array([2, -1, 0, 2]))
    assert rows.toarray().tolist() == [[6, 7, 8], [0, 0, 0], [0, 1, 2], [6, 7, 8]]


@pytest.mark.parametrize("part", PARTS[::2], ids=lambda part: part.part)
def test_mixers_of_batches_share_a_protocol_and_take_empty_batches(part):
    mixer: Prepared = mixer_of(part, small([[0]]))
    mixes_embeddings = isinstance(mixer, EmbeddingMixer)
    assert mixes_embeddings == (part.part != "labelmix")
    assert part.acts_on == mixer.acts_on == (("batch", "embeddings") if mixes_embeddings else ("batch",))
    mixed = mixer.draw(no_pairs((0, 6)), np.random.default_rng(0))
    assert mixed.targets.shape == (0, 6)


def test_what_makes_points_has_nothing_to_prepare_for_steps():
    assert Gandalf().acts_on == ("dataset",)
    assert mixer_of(Gandalf(), small([[0]])) is None


NAMES = torch.arange(12.0).reshape(6, 2) + 100  # the embeddings of label texts


class Names:
    def take(self, rows):
        return rows


@pytest.mark.parametrize("shape", [(4, 2), (4, 3, 2)])
@pytest.mark.parametrize("part", [MixUp(), LabelMixUp()], ids=lambda part: part.part)
def test_embeddings_are_mixed_with_those_of_the_partners_that_gave_the_targets(part, shape):
    split = small([[0, 1], [2], [], [3, 4]])
    mixer = mixer_of(part, split)
    mixed = mixer.draw(split.targets, np.random.default_rng(7))

    def embed(rows):
        return NAMES[rows] if len(shape) == 2 else NAMES[rows][:, None].expand(-1, 3, -1)

    network = SimpleNamespace(points=SimpleNamespace(names=Names()), tower=SimpleNamespace(embed=embed))
    step = Step(np.random.default_rng(7), 0.5, network, [mixer])
    points = Batch(np.arange(4), None, split.targets, split.excluded, np.ones(4, np.float32))
    batch = step.apply("batch", points)
    np.testing.assert_array_equal(batch.targets.toarray(), mixed.targets.toarray())
    assert points.targets is split.targets
    embedded = torch.arange(float(np.prod(shape))).reshape(shape)
    partners = embedded[mixed.points] if part.part == "mixup" else embed(np.maximum(mixed.labels, 0))
    share = torch.from_numpy(mixed.share).reshape(-1, *[1] * (len(shape) - 1))
    torch.testing.assert_close(step.apply("embeddings", embedded), share * embedded + (1 - share) * partners)
    assert torch.equal(step.apply("embeddings", embedded)[2], embedded[2])  # it has no labels
    assert step.apply("states", embedded) is embedded  # a place that it does not act on
    assert step.plain().apply("embeddings", embedded) is embedded  # label texts


def test_manifold_mixup_mixes_what_the_encoder_made_of_the_partners_that_gave_the_targets():
    split = small([[0, 1], [2], [], [3, 4]])
    mixer = mixer_of(ManifoldMixUp(), split)
    mixed = mixer_of(MixUp(), split).draw(split.targets, np.random.default_rng(7))  # drawn as MixUp draws
    step = Step(np.random.default_rng(7), 0.5, None, [mixer])
    batch = step.apply("batch", Batch(np.arange(4), None, split.targets, split.excluded, np.ones(4, np.float32)))
    np.testing.assert_array_equal(batch.targets.toarray(), mixed.targets.toarray())
    states = States(torch.randn(4, 3), tokens=torch.randn(4, 2, 3))
    share = torch.from_numpy(mixed.share)[:, None]
    made = step.apply("states", states)
    torch.testing.assert_close(made.pooled, share * states.pooled + (1 - share) * states.pooled[mixed.points])
    assert made.tokens is states.tokens
    embedded = torch.randn(4, 2)
    assert step.apply("embeddings", embedded) is embedded
    assert step.plain().apply("states", states) is states  # label texts


def test_the_graph_comes_from_the_original_points_and_needs_label_texts():
    split = small([[0, 1], [1, 2], [3]])
    plain, more = (LabelMixUp().mixer(part) for part in (split, Gandalf().augment(split, seed=0)))
    np.testing.assert_array_equal(plain.weights, more.weights)
    np.testing.assert_array_equal(plain.graph.toarray(), more.graph.toarray())
    with pytest.raises(DataError, match=r"no texts.*Label-MixUp"):
        LabelMixUp().mixer(replace(split, labels=Labels(6)))


def test_settings_are_checked_and_names_compose():
    assert {"mixup", "labelmixup", "synonyms"} <= set(augmentations())
    recipe = find_recipe("knn+mixup+labelmixup").override("augment.0.alpha", 0.2)
    assert recipe.augment == (MixUp(alpha=0.2), LabelMixUp())
    with pytest.raises(RecipeError, match=r"mixup\.alpha"):
        recipe.override("augment.0.alpha", 0)
