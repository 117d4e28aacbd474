"""Label graphs against dense, slow versions of their formulas."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import shared_data
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longtail import machine
from longtail.data.formats import load, write
from longtail.errors import DataError
from longtail.labels import graph, walk
from longtail.labels.graph import (
    KINDS,
    conditionals,
    estimate,
    normalised,
    one_row,
    proximity,
    random_walk,
    ratios,
    sigmoid_targets,
    similarity,
)
from longtail.machine import memory_usage
from longtail.types import LabelMatrix, label_matrix, no_pairs


def matrix(rows: list[list[int]], labels: int, values: list[float] | None = None) -> LabelMatrix:
    starts = np.cumsum([0, *map(len, rows)])
    flat = np.array([label for row in rows for label in row], np.int64)
    return label_matrix(starts, flat, (len(rows), labels), None if values is None else np.array(values))


@st.composite
def targets_(draw: st.DrawFn) -> LabelMatrix:
    """Hard or soft targets: few points, empty points, unseen labels, repeated labels, one label, no point."""
    labels = draw(st.integers(1, 9))
    rows = draw(st.lists(st.lists(st.integers(0, labels - 1), max_size=6), max_size=25))
    size = sum(map(len, rows))
    values = draw(st.none() | st.lists(st.sampled_from([0.1, 0.5, 1.0]), min_size=size, max_size=size))
    return matrix(rows, labels, values)


UNHURRIED = settings(deadline=None)  # thread pools on a busy machine
THRESHOLDS = st.sampled_from([0.0, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.9, 1.0])
TOPS = st.none() | st.integers(1, 4)


def dense_counts(targets: LabelMatrix) -> np.ndarray:
    hard = (targets.toarray() > 0).astype(np.int64)
    return hard.T @ hard


def dense_cut(values: np.ndarray, threshold: float, top: int | None, strength: np.ndarray | None = None) -> np.ndarray:
    """Keep what is strictly greater and among the top of its row; the self edge stays."""
    strength = values if strength is None else strength
    out = np.zeros_like(values)
    for j, row in enumerate(values):
        order = sorted(np.flatnonzero(row > threshold), key=lambda label: (-strength[j, label], label))
        chosen = order[:top]
        out[j, chosen] = row[chosen]
    return out


def dense_conditionals(targets: LabelMatrix) -> np.ndarray:
    counts = dense_counts(targets)
    size = len(counts)
    out = np.eye(size)
    for j in range(size):
        for label in range(size):
            if counts[j, j]:
                out[j, label] = counts[j, label] / counts[j, j]
    return out


def check_form(edges: sp.csr_array, labels: int) -> None:
    assert isinstance(edges, sp.csr_array)
    assert edges.shape == (labels, labels)
    assert edges.dtype == np.float32
    assert edges.indices.dtype == np.int32
    rebuilt = sp.csr_array((edges.data, edges.indices, edges.indptr), shape=edges.shape)
    assert rebuilt.has_canonical_format
    assert (edges.data > 0).all()


@UNHURRIED
@given(targets_(), THRESHOLDS, TOPS)
@example(no_pairs((0, 3)), 0.1, None)
@example(no_pairs((4, 1)), 0.1, 1)
@example(matrix([[0]], 1), 1.0, None)
def test_conditionals(targets: LabelMatrix, threshold: float, top: int | None) -> None:
    edges = conditionals(targets, threshold=threshold, top=top)
    check_form(edges, targets.shape[1])
    expected = dense_cut(dense_conditionals(targets), threshold, top)
    np.fill_diagonal(expected, 1)
    np.testing.assert_array_equal(edges.toarray(), expected.astype(np.float32))


@UNHURRIED
@given(targets_(), THRESHOLDS, TOPS)
@example(no_pairs((0, 2)), 0.1, None)
def test_similarity(targets: LabelMatrix, threshold: float, top: int | None) -> None:
    edges = similarity(targets, threshold=threshold, top=top)
    check_form(edges, targets.shape[1])
    one_way = dense_conditionals(targets)
    expected = dense_cut((one_way + one_way.T) / 2, threshold, top)
    np.fill_diagonal(expected, 1)
    np.testing.assert_array_equal(edges.toarray(), expected.astype(np.float32))
    if top is None:
        np.testing.assert_array_equal(edges.toarray(), edges.toarray().T)


@UNHURRIED
@given(targets_(), THRESHOLDS, st.booleans())
def test_sigmoid_targets(targets: LabelMatrix, threshold: float, own: bool) -> None:
    plain = similarity(targets, threshold=threshold)
    dense = plain.toarray()
    expected = np.where(dense > 0, 1 / (1 + np.exp(-dense.astype(float))), 0)
    if own:
        np.fill_diagonal(expected, 1)
    edges = sigmoid_targets(plain, own=own)
    check_form(edges, targets.shape[1])
    np.testing.assert_allclose(edges.toarray(), expected, rtol=1e-6)
    np.testing.assert_array_equal(plain.toarray(), dense)  # the input is left alone


@UNHURRIED
@given(targets_(), TOPS)
@example(no_pairs((0, 2)), None)
@example(matrix([[0], [1]], 2), None)
def test_proximity(targets: LabelMatrix, top: int | None) -> None:
    edges = proximity(targets, top=top)
    check_form(edges, targets.shape[1])
    counts = dense_counts(targets).astype(float)
    np.fill_diagonal(counts, 0)
    expected = dense_cut((counts > 0).astype(float), 0, top, counts)
    np.testing.assert_array_equal(edges.toarray(), expected)


def test_the_threshold_is_strict() -> None:
    rows = [[0, 1]] * 3 + [[0]] * 27  # 3 / 30 is exactly 0.1 and must go, also after rounding
    targets = matrix(rows, 2)
    assert conditionals(targets, threshold=0.1).toarray()[0].tolist() == [1, 0]
    assert conditionals(targets, threshold=0.0999).toarray()[0, 1] == np.float32(0.1)
    assert conditionals(targets, threshold=0.1).toarray()[1].tolist() == [1, 1]


def test_rows_are_conditioned_on_their_own_label() -> None:
    edges = conditionals(matrix([[0, 1], [0], [0], [0]], 2)).toarray()
    assert edges.tolist() == [[1, 0.25], [1, 1]]


def test_repeated_labels_count_once_even_without_label_matrix() -> None:
    raw = sp.csr_array((np.ones(4, np.float32), np.array([1, 0, 0, 0]), np.array([0, 3, 4])), shape=(2, 2))
    np.testing.assert_array_equal(conditionals(raw).toarray(), conditionals(matrix([[0, 1], [0]], 2)).toarray())


def random_targets(points: int, labels: int, mean: int = 4, seed: int = 0) -> LabelMatrix:
    random = np.random.default_rng(seed)
    rows = [(labels * random.random(random.integers(0, 2 * mean)) ** 2).astype(int).tolist() for _ in range(points)]
    return matrix(rows, labels)


@pytest.mark.parametrize("kind", KINDS)
def test_block_size_and_threads_do_not_matter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = random_targets(400, 90)
    whole = KINDS[kind](targets)
    monkeypatch.setattr(graph, "BLOCK", 50)
    monkeypatch.setattr(walk, "WALKERS", 7)
    monkeypatch.setattr(machine, "MOST_THREADS", 1)
    pieces = KINDS[kind](targets)
    np.testing.assert_array_equal(whole.toarray(), pieces.toarray())


def test_blocks_stay_small_and_cover_all() -> None:
    product = graph._product(random_targets(300, 60))
    runs = list(graph.runs(product.work, 100))
    np.testing.assert_array_equal(np.concatenate(runs), np.arange(60))
    assert all(len(run) == 1 or (product.work[run] + 1).sum() <= 100 for run in runs)
    np.testing.assert_array_equal(product.work, product.labels @ np.diff(product.points.indptr))


# The walk


@UNHURRIED
@given(targets_(), st.integers(1, 30), st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.integers(0, 3))
@example(no_pairs((0, 2)), 5, 0.8, 0)
@example(matrix([[0]], 1), 5, 0.8, 0)
def test_walk_is_the_slow_walk(targets: LabelMatrix, hops: int, restart: float, head: int) -> None:
    visits = random_walk(targets, hops=hops, restart=restart, top=None, head=head, seed=5)
    check_form(visits, targets.shape[1])
    np.testing.assert_array_equal(visits.toarray(), slow_walk(targets, hops, restart, head, 5))


def slow_walk(targets: LabelMatrix, hops: int, restart: float, head: int, seed: int) -> np.ndarray:
    """Walk one label at a time over Python lists, with the same random numbers."""
    hard = targets.toarray() > 0
    if head:
        hard[:, hard.sum(0) > head] = False
    out = np.zeros((hard.shape[1],) * 2)
    for home in range(hard.shape[1]):
        if hard[:, home].any():
            here, state = home, mix(mix(seed) + home * walk.GOLDEN)
            for hop in range(hops):
                coin = (mix(state + 2 * hop * walk.GOLDEN) >> 11) / 2**53
                here = home if hop == 0 or coin < restart else here
                choice = mix(state + (2 * hop + 1) * walk.GOLDEN)
                points = np.flatnonzero(hard[:, here])
                labels = np.flatnonzero(hard[points[(choice >> 32) * len(points) >> 32]])
                here = labels[(choice % 2**32) * len(labels) >> 32]
                out[home, here] += 1
        out[home, home] = out[home, home] or 1
    return out


def mix(state: int) -> int:
    state %= 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


def test_splitmix_gives_its_published_numbers() -> None:
    state = np.array([1234567], np.uint64)
    assert [int(walk._draw(state, n)[0]) for n in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_walk_is_deterministic_and_seeded() -> None:
    targets = random_targets(200, 40)
    first, repeated, other = (random_walk(targets, seed=seed).toarray() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, repeated)
    assert (first != other).any()


def test_visits_sum_to_the_hops() -> None:
    targets = matrix([[0, 1, 2], [1, 2], [3]], 5)
    visits = random_walk(targets, hops=50, top=None).toarray()
    assert visits.sum(1).tolist() == [50, 50, 50, 50, 1]  # label 4 has no point


def test_one_hop_walks_follow_the_transition_probabilities() -> None:
    targets = random_targets(60, 12)
    hard = (targets.toarray() > 0).astype(float)
    hard = hard[:, hard.sum(0) > 0]
    step = (hard / hard.sum(0)).T @ (hard / np.maximum(hard.sum(1, keepdims=True), 1))  # label → point → label
    hops = 20_000
    visits = random_walk(sp.csr_array(hard.astype(np.float32)), hops=hops, restart=1.0, top=None, head=0).toarray()
    error = np.abs(visits - hops * step) / np.sqrt(hops * np.maximum(step * (1 - step), 1 / hops))
    assert error.max() < 4.5  # standard deviations, over 144 cells


def test_walks_without_restart_reach_two_hops() -> None:
    chain = matrix([[0, 1], [1, 2]], 3)
    assert random_walk(chain, restart=1.0, top=None).toarray()[0, 2] == 0
    assert random_walk(chain, restart=0.8, top=None).toarray()[0, 2] > 0


def test_top_keeps_the_diagonal() -> None:
    targets = random_targets(300, 60, mean=12)
    full, cut = (random_walk(targets, top=top).toarray() for top in (None, 1))
    expected = dense_cut(full, 0, 1)
    np.fill_diagonal(expected, np.diag(full))
    np.testing.assert_array_equal(cut, expected)
    assert ((cut > 0).sum(1) == 2).any()  # the diagonal came on top of the strongest


def test_head_labels_get_a_self_edge_only() -> None:
    targets = matrix([[0, 1]] * 3 + [[0, 2]] * 2, 3)
    visits = random_walk(targets, head=4, hops=20).toarray()
    assert visits.tolist() == [[1, 0, 0], [0, 20, 0], [0, 0, 20]]
    assert random_walk(targets, head=5, hops=20).toarray()[1, 0] > 0
    assert random_walk(targets, head=0, hops=20).toarray()[1, 0] > 0


@UNHURRIED
@given(targets_())
def test_ratios_and_normalised(targets: LabelMatrix) -> None:
    visits = random_walk(targets, hops=20, top=3)
    dense = visits.toarray().astype(float)
    np.testing.assert_allclose(ratios(visits).toarray(), np.minimum(dense / np.diag(dense)[:, None], 1), rtol=1e-6)
    expected = np.diag(dense.sum(1) ** -0.5) @ dense @ np.diag(dense.sum(0) ** -0.5)
    np.testing.assert_allclose(normalised(visits).toarray(), expected, rtol=1e-5, atol=1e-9)


def test_normalised_leaves_lonely_labels_empty() -> None:
    assert normalised(proximity(matrix([[0, 1], [2]], 3))).toarray()[2].tolist() == [0, 0, 0]


# What it will take, and what is refused


@pytest.mark.parametrize("kind", KINDS)
def test_estimate_of_a_small_matrix_is_exact_in_entries(kind: str) -> None:
    targets = random_targets(500, 80)
    estimated = estimate(targets, kind)
    assert estimated.entries == KINDS[kind](targets).nnz
    assert estimated.seconds > 0
    assert estimated.peak_bytes > 10 * 2**20  # an interpreter alone holds more


def test_estimate_adds_to_what_the_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = random_targets(500, 80)
    for now, most in ((10**9, 10**9), (10**8, 10**9)):
        monkeypatch.setattr(graph, "memory_usage", lambda now=now, most=most: (now, most))
        assert max(now, most) <= estimate(targets).peak_bytes < 1.1 * 10**9
    monkeypatch.setattr(graph, "memory_usage", lambda: None)
    assert graph.PROCESS < estimate(targets).peak_bytes < 1.2 * graph.PROCESS


def test_memory_usage_grows_with_what_is_allocated() -> None:
    before = memory_usage()
    if before is None:
        pytest.skip("this system does not report memory usage")
    block = np.frombuffer(mmap.mmap(-1, 2**27), np.uint8)  # not from what an allocator keeps in reserve
    block[:] = 1
    now, most = memory_usage() or (0, 0)
    assert now >= before[0] + 0.9 * block.nbytes
    assert most >= now


@pytest.mark.slow
@pytest.mark.parametrize("format", ["jsonl", "arrow"])
@pytest.mark.parametrize("kind", KINDS)
def test_estimated_peak_is_near_the_measured_one(kind: str, format: str, tmp_path: Path) -> None:
    path = shared_data("LF-MSDocsSeeAlsoTitles-87K")
    if format == "arrow":
        write(load(path), tmp_path / "arrow", "arrow")
        path = tmp_path / "arrow"
    peaks = []
    for step in ("estimate(targets, kind).peak_bytes", "(KINDS[kind](targets), memory_usage()[1])[1]"):
        code = f"""
