from __future__ import annotations

import numpy as np
import pytest

from longtail.errors import DataError
from longtail.report import bar, draw_frequencies, frequency_steps, sparkline


def test_lines_of_blocks():
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([1, 2, 8])[-1] == "█"
    assert bar(0, 3) == "   "
    assert bar(7, 3) == "███"
    assert len(frequency_steps(np.arange(1000))) <= 40


def test_the_same_numbers_draw_the_same_picture(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_frequencies(np.array([5, 3, 1, 0]), tmp_path / name, "title")
    assert (tmp_path / "a.svg").stat().st_size > 1000
    with pytest.raises(DataError, match="svg"):
        draw_frequencies(np.array([1]), tmp_path / "a.txt", "title")
