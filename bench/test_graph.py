"""Label graphs and Gandalf's rows of the 87 K-label set: `pytest bench/test_graph.py --benchmark-only`.

Aims: conditionals within 3 s, random walk within 60 s, on 2 cores.
"""

from __future__ import annotations

import pytest
from conftest import shared_data
from pytest_benchmark.fixture import BenchmarkFixture

from longtail.augment.gandalf import Gandalf
from longtail.data.dataset import Split
from longtail.data.formats import load
from longtail.labels.graph import KINDS, estimate, one_row
from longtail.types import LabelMatrix

GANDALF = {"plain": Gandalf(), "calibrated": Gandalf(calibrate=True), "walk": Gandalf(graph="walk")}


@pytest.fixture(scope="module")
def train() -> Split:
    return load(shared_data("LF-MSDocsSeeAlsoTitles-87K")).train


@pytest.fixture(scope="module")
def targets(train: Split) -> LabelMatrix:
    return train.targets


@pytest.mark.parametrize("kind", KINDS)
def test_build(kind: str, targets: LabelMatrix, benchmark: BenchmarkFixture) -> None:
    graph = benchmark.pedantic(KINDS[kind], (targets,), rounds=3, warmup_rounds=1)
    benchmark.extra_info["entries"] = int(graph.nnz)


@pytest.mark.parametrize("kind", KINDS)
def test_estimate(kind: str, targets: LabelMatrix, benchmark: BenchmarkFixture) -> None:
    needs = benchmark.pedantic(estimate, (targets, kind), rounds=3)
    benchmark.extra_info["entries"] = needs.entries


@pytest.mark.parametrize("kind", KINDS)
def test_one_row(kind: str, targets: LabelMatrix, benchmark: BenchmarkFixture) -> None:
    benchmark.pedantic(one_row, (targets, kind, 0), {"top": 11}, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("name", GANDALF)
def test_gandalf_rows(name: str, train: Split, benchmark: BenchmarkFixture) -> None:
    rows = benchmark.pedantic(GANDALF[name].rows, (train,), rounds=3, warmup_rounds=1)
    benchmark.extra_info["entries"] = int(rows.nnz)


@pytest.mark.parametrize("name", GANDALF)
def test_gandalf_points(name: str, train: Split, benchmark: BenchmarkFixture) -> None:
    more = benchmark.pedantic(GANDALF[name].augment, (train,), {"seed": 0}, rounds=3, warmup_rounds=1)
    assert len(more) == len(train) + len(train.labels)
