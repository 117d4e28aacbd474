"""SETTINGS → RUNNING SERVICE: one process, or workers that share one port and one memory-mapped index.

Each worker listens for itself at the same port, and the kernel deals out the connections: workers that accept from one
socket leave most of them to whoever wakes first.
SIGTERM and SIGINT stop the service after the work in hand; SIGHUP opens the model folders again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from types import FrameType

import uvicorn
from prometheus_client.multiprocess import mark_process_dead

from longtail.errors import LongtailError, ResourceError
from longtail.serve.app import Service, create_app
from longtail.serve.gauges import SHARED
from longtail.serve.settings import Limits, Settings
from longtail.serve.wire import Wire

log = logging.getLogger("longtail.serve")
STOPPING = (signal.SIGINT, signal.SIGTERM)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PAUSE = 0.5  # seconds between two looks at the workers


def speak() -> None:
    """Write to stderr what the service says, and what others warn of."""
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)


def listen(settings: Settings) -> socket.socket:
    """Bind the address of the settings; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.workers > 1:
            if settings.port and multiprocessing.parent_process() is None:
                _taken(family, settings)  # workers share the port, but not with another service
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((settings.host.strip("[]"), settings.port))
    except socket.gaierror as reason:
        listener.close()
        raise ResourceError(f"{settings.host}: no such address ({reason.strerror}); choose another --host") from None
    except OSError as reason:
        listener.close()
        raise ResourceError(
            f"{settings.host}:{settings.port} cannot be used ({reason.strerror or reason}); "
            "choose another --port, or stop what listens there"
        ) from None
    return listener


def _taken(family: int, settings: Settings) -> None:
    """Raise an OSError if somebody listens at the port."""
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind((settings.host.strip("[]"), settings.port))


def serve(settings: Settings, listener: socket.socket, *, started: Callable[[], None] = lambda: None) -> int:
    """Serve until a signal comes; return the exit code. `started` is called when requests are taken."""
    return _work(settings, listener, started) if settings.workers == 1 else _supervise(settings, listener, started)


def configured(service: Service, limits: Limits) -> uvicorn.Config:
    """Choose how uvicorn runs the service: quick, silent, nothing that is not needed."""
    return uvicorn.Config(
        service,
        http=Wire,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(limits.stop),
        backlog=1024,
    )


class _Server(uvicorn.Server):
    """A server that ends quietly on a signal and opens its models again on SIGHUP."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], reload: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell, self._reload = started, reload

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        parent = multiprocessing.parent_process()
        if parent is not None:  # a worker ends when its supervisor is killed
            loop.add_reader(parent.sentinel, self.handle_exit, signal.SIGTERM, None)
        self._tell()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop gracefully on a signal, without raising it again afterwards."""
        with _handling(self.handle_exit):
            yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that stop a service."""
    before = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _work(settings: Settings, listener: socket.socket, started: Callable[[], None]) -> int:
    """Serve in this process."""
    service = create_app(settings)
    tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.get_running_loop().create_task(service.shelf.reload(force=True))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    gc.collect()
    gc.freeze()  # the model lives as long as the process: the collector need not walk over it
    _Server(configured(service, settings.limits), started, reload).run([listener])
    return 0


def _worker(settings: Settings, ready: Event) -> None:
    """Serve in a worker process."""
    speak()
    try:
        code = _work(settings, listen(settings), ready.set)
    except LongtailError as error:
        log.error("error: %s", error)
        code = error.exit_code
    sys.exit(code)


def _supervise(settings: Settings, listener: socket.socket, started: Callable[[], None]) -> int:
    """Keep the workers alive until a signal comes."""
    for name in THREADS:
        os.environ.setdefault(name, "1")  # the workers are the threads
    os.environ[SHARED] = folder = tempfile.mkdtemp(prefix="longtail-metrics-")
    workers = _Workers(replace(settings, port=listener.getsockname()[1]), folder)  # the listener only keeps the port
    stop: list[int] = []
    try:
        with _handling(lambda number, _: stop.append(number)):
            signal.signal(signal.SIGHUP, lambda *_: workers.signal(signal.SIGHUP))
            workers.start()
            while not stop and not workers.ready():
                if (code := workers.failed()) is not None:
                    return code
                time.sleep(0.05)
            if not stop:
                started()
            while not stop:
                time.sleep(PAUSE)
                workers.mend()
            workers.stop(settings.limits.stop + 5)
            return 0
    finally:
        workers.kill()
        del os.environ[SHARED]
        shutil.rmtree(folder, ignore_errors=True)


class _Workers:
    """The worker processes."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self._settings, self._folder = settings, folder
        self._context = multiprocessing.get_context("spawn")
        self._running: list[tuple[BaseProcess, Event]] = []

    def start(self) -> None:
        """Start all."""
        for _ in range(self._settings.workers):
            self._running.append(self._one())

    def _one(self) -> tuple[BaseProcess, Event]:
        """Start one."""
        ready = self._context.Event()
        process = self._context.Process(target=_worker, args=(self._settings, ready), name="longtail-worker")
        process.start()
        return process, ready

    def ready(self) -> bool:
        """Tell whether all take requests."""
        return all(ready.is_set() for _, ready in self._running)

    def failed(self) -> int | None:
        """Return the exit code of one that ended, if any did."""
        return next((process.exitcode or 1 for process, _ in self._running if not process.is_alive()), None)

    def mend(self) -> None:
        """Start dead ones again."""
        for place, (process, _) in enumerate(self._running):
            if not process.is_alive():
                log.error("a worker died (exit code %s); another takes its place", process.exitcode)
                mark_process_dead(process.pid, self._folder)  # type: ignore[no-untyped-call]
                self._running[place] = self._one()

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        for process, _ in self._running:
            if process.is_alive() and process.pid:
                os.kill(process.pid, number)

    def stop(self, seconds: float) -> None:
        """Let all finish."""
        self.signal(signal.SIGTERM)
        until = time.monotonic() + seconds
        for process, _ in self._running:
            process.join(max(0.0, until - time.monotonic()))

    def kill(self) -> None:
        """End those that are left."""
        for process, _ in self._running:
            if process.is_alive():
                process.kill()
