"""A service in a thread, at a free port of this machine."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from serve.double import Double

from longtail.serve.app import create_app
from longtail.serve.run import uvicorn_config
from longtail.serve.settings import Limits, Settings

ANIMALS = ["red cat", "old dog", "wild fox", "small brown mouse", "cat and dog"]
FREQUENCIES = [9, 5, 3, 1, 0]


@contextmanager
def running(*indexes, limits=None, **options):
    """Serve indexes; yield a client."""
    runs = tuple(Path(f"run{place}") for place in range(len(indexes)))
    settings = Settings(runs, port=0, limits=limits or Limits(), **options)
    app = create_app(settings, indexes=indexes)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn_config(app, settings.limits))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            deadline = time.monotonic() + 10
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.005)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=address, timeout=20) as client:
                client.app = app
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def start():
    """Start services that end with the test."""
    with ExitStack() as stack:
        yield lambda *indexes, **options: stack.enter_context(running(*indexes, **options))


@pytest.fixture(scope="module")
def client():
    """One service for all tests of a module that change nothing."""
    with running(Double("animals", ANIMALS, FREQUENCIES)) as client:
        yield client


def until(condition, seconds=60.0):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
