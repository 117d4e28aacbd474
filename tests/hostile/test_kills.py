"""A command that is killed at any file operation loses nothing, continues, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile.kills import CASES

# One kill of so many is tried by `make test`; all of them by `make test-all`.
QUICK = {"force": 250, "add": 8}


def killed(name: str, place: Path, share: int) -> dict[str, object]:
    command = [sys.executable, str(Path(__file__).with_name("kills.py")), str(place), name, str(share)]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")  # it forks
    environment = os.environ | one | {"PYTHONPATH": os.pathsep.join(paths)}  # it shares small data with other tests
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", QUICK)
def test_a_kill_loses_nothing_and_leaves_nothing(tmp_path, name):
    found = killed(name, tmp_path, QUICK[name])
    assert found["kills"] and not found["wrong"], json.dumps(found, indent=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_kill_at_every_operation_loses_nothing_and_leaves_nothing(tmp_path, name):
    found = killed(name, tmp_path, 1)
    assert found["kills"] and not found["wrong"], json.dumps(found, indent=1)
