"""Label graphs of the 87 K-label set; run with `pytest bench --benchmark-only`.

Aims: conditionals within 3 s, random walk within 60 s, on 2 cores.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from longtail.labels.graph import KINDS, estimate
from longtail.types import LabelMatrix, label_matrix

DATA = Path(os.environ.get("LONGTAIL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
NAME, LABELS = "LF-MSDocsSeeAlsoTitles-87K", 87_028


@pytest.fixture(scope="module")
def targets() -> LabelMatrix:
    file = DATA / NAME / "trn.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"{NAME} is not here; set LONGTAIL_DATA to the folder that holds it")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line)["labels"] for line in lines]
    starts = np.cumsum([0, *map(len, rows)])
    return label_matrix(starts, np.fromiter((label for row in rows for label in row), np.int64), (len(rows), LABELS))


@pytest.mark.parametrize("kind", KINDS)
def test_build(kind: str, targets: LabelMatrix, benchmark: BenchmarkFixture) -> None:
    graph = benchmark.pedantic(KINDS[kind], (targets,), rounds=3, warmup_rounds=1)
    benchmark.extra_info["entries"] = int(graph.nnz)


@pytest.mark.parametrize("kind", KINDS)
def test_estimate(kind: str, targets: LabelMatrix, benchmark: BenchmarkFixture) -> None:
    found = benchmark.pedantic(estimate, (targets, kind), rounds=3)
    benchmark.extra_info["entries"] = found.entries