import sys
from longtail.data.formats import load
from longtail.machine import memory_usage
from longtail.labels.graph import KINDS, estimate
targets, kind = load(sys.argv[1]).train.targets, sys.argv[2]
print({step})
"""
        done = subprocess.run([sys.executable, "-c", code, path, kind], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[0] == pytest.approx(peaks[1], rel=0.3)


@settings(deadline=None)  # the first case pays for imports and threads
@given(targets_(), st.sampled_from(list(KINDS)), st.sampled_from([None, 1, 3]), st.data())
def test_one_row_is_that_of_the_whole_graph(
    targets: LabelMatrix, kind: str, top: int | None, data: st.DataObject
) -> None:
    label = data.draw(st.integers(0, targets.shape[1] - 1))
    with_threshold = {} if kind in ("walk", "proximity") else {"threshold": 0.2}
    with_top = {} if kind == "walk" and top is None else {"top": top}
    whole = KINDS[kind](targets, **with_threshold, **with_top, **({"seed": 3} if kind == "walk" else {}))
    row = one_row(targets, kind, label, threshold=0.2, top=top, seed=3)
    np.testing.assert_array_equal(row.toarray(), whole[[label]].toarray())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 1)])
def test_estimate_of_nothing(kind: str, shape: tuple[int, int]) -> None:
    assert estimate(no_pairs(shape), kind).entries == (0 if kind == "proximity" else shape[1])


@pytest.mark.parametrize("kind", ["conditionals", "glas", "proximity", "walk"])
def test_estimate_from_a_sample(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = random_targets(3000, 600)
    monkeypatch.setattr(graph, "SAMPLE", 200)
    assert estimate(targets, kind).entries == pytest.approx(KINDS[kind](targets).nnz, rel=0.2)


def test_refusals() -> None:
    targets = matrix([[0]], 1)
    with pytest.raises(DataError, match=r"threshold 1\.5; use a number from 0 to 1"):
        conditionals(targets, threshold=1.5)
    with pytest.raises(DataError, match="top 0; keep at least 1 edge"):
        random_walk(targets, top=0)
    with pytest.raises(DataError, match="a walk of 0 hops"):
        random_walk(targets, hops=0)
    with pytest.raises(DataError, match="did you mean 'glas'"):
        estimate(targets, "glass")
    with pytest.raises(DataError, match="did you mean 'walk'"):
        one_row(targets, "walks", 0)
    with pytest.raises(DataError, match="row 1 has no self edge"):
        ratios(sp.csr_array(np.array([[1, 0], [1, 0]], np.float32)))
