"""Gandalf in all its variants against slow dense formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import shared_data
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.augment.gandalf import Gandalf
from longtail.augment.labelmix import LabelMix
from longtail.data.dataset import Labels, Split, from_rows
from longtail.data.formats import load
from longtail.errors import DataError, RecipeError
from longtail.labels.propensity import bins, frequencies
from longtail.recipe import augmentations, find_recipe
from longtail.records import part_of
from longtail.types import Texts, no_pairs

ROWS = st.lists(st.lists(st.integers(0, 5), max_size=4, unique=True), min_size=1, max_size=12)


def small(rows: list[list[int]], labels: int = 6) -> Split:
    return from_rows(
        {"train": ([f"point {n}" for n in range(len(rows))], rows)}, label_texts=[f"label {n}" for n in range(labels)]
    ).train


def many(seed: int = 0, points: int = 60, labels: int = 40) -> Split:
    random = np.random.default_rng(seed)
    tail = 1 / np.arange(1, labels + 1)
    rows = [random.choice(labels, 3, replace=False, p=tail / tail.sum()).tolist() for _ in range(points)]
    return small(rows, labels)


def dense_rows(split: Split, threshold: float) -> np.ndarray:
    """Return the soft targets by the formula, one pair at a time."""
    given_labels = split.targets.toarray() > 0
    count = given_labels.shape[1]
    out = np.eye(count)
    for j in range(count):
        for other in range(count):
            have = given_labels[:, j].sum()
            share = (given_labels[:, j] & given_labels[:, other]).sum() / have if have else 0.0
            if other != j and share > threshold:
                out[j, other] = share
    return out


@settings(deadline=None)  # the first case pays for imports and threads
@given(ROWS, st.sampled_from([0.0, 0.1, 0.2, 0.5]))
def test_label_points_follow_the_originals_with_conditional_targets(rows, threshold):
    split = small(rows)
    more = Gandalf(threshold=threshold).augment(split, seed=0)
    assert len(more) == len(rows) + 6
    assert more.texts.tolist()[len(rows) :] == split.labels.texts.tolist()
    np.testing.assert_allclose(more.targets[len(rows) :].toarray(), dense_rows(split, threshold), rtol=1e-6)
    assert (more.targets[: len(rows)] != split.targets).nnz == 0
    assert more.augmented.tolist() == [False] * len(rows) + [True] * 6
    assert more.targets.dtype == np.float32
    assert more.targets.indices.dtype == np.int32
    assert more.targets.has_sorted_indices


def test_self_edges_are_exactly_one_in_every_graph():
    split = many()
    for graph in ("conditionals", "walk", "glas"):
        assert (Gandalf(graph=graph).rows(split).diagonal() == 1).all()
    loose = Gandalf(graph="glas", self_one=False).rows(split)
    np.testing.assert_allclose(loose.diagonal(), 1 / (1 + np.exp(-1)), rtol=1e-6)


def test_glas_targets_are_sigmoids_where_the_similarity_is_above_the_threshold():
    split = many()
    given_labels = split.targets.toarray()
    together = given_labels.T @ given_labels
    counts = np.maximum(np.diag(together), 1)
    similar = together * (1 / counts[:, None] + 1 / counts[None, :]) / 2
    expected = np.where(similar > 0.1, 1 / (1 + np.exp(-similar)), 0)
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(Gandalf(graph="glas").rows(split).toarray(), expected, rtol=1e-5)


def test_walk_rows_lie_in_the_unit_interval_above_the_threshold():
    rows = Gandalf(graph="walk", threshold=0.2).rows(many(), seed=3)
    assert rows.data.max() == 1
    assert rows.data.min() > 0.2
    assert (Gandalf(graph="walk", threshold=0.2, top=2).rows(many(), seed=3).nnz) < rows.nnz


def test_self_annotation_and_label_points_alone():
    split = many()
    alone = Gandalf(targets="self", points="labels").augment(split, seed=0)
    np.testing.assert_array_equal(alone.targets.toarray(), np.eye(40))
    assert alone.texts.tolist() == split.labels.texts.tolist()
    assert alone.augmented.all()


def test_untested_conditionals_are_shrunk_or_not_used():
    train = small([[0, 1], [0, 1], [2]], 3)
    shrunk = Gandalf(calibrate=True).rows(train).toarray()
    assert 0 < shrunk[0, 1] < 1
    assert np.array_equal(Gandalf(calibrate=True, untested="self").rows(train).toarray(), np.eye(3))


def test_sample_draws_without_replacement_and_keeps_the_order():
    split = many()
    some = Gandalf(sample="points").augment(split, seed=1)
    assert len(some) == len(split)
    texts = some.texts.tolist()
    assert len(set(texts)) == len(texts)
    assert 0 < some.augmented.sum() < len(split)
    whole = Gandalf().augment(split, seed=1).texts.tolist()
    assert texts == [text for text in whole if text in set(texts)]
    assert len(Gandalf(sample=7).augment(split, seed=1)) == 7
    with pytest.raises(DataError, match="sample of 101 from 100"):
        Gandalf(sample=101).augment(split, seed=1)


def test_share_takes_labels_at_random_or_from_the_tail_bin_on():
    split = many()
    half = Gandalf(share=0.5).augment(split, seed=0)
    assert half.augmented.sum() == 20
    other = Gandalf(share=0.5).augment(split, seed=1)
    assert half.texts.tolist() != other.texts.tolist()
    quarter = Gandalf(share=0.25, order="tail", points="labels").augment(split, seed=0)
    bin_of = bins(frequencies(split.targets), 5)
    chosen = [int(text.split()[1]) for text in quarter.texts]
    left = np.setdiff1d(np.arange(40), chosen)
    assert len(chosen) == 10
    assert bin_of[chosen].min() >= bin_of[left].max()


def test_the_same_seed_gives_the_same_points():
    split = many()
    for part in (Gandalf(graph="walk"), Gandalf(sample=30), Gandalf(share=0.3, order="tail")):
        first, second = (part.augment(split, seed=5) for _ in range(2))
        assert first.texts == second.texts
        assert (first.targets != second.targets).nnz == 0


def test_graphs_come_from_the_original_points_only():
    split = many()
    once = Gandalf().augment(split, seed=0)
    np.testing.assert_array_equal(Gandalf().rows(once).toarray(), Gandalf().rows(split).toarray())


FIRSTS = [
    Gandalf(),
    Gandalf(points="labels"),
    Gandalf(points="labels", targets="self"),
    Gandalf(sample="points"),
    Gandalf(sample=5),
    Gandalf(share=0.3, order="tail"),
    LabelMix(probability=1),
]


def augmented(part: Gandalf | LabelMix, split: Split, seed: int = 0) -> Split:
    """Make points with either augmentation."""
    return part.augment_once(split, seed=seed) if isinstance(part, LabelMix) else part.augment(split, seed=seed)


@pytest.mark.parametrize("first", FIRSTS, ids=str)
def test_a_second_augmentation_counts_on_the_true_originals(first):
    split = many()
    once = augmented(first, split)
    assert once.original is split
    twice = augmented(Gandalf(), once)
    assert twice.original is split
    for graph in ("conditionals", "walk", "glas"):
        part = Gandalf(graph=graph)
        np.testing.assert_array_equal(part.rows(twice, seed=2).toarray(), part.rows(split, seed=2).toarray())
    assert Gandalf(calibrate=True).fit(twice).fitted == Gandalf(calibrate=True).fit(split).fitted
    mixers = [LabelMix(graph="conditionals").mixer(part) for part in (split, twice)]
    np.testing.assert_array_equal(mixers[0].weights, mixers[1].weights)
    chosen = [Gandalf(share=0.2, order="tail", points="labels").augment(part, seed=0).texts for part in (split, twice)]
    assert chosen[0] == chosen[1]


def test_ids_name_the_label_and_excluded_pairs_stay_with_the_originals():
    split = small([[0, 1], [2]])
    labels = replace(split.labels, ids=Texts(list("abcdef")))
    excluded = sp.csr_array(([np.float32(1)], ([0], [3])), shape=(2, 6))
    named = replace(split, ids=Texts(["p", "q"]), labels=labels, excluded=excluded)
    more = Gandalf().augment(named, seed=0)
    assert more.ids.tolist() == ["p", "q", *(f"label:{name}" for name in "abcdef")]
    assert more.excluded.nnz == 1
    assert more.excluded[0, 3] == 1
    rows = Gandalf().augment(replace(named, labels=split.labels), seed=0)
    assert rows.ids[2] == "label:0"


def test_a_blank_label_text_makes_no_point():
    data = from_rows({"train": (["a"], [[0, 1]])}, label_texts=["cat", "  "])
    assert Gandalf().augment(data.train, seed=0).texts.tolist() == ["a", "cat"]


def test_without_label_texts_it_says_why_and_what_to_do():
    split = small([[0]])
    with pytest.raises(DataError, match=r"no texts.*Gandalf.*label file.*knn"):
        Gandalf().augment(replace(split, labels=Labels(6)), seed=0)


def test_where_it_is_measured_first_labels_without_texts_make_no_points(caplog):
    split = replace(small([[0], [1, 2]]), labels=Labels(6))
    part = Gandalf(calibrate=True).fit(split)
    assert part.fitted is None and part.augment(split) is split
    assert part.alternatives() == (part,)
    assert "the labels have no texts" in caplog.text


def test_label_features_stand_in_where_points_have_no_texts():
    features = sp.csr_array(np.eye(6, 4, dtype=np.float32))
    split = replace(small([[0, 1], [2]]), texts=None, features=features[:2], labels=Labels(6, features=features))
    more = Gandalf().augment(split, seed=0)
    assert len(more) == 2 + 4  # two labels have no features
    np.testing.assert_array_equal(more.features.toarray(), np.vstack([np.eye(2, 4), np.eye(4)]))


def test_points_with_features_but_no_texts_need_label_features():
    features = sp.csr_array(np.eye(2, 4, dtype=np.float32))
    split = replace(small([[0, 1], [2]]), texts=None, features=features)
    with pytest.raises(DataError, match=r"features but no texts.*raw texts"):
        Gandalf().augment(split, seed=0)


def test_an_empty_training_set_gives_self_annotated_points():
    split = replace(small([[0]]), targets=no_pairs((0, 6)), excluded=no_pairs((0, 6)), texts=Texts([]))
    np.testing.assert_array_equal(Gandalf().augment(split, seed=0).targets.toarray(), np.eye(6))


def test_settings_are_checked_and_travel_as_json():
    assert {"gandalf", "labelmix"} <= set(augmentations())
    recipe = find_recipe("knn+gandalf").override("augment.0.threshold", 0.2).override("augment.0.sample", "points")
    assert part_of(recipe.dump()) == recipe
    with pytest.raises(RecipeError, match="gandalf"):
        recipe.override("augment.0.graph", "wheel")
    with pytest.raises(RecipeError, match="threshold"):
        recipe.override("augment.0.threshold", 1.5)


def test_mdn_rows_are_soft_and_many():
    train = load(shared_data("LF-MDNSeeAlsoTitles-6K")).train
    more = Gandalf().augment(train, seed=0)
    assert len(more) == len(train) + len(train.labels)
    rows = more.targets[len(train) :]
    assert rows.data.min() > 0.1
    assert rows.data.max() == 1
    assert 2 < rows.nnz / len(train.labels) < 20


def test_label_points_are_no_validation_points():
    more = Gandalf().augment(many(), seed=0)
    kept, validation = more.divide(0.2, seed=0)
    assert len(validation) == 12  # a fifth of the 60 points that are not label points
    assert not validation.augmented.any()
    assert kept.augmented.sum() == 40
    _, validation = Gandalf(points="labels").augment(many(), seed=0).divide(0.2, seed=0)
    assert len(validation) == 8
