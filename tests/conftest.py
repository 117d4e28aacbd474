"""Where the tests find real data, when they skip, and what a process does once for all of its trainings."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as cores: one thread each
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("LONGTAIL_DATA", ROOT.parent / "shared" / "data"))


def shared_data(name: str) -> Path:
    """Return the folder of a shared data set, or skip the test with the reason."""
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not here; set LONGTAIL_DATA to the folder that holds it")
    return folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch use one thread, where sums must come out bit-equal."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files reach the disk when they like, where a test only stops within its own process."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples without --slow; read entry points once, for which Fabric asks in every run of the loop."""
    hypothesis.settings.register_profile("quick", max_examples=30)
    if not config.getoption("--slow"):
        hypothesis.settings.load_profile("quick")
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow: run by `make test-all`")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)
