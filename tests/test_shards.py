"""Who owns which label, and processes that start and end together."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from longtail.cli.launch import run_together
from longtail.errors import ResourceError
from longtail.estimates import enough_processes, estimate
from longtail.files import read_arrays, write_blocks
from longtail.machine import memory_usage
from longtail.recipe import find_recipe
from longtail.records import Sizes
from longtail.shards import ALONE, Group, split, splitting, told, world

MANY = Sizes(points=3_000_000, labels=1_000_000, pairs=9_000_000, words=6, vocabulary=200_000)


def test_every_label_has_one_owner():
    labels = np.array([0, 3, 4, 7, 8, 20])
    groups = [Group(rank, 3) for rank in range(3)]
    owned = [labels[group.owned(labels)] for group in groups]
    assert sorted(np.concatenate(owned)) == labels.tolist()
    assert [own.tolist() for own in owned] == [[0, 3], [4, 7], [8, 20]]
    assert [group.count(10) for group in groups] == [4, 3, 3]
    assert ALONE.owned(labels).tolist() == [0, 1, 2, 3, 4, 5]


def test_losses_know_who_shares_the_labels_at_hand():
    assert split() is world() is ALONE
    group = Group(1, 2)
    with splitting(group):
        assert split() is group
    assert split() is ALONE


def test_a_process_that_has_ended_is_said_in_words():
    def lost() -> None:
        raise RuntimeError("[pair.cc:537] Read error [127.0.0.1]:1: Connection closed by peer. This is typical\nmore")

    with pytest.raises(ResourceError, match=r"has ended.*Connection closed by peer\); the same command continues"):
        told(lost)


def test_arrays_are_written_in_blocks(tmp_path: Path):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    count = np.array([7])
    arrays = {"rows": (rows.dtype, rows.shape, iter([rows[:3], rows[3:]])), "n": (count.dtype, (1,), iter([count]))}
    write_blocks(tmp_path / "a.safetensors", arrays)
    found = read_arrays(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(found["rows"], rows)
    assert found["n"].tolist() == [7]


def each(count: int) -> list[dict[str, str]]:
    return [{"RANK": str(rank)} for rank in range(count)]


def test_processes_end_well_together():
    assert run_together([sys.executable, "-S", "-c", "pass"], each(2)) == 0


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_once_one_is_killed_all_end(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setattr("longtail.cli.launch.GRACE", 0.2)
    code = "import os, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(60)"
    began = time.monotonic()
    assert run_together([sys.executable, "-S", "-c", code], each(3)) == ResourceError.exit_code
    assert time.monotonic() - began < 30
    said = " ".join(capfd.readouterr().err.split())
    assert "process 2 of 3 was ended by SIGKILL" in said
    assert "the same command continues" in said
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_fails_speaks_for_itself(capfd: pytest.CaptureFixture[str]):
    code = "import os, sys; sys.exit('disk is full' if os.environ['RANK'] == '1' else 0)"
    assert run_together([sys.executable, "-S", "-c", code], each(2)) == 1
    assert "process 2 of 2: disk is full" in capfd.readouterr().err


def test_shared_labels_need_less_memory_and_send_something():
    alone, two, four = (estimate(find_recipe("astec"), MANY, processes=count) for count in (1, 2, 4))
    assert alone.memory_bytes > two.memory_bytes > four.memory_bytes
    assert alone.sent_bytes == 0 < two.sent_bytes < four.sent_bytes
    assert two.sent_bytes == 4 * 255 * 300  # the gradient of the vectors of a batch, which a ring of two sends once


def test_row_wise_state_takes_a_third_of_the_rows():
    recipe = find_recipe("frugal")
    adam, adagrad = (estimate(recipe.override("training.optimizer", name), MANY) for name in ("adam", "adagrad"))
    saved = 2 * 4 * 256 * (MANY.labels + MANY.vocabulary)
    assert adam.memory_bytes - adagrad.memory_bytes == pytest.approx(saved, rel=0.01)


def test_the_estimate_says_how_many_machines_are_enough():
    recipe = find_recipe("astec")
    needs = [estimate(recipe, MANY, processes=count).memory_bytes for count in (1, 2, 4)]
    assert enough_processes(recipe, MANY, needs[0]) == 1
    assert enough_processes(recipe, MANY, (needs[1] + needs[2]) // 2 - memory_usage()[1]) == 4  # beside what it has had
    assert enough_processes(recipe, MANY, 1000) is None
