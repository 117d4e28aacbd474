"""Progress: lines without a terminal, and a bar that fits into one."""

from __future__ import annotations

import io
import threading
import time

import pytest
from rich.console import Console

from longtail.cli import console

LONG = "fitting frugal to 131,073 points and 131,073 labels: member 2 of 3, siamese, epoch 17 of 100"


@pytest.fixture
def plain(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(console, "stderr", Console(file=out, force_terminal=False, width=80))
    return out


def test_progress_is_told_in_lines_without_a_terminal(plain, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.progress("reading") as step:
        for now[0], done in ((3.0, 1), (11.0, 50), (15.0, 60)):
            step(f"{done} rows", done, 100)
    assert plain.getvalue() == "reading\nreading: 50 rows (50%)\n"


def test_what_never_tells_how_far_it_is_says_how_long_it_has_taken(plain, monkeypatch):
    monkeypatch.setattr(console, "EVERY", 0.05)
    with console.progress("evaluating"):
        time.sleep(0.3)
    first, *others = plain.getvalue().splitlines()
    assert first == "evaluating"
    assert 1 <= len(others) <= 6 and {*others} == {"evaluating, 1 second so far"}
    assert not [thread for thread in threading.enumerate() if thread.name == "longtail-progress"]


def test_a_step_that_takes_long_is_told_again(plain, monkeypatch):
    monkeypatch.setattr(console, "EVERY", 0.05)
    with console.progress("fitting") as step:
        step("epoch 1", 1, 4)
        time.sleep(0.2)
    assert "fitting: epoch 1 (25%), 1 second so far" in plain.getvalue().splitlines()


def test_lines_end_with_an_error_too(plain):
    with pytest.raises(ValueError, match="bad"), console.progress("reading"):
        raise ValueError("bad")
    assert not [thread for thread in threading.enumerate() if thread.name == "longtail-progress"]


@pytest.mark.parametrize("width", [40, 59, 60, 80, 120])
@pytest.mark.parametrize("what", [LONG, "読み込み" * 30 + ": 17 of 100"])
def test_a_bar_has_its_place_beside_a_long_description(monkeypatch, width, what):
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=width, color_system=None, legacy_windows=False)
    monkeypatch.setattr(console, "stderr", terminal)
    start, _, name = what.partition(": ")
    with console.progress(start) as step:
        step(name, 37, 100)
        time.sleep(0.25)  # two looks of the clock
    line = next(line for line in reversed(out.getvalue().replace("\r", "\n").split("\n")) if "37%" in line)
    assert "━" in line and ":" in line.split("37%")[1]
    assert "17 of 100" in line and "…" in line
    assert console.cell_len(line.replace("\x1b[2K", "")) <= width
