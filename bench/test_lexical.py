"""A single knn query over 87 K labels and 128 K points, text to label ids: the median is to stay within 0.3 ms."""

from __future__ import annotations

import time

import numpy as np
import pytest
from conftest import shared_data

from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.parts import Query
from longtail.scorers.lexical import Lexical


@pytest.fixture(scope="module")
def case():
    data = load(shared_data("LF-MSDocsSeeAlsoTitles-87K"))
    words = Words.fit(data.train.texts, data.labels.texts)
    return Lexical(neighbours=20, power=8.0, share=0.35).fit(data.train, words), data.test.texts[:2000].tolist()


def test_single_query(benchmark, case):
    scorer, texts = case
    for text in texts[:200]:
        scorer.top(Query([text]), 5)

    times = []

    def predict_all() -> None:
        for text in texts:
            start = time.perf_counter()
            scorer.top(Query([text]), 5)
            times.append(time.perf_counter() - start)

    benchmark.pedantic(predict_all, rounds=3)
    print(f"single query p50 {1000 * np.median(times):.4f} ms, p99 {1000 * np.percentile(times, 99):.4f} ms")


def test_batch(benchmark, case):
    scorer, texts = case
    benchmark.pedantic(lambda: scorer.top(Query(texts), 5), rounds=3)
