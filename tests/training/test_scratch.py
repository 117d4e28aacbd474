"""One training at a time, which the same command continues."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small import board

from longtail.data.dataset import Dataset
from longtail.data.formats import write
from longtail.errors import DataError
from longtail.training.scratch import begin, training

RUN = {"recipe": {"part": "knn"}, "data": "abc", "force": False}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_training_is_refused_at_once(tmp_path):
    out, scratch = tmp_path / "run", tmp_path / "run.unfinished"
    with training(out, scratch, force=False):
        assert not begin(scratch, RUN)
        with pytest.raises(DataError, match="another training is writing here"), training(out, scratch, force=True):
            pass
        assert (scratch / "run.json").exists()
    assert not scratch.exists()


def test_an_unfinished_run_goes_on_and_another_is_refused_or_forgotten(tmp_path):
    out, scratch = tmp_path / "run", tmp_path / "run.unfinished"
    with pytest.raises(KeyboardInterrupt), training(out, scratch, force=False):
        begin(scratch, RUN)
        (scratch / "checkpoint.safetensors").write_text("")
        raise KeyboardInterrupt
    with pytest.raises(DataError, match="other settings or data"), training(out, scratch, force=False):
        begin(scratch, RUN | {"data": "other"})
    with pytest.raises(KeyboardInterrupt), training(out, scratch, force=True):
        assert begin(scratch, RUN | {"force": True})  # of the same: `--force` deletes no checkpoint
        assert (scratch / "checkpoint.safetensors").exists()
        raise KeyboardInterrupt
    with training(out, scratch, force=True):
        assert not begin(scratch, RUN | {"data": "other", "force": True})
        assert names(scratch) == ["run.json"]


def test_what_stands_in_the_way_is_refused_before_anything_is_fitted(tmp_path):
    out, scratch = tmp_path / "run", tmp_path / "run.unfinished"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(DataError, match=r"exists already|other things"), training(out, scratch, force=force):
            pytest.fail("it began")
    assert names(tmp_path) == ["run"]


def test_a_finished_model_is_refused_and_what_its_run_left_is_removed(tmp_path):
    out, scratch = tmp_path / "run", tmp_path / "run.unfinished"
    out.mkdir()
    (out / "config.json").write_text("{}")
    for forced in (False, True):
        scratch.mkdir(exist_ok=True)
        begin(scratch, RUN | {"force": forced})
        with pytest.raises(DataError, match="a finished model is here"), training(out, scratch, force=False):
            pytest.fail("it began")
        assert scratch.exists() == forced  # a run that is to replace the model can still go on


@pytest.mark.parametrize("rounds", [1, pytest.param(1000, marks=pytest.mark.slow)])
def test_of_many_at_once_one_is_let_in(tmp_path, rounds):
    out, scratch = tmp_path / "run", tmp_path / "run.unfinished"
    for _ in range(rounds):
        inside, most, refused, barrier = [], [], [], threading.Barrier(4)

        def work(inside=inside, most=most, refused=refused, barrier=barrier) -> None:
            barrier.wait()
            try:
                with training(out, scratch, force=False):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except DataError:
                refused.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(most) + len(refused) == 4 and max(most) == 1 and not names(tmp_path)


def test_two_commands_into_one_folder(tmp_path):
    train = board(40)
    write(Dataset(train.labels, {"train": train}, "board"), tmp_path / "data", "jsonl")
    command = [sys.executable, "-m", "longtail", "train", "knn", "--data", "data", "--out", "run"]
    both = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    words = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 3], words
    assert any("another training" in said or "a finished model is here" in said for said in words)
    assert names(tmp_path) == ["data", "run"]
