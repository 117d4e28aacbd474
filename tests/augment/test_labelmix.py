"""LabelMix against its formula, point by point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.augment.gandalf import Gandalf
from longtail.augment.labelmix import LabelMix
from longtail.data.dataset import Labels, Split, from_rows
from longtail.errors import DataError, RecipeError
from longtail.pipeline import fit
from longtail.recipe import find_recipe
from longtail.types import no_pairs

ROWS = st.lists(st.lists(st.integers(0, 5), max_size=4, unique=True), min_size=1, max_size=12)


def small(rows: list[list[int]]) -> Split:
    return from_rows(
        {"train": ([f"point {n}" for n in range(len(rows))], rows)}, label_texts=[f"label {n}" for n in range(6)]
    ).train


@settings(deadline=None)  # the first case pays for imports and threads
@given(ROWS, st.integers(0, 99), st.sampled_from(["walk", "conditionals"]), st.booleans())
def test_new_targets_follow_the_formula(rows, seed, graph, softened):
    split = small(rows)
    if softened:
        values = np.random.default_rng(seed).choice([0.06, 0.3, 1.0], split.targets.nnz).astype(np.float32)
        soft = sp.csr_array((values, split.targets.indices, split.targets.indptr), shape=split.targets.shape)
        split = replace(split, targets=soft)
    part = LabelMix(graph=graph, probability=0.7)
    mixer = part.mixer(split, seed=seed)
    batch = mixer.draw(split.targets, np.random.default_rng(seed))
    mixed, partners = batch.targets, batch.followed
    assert batch.share is batch.points is batch.labels is None
    whole = part.weights(split.targets, threshold=0, seed=seed).toarray()
    before = split.targets.toarray()
    expected = before.copy()
    for row, partner in enumerate(partners):
        if partner >= 0:
            assert before[row, partner] > 0
            total = np.minimum(1, before[row] + whole[partner])
            expected[row] = np.where(total > np.float32(0.1), total, 0)
    np.testing.assert_allclose(mixed.toarray(), expected, rtol=1e-6)
    assert mixed.shape == split.targets.shape
    assert mixed.has_sorted_indices
    assert mixed.indices.dtype == np.int32


def test_four_in_ten_points_are_mixed_and_empty_ones_never():
    split = small([[0, 1], [2], []] * 4000)
    partners = LabelMix().mixer(split).draw(split.targets, np.random.default_rng(0)).followed
    full = np.diff(split.targets.indptr) > 0
    assert (partners[~full] == -1).all()
    assert abs((partners[full] >= 0).mean() - 0.4) < 0.02


def test_partners_prefer_the_tail_by_the_square_root_of_the_frequency():
    split = small([[0, 1]] * 4000 + [[0]] * 12000)  # 16,000 and 4,000 points: weights 1 to 2
    partners = LabelMix(probability=1).mixer(split).draw(split.targets[:4000], np.random.default_rng(0)).followed
    assert abs((partners == 1).mean() - 2 / 3) < 0.03
    even = (
        LabelMix(probability=1, exponent=0).mixer(split).draw(split.targets[:4000], np.random.default_rng(0)).followed
    )
    assert abs((even == 1).mean() - 1 / 2) < 0.03


def test_soft_targets_weigh_the_draw():
    split = small([[0, 1]] * 4000)
    values = np.tile([0.25, 1.0], 4000).astype(np.float32)
    soft = sp.csr_array((values, split.targets.indices, split.targets.indptr), shape=split.targets.shape)
    partners = LabelMix(probability=1).mixer(split).draw(soft, np.random.default_rng(0)).followed
    assert abs((partners == 1).mean() - 0.8) < 0.03


def test_without_soft_annotation_only_texts_change():
    split = small([[0, 1], [1, 2], [3]])
    once = LabelMix(soft=False, probability=1).augment_once(split)
    assert (once.targets != split.targets).nnz == 0
    assert once.texts[2] == "point 2 label 3"


def test_once_keeps_the_number_of_points_and_is_deterministic():
    split = small([[0, 1], [1, 2], [3], []] * 10)
    first, second = (LabelMix().augment_once(split, seed=4) for _ in range(2))
    assert len(first) == len(split)
    assert first.texts == second.texts
    assert first.texts != LabelMix().augment_once(split, seed=5).texts
    changed = [a != b for a, b in zip(first.texts, split.texts, strict=True)]
    assert first.augmented.tolist() == changed
    assert 0 < sum(changed) < len(split)


def test_an_excluded_pair_does_not_come_back():
    split = small([[0, 1], [0, 1], [0]])
    excluded = sp.csr_array(([np.float32(1)], ([2], [1])), shape=(3, 6))
    plain = LabelMix(probability=1, graph="conditionals").augment_once(split)
    kept = LabelMix(probability=1, graph="conditionals").augment_once(replace(split, excluded=excluded))
    assert plain.targets[2, 1] > 0
    assert kept.targets[2, 1] == 0
    assert kept.targets[2, 0] == 1


def test_graph_and_weights_come_from_the_original_points():
    split = small([[0, 1], [1, 2], [3]])
    more = Gandalf().augment(split, seed=0)
    plain, mixed = (LabelMix(graph="conditionals").mixer(part) for part in (split, more))
    np.testing.assert_array_equal(plain.weights, mixed.weights)
    np.testing.assert_array_equal(plain.graph.toarray(), mixed.graph.toarray())


def test_label_texts_are_needed_and_no_points_is_fine():
    split = small([[0]])
    with pytest.raises(DataError, match=r"no texts.*LabelMix"):
        LabelMix().mixer(replace(split, labels=Labels(6)))
    mixed = LabelMix().mixer(split).draw(no_pairs((0, 6)), np.random.default_rng(0))
    assert len(mixed.followed) == mixed.targets.shape[0] == 0


def test_what_trains_no_batches_learns_from_points_that_are_mixed_once(monkeypatch):
    data = from_rows({"train": (["red cat", "old dog"] * 20, [[0], [1]] * 20)}, label_texts=["feline", "canine"])
    seen = []
    whole = LabelMix.augment_once
    monkeypatch.setattr(LabelMix, "augment_once", lambda *a, **k: seen.append(whole(*a, **k)) or seen[-1])
    model = fit(find_recipe("knn+labelmix").override("labelmix.probability", 1), data.train)
    assert set(seen[-1].texts) == {"red cat feline", "old dog canine"}
    assert model.predict(["feline"], 1).labels.tolist() == [[0]]
    seen.clear()
    find_recipe("astec+labelmix").check()  # which mixes every batch anew
    with pytest.raises(RecipeError, match="mixup changes batches, and this recipe trains on none"):
        find_recipe("knn+mixup").check()
