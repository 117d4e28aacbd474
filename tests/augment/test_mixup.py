"""MixUp and Label-MixUp against their formulas, and what all mixers of batches have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.augment.gandalf import Gandalf
from longtail.augment.labelmix import LabelMix
from longtail.augment.mixed import Mixes, blended, drawn_labels, rows_of
from longtail.augment.mixup import LabelMixUp, MixUp
from longtail.data.dataset import Labels, Split, from_rows
from longtail.errors import DataError, RecipeError
from longtail.recipe import augmentations, find_recipe
from longtail.types import no_pairs

ROWS = st.lists(st.lists(st.integers(0, 5), max_size=4, unique=True), min_size=1, max_size=12)
PARTS = [MixUp(), MixUp(alpha=3.0), LabelMixUp(), LabelMixUp(graph="walk", alpha=1.0), LabelMix(probability=0.7)]


def small(rows: list[list[int]], seed: int | None = None) -> Split:
    split = from_rows(
        {"train": ([f"point {n}" for n in range(len(rows))], rows)}, label_texts=[f"label {n}" for n in range(6)]
    ).train
    if seed is None:
        return split
    values = np.random.default_rng(seed).choice([0.06, 0.3, 1.0], split.targets.nnz).astype(np.float32)
    soft = sp.csr_array((values, split.targets.indices, split.targets.indptr), shape=split.targets.shape)
    return replace(split, targets=soft)


@settings(deadline=None)  # the first case pays for imports and threads
@given(ROWS, st.integers(0, 99), st.booleans())
@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.part}-{getattr(part, 'alpha', '')}")
def test_a_mixed_batch_is_a_batch(part, rows, seed, softened):
    split = small(rows, seed if softened else None)
    before = split.targets.toarray()
    mixer = part.prepare(split, seed=seed)
    made, again = (mixer.draw(split.targets, np.random.default_rng(seed)) for _ in range(2))
    after = made.targets.toarray()
    np.testing.assert_array_equal(after, again.targets.toarray())
    np.testing.assert_array_equal(split.targets.toarray(), before)
    assert made.targets.shape == split.targets.shape
    assert made.targets.dtype == np.float32
    assert made.targets.indices.dtype == np.int32
    assert made.targets.has_canonical_format
    assert ((made.targets.data > 0) & (made.targets.data <= 1)).all()
    np.testing.assert_array_equal(after[~before.any(axis=1)], 0)  # points without labels stay as they are
    if made.share is not None:
        assert made.share.dtype == np.float32
        assert ((made.share >= 0) & (made.share <= 1)).all()
        np.testing.assert_array_equal(after[made.share == 1], before[made.share == 1])
        np.testing.assert_array_equal(made.share[~before.any(axis=1)], 1)


@settings(deadline=None)
@given(ROWS, st.integers(0, 99), st.booleans())
def test_mixup_follows_the_formula(rows, seed, softened):
    split = small(rows, seed if softened else None)
    made = MixUp().prepare(split).draw(split.targets, np.random.default_rng(seed))
    before, share = split.targets.toarray(), made.share[:, None]
    assert sorted(made.points.tolist()) == list(range(len(rows)))
    assert made.labels is made.followed is None
    np.testing.assert_allclose(
        made.targets.toarray(), share * before + (1 - share) * before[made.points], rtol=1e-5, atol=1e-7
    )


@settings(deadline=None)
@given(ROWS, st.integers(0, 99), st.booleans(), st.sampled_from(["conditionals", "walk", "glas"]))
def test_label_mixup_follows_the_formula(rows, seed, softened, graph):
    split = small(rows, seed if softened else None)
    part = LabelMixUp(graph=graph)
    made = part.prepare(split, seed=seed).draw(split.targets, np.random.default_rng(seed))
    whole = part.weights(split.targets, threshold=part.threshold, seed=seed).toarray()
    before = split.targets.toarray()
    assert made.points is made.followed is None
    for row, label in enumerate(made.labels):
        expected = before[row]
        if label >= 0:
            assert before[row, label] > 0
            assert whole[label, label] == 1
            expected = made.share[row] * before[row] + (1 - made.share[row]) * whole[label]
        else:
            assert not before[row].any()
        np.testing.assert_allclose(made.targets.toarray()[row], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("part", [MixUp(alpha=2.0), LabelMixUp(alpha=2.0)], ids=lambda part: part.part)
def test_shares_are_drawn_from_beta_for_each_point(part):
    split = small([[0, 1], [2]] * 4000)
    share = part.prepare(split).draw(split.targets, np.random.default_rng(0)).share
    assert share.mean() == pytest.approx(1 / 2, abs=0.01)
    assert share.var() == pytest.approx(1 / 20, abs=0.005)  # of Beta(2, 2)


def test_labels_are_drawn_as_labelmix_draws_them():
    split = small([[0, 1]] * 4000 + [[0]] * 12000)
    mix, mixup = LabelMix(probability=1), LabelMixUp()
    np.testing.assert_array_equal(mix.prepare(split).weights, mixup.prepare(split).weights)
    labels = mixup.prepare(split).draw(split.targets[:4000], np.random.default_rng(0)).labels
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
        made = blended(own, other, np.full(size, share, np.float32))
        np.testing.assert_array_equal(made.toarray(), side.toarray())
        assert made.nnz == side.nnz


def test_rows_of_a_graph_are_gathered():
    graph = sp.csr_array(np.arange(9, dtype=np.float32).reshape(3, 3))
    made = rows_of(graph, np.array([2, -1, 0, 2]))
    assert made.toarray().tolist() == [[6, 7, 8], [0, 0, 0], [0, 1, 2], [6, 7, 8]]


@pytest.mark.parametrize("part", PARTS[::2], ids=lambda part: part.part)
def test_mixers_of_batches_share_a_protocol_and_take_empty_batches(part):
    assert isinstance(part, Mixes)
    assert part.acts_on == "batch"
    made = part.prepare(small([[0]])).draw(no_pairs((0, 6)), np.random.default_rng(0))
    assert made.targets.shape == (0, 6)
    assert not isinstance(Gandalf(), Mixes)


def test_the_graph_comes_from_the_original_points_and_needs_label_texts():
    split = small([[0, 1], [1, 2], [3]])
    plain, more = (LabelMixUp().prepare(part) for part in (split, Gandalf().augment(split, seed=0)))
    np.testing.assert_array_equal(plain.weights, more.weights)
    np.testing.assert_array_equal(plain.graph.toarray(), more.graph.toarray())
    with pytest.raises(DataError, match=r"no texts.*Label-MixUp"):
        LabelMixUp().prepare(replace(split, labels=Labels(6)))


def test_settings_are_checked_and_names_compose():
    assert {"mixup", "labelmixup", "synonyms"} <= set(augmentations())
    made = find_recipe("knn+mixup+labelmixup").override("augment.0.alpha", 0.2)
    assert made.augment == (MixUp(alpha=0.2), LabelMixUp())
    with pytest.raises(RecipeError, match=r"mixup\.alpha"):
        made.override("augment.0.alpha", 0)
