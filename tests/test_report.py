from __future__ import annotations

import re

import numpy as np
import pytest

from longtail.errors import DataError
from longtail.probabilities import Reliability
from longtail.report import FEW, QUIET, SECOND, bar, draw_frequencies, draw_reliability, frequency_steps, sparkline


def test_lines_of_blocks():
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([1, 2, 8])[-1] == "█"
    assert bar(0, 3) == "   "
    assert bar(7, 3) == "███"
    assert len(frequency_steps(np.arange(1000))) <= 40


def test_points_of_few_cases_are_grey_and_say_how_few(tmp_path):
    rows = [Reliability(0.1, 0.1, 900), Reliability(0.5, 0.4, FEW), Reliability(0.9, 0.2, FEW - 1)]
    for name, some in (("all", rows), ("most", rows[:2])):
        draw_reliability({"a": some}, tmp_path / f"{name}.svg", "t")
    dots = [
        re.findall(rf"fill: {colour}; fill-opacity", (tmp_path / "all.svg").read_text()) for colour in (SECOND, QUIET)
    ]
    assert [len(found) for found in dots] == [2, 1]
    assert "<!-- 29 -->" in (tmp_path / "all.svg").read_text()
    assert "<!-- 30 -->" not in (tmp_path / "all.svg").read_text()
    assert not re.findall(rf"fill: {QUIET}; fill-opacity", (tmp_path / "most.svg").read_text())


def test_the_same_numbers_draw_the_same_picture(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_frequencies(np.array([5, 3, 1, 0]), tmp_path / name, "title")
    assert (tmp_path / "a.svg").stat().st_size > 1000
    with pytest.raises(DataError, match="svg"):
        draw_frequencies(np.array([1]), tmp_path / "a.txt", "title")
