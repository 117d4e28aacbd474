"""One process and several give the same training: same losses, same rows, from the same checkpoints."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from small import SMALL, TRAINED
from training.ranks import Job, run, start

FULL = {"training.precision": "32-true"}  # several processes multiply in full precision
FRUGAL: Job = ("frugal", {"alone": True, "training.epochs": 2, "training.batch_size": 32, **FULL})
SHORT = {"frugal": {"training.batch_size": 32, "training.epochs": 12, **FULL}}  # with Gandalf and voices, trained twice
MINED = {"sampler.refresh": 1, "training.batch_size": 16}


def job(name: str) -> Job:
    """Make a recipe small, with two epochs."""
    settings = SHORT.get(name, SMALL[name]) | (MINED if name in ("depsl", "unidec") else {})
    return name, {path: min(2, value) if path.endswith(".epochs") else value for path, value in settings.items()}


def close(ours: dict[str, object], theirs: dict[str, object]) -> None:
    """Compare the losses of all steps, and the rows, of which Adam moves those with hardly a gradient by chance."""
    (steps, losses), (others, more) = (
        np.array(one["losses"]).reshape(-1, 2).T for one in (ours, theirs)
    )  # fmt: skip
    assert steps.tolist() == others.tolist()
    np.testing.assert_allclose(losses, more, rtol=0, atol=1e-5)
    if ours["rows"] is not None:
        np.testing.assert_allclose(np.array(ours["rows"]), np.array(theirs["rows"]), rtol=0, atol=1e-3)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    (one,), (two,) = (run(size, tmp_path / str(size), FRUGAL) for size in (1, 2))
    assert one["sent"] == 0 < two["sent"]
    close(one, two)


@pytest.mark.slow
def test_a_killed_run_continues_with_another_number_of_processes(tmp_path: Path) -> None:
    name, settings = FRUGAL
    settings = settings | {"training.save_seconds": 0.0, "training.patience": 9, "training.average": 0.1}
    settings |= {"training.epochs": 4}
    (unbroken,) = run(1, tmp_path / "unbroken", (name, settings))
    for size, stop in ((2, 5), (3, 9)):
        ended = start(size, tmp_path / "broken", (name, settings | {"stop": stop}))
        assert ended[-1][0] == -signal.SIGKILL
        for code, said in ended[:-1]:
            assert code == 1
            assert "another process of this training has ended" in said, said
    (last,) = run(1, tmp_path / "broken", (name, settings))
    assert last["losses"][0][0] == 9
    close({**unbroken, "losses": unbroken["losses"][9:]}, last)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_recipes_of_all_kinds_train_as_in_one_process(tmp_path: Path, size: int) -> None:
    jobs = [job(name) for name in (*TRAINED, "linear")]
    found, same = run(size, tmp_path / str(size), *jobs), run(1, tmp_path / "1", *jobs)
    for (name, _), ours, theirs in zip(jobs, found, same, strict=True):
        close(ours, theirs)
        if name == "linear":
            assert ours["answers"] == theirs["answers"]
