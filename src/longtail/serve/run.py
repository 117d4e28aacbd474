"""SETTINGS → RUNNING SERVICE: a supervisor, and workers that share one port and one memory-mapped index.

A worker that dies (of memory, or because a mapped file was cut short) is replaced, also when it is the only one. Each
worker listens at the same port with a socket of its own (SO_REUSEPORT), and the kernel distributes the
connections: of workers that share one socket, whichever wakes first takes most of them.
SIGTERM and SIGINT stop the service after the accepted requests; SIGHUP reloads the model folders.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
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
from longtail.whole import temporary

log = logging.getLogger("longtail.serve")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
POLL_INTERVAL = 0.5  # seconds between two checks of the workers


def configure_logging() -> None:
    """Log to stderr: the service from INFO on, other libraries from WARNING on."""
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)


def listen(settings: Settings) -> socket.socket:
    """Bind the address of the settings; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.port and multiprocessing.parent_process() is None:
            _check_port_free(family, settings)  # workers share the port, but not with another service
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


def _check_port_free(family: int, settings: Settings) -> None:
    """Raise an OSError if another process listens at the port."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((settings.host.strip("[]"), settings.port))


def serve(settings: Settings, listener: socket.socket, *, started: Callable[[], None] = lambda: None) -> int:
    """Serve until a signal comes; return the exit code. `started` is called when requests are accepted."""
    if settings.workers > 1:
        for name in THREAD_VARIABLES:
            os.environ.setdefault(name, "1")  # parallelism comes from the workers
    with temporary("metrics") as folder:
        os.environ[SHARED] = str(folder)  # what the workers count together
        try:
            return _supervise(settings, listener, started)
        finally:
            del os.environ[SHARED]


def uvicorn_config(service: Service, limits: Limits) -> uvicorn.Config:
    """Return the configuration of uvicorn: no access log, no websockets, no extra headers."""
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
        timeout_graceful_shutdown=int(limits.shutdown_timeout),
        backlog=1024,
    )


class _Server(uvicorn.Server):
    """A server that stops gracefully on a signal and reloads its models on SIGHUP."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], reload: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started, self._reload = started, reload

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, handle SIGHUP, then call `started`."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        parent = multiprocessing.parent_process()
        if parent is not None:  # a worker ends when its supervisor is killed
            loop.add_reader(parent.sentinel, self.handle_exit, signal.SIGTERM, None)
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop gracefully on a signal, without raising it again afterwards."""
        with _signal_handlers(self.handle_exit):
            yield


@contextmanager
def _signal_handlers(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler of the stop signals; restore the old ones afterwards."""
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _serve_in_process(settings: Settings, listener: socket.socket, started: Callable[[], None]) -> int:
    """Serve in this process."""
    service = create_app(settings)
    tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.get_running_loop().create_task(service.registry.reload(force=True))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    gc.collect()
    gc.freeze()  # the model lives as long as the process: garbage collection can skip it
    _Server(uvicorn_config(service, settings.limits), started, reload).run([listener])
    return 0


def _worker(settings: Settings, ready: Event) -> None:
    """Serve in a worker process."""
    configure_logging()
    try:
        code = _serve_in_process(settings, listen(settings), ready.set)
    except LongtailError as error:
        log.error("error: %s", error)
        code = error.exit_code
    sys.exit(code)


def _supervise(settings: Settings, listener: socket.socket, started: Callable[[], None]) -> int:
    """Start the workers and restart dead ones, until a signal comes."""
    shared = os.environ[SHARED]
    workers = _Workers(replace(settings, port=listener.getsockname()[1]), shared)  # the listener only reserves the port
    stop: list[int] = []
    try:
        with _signal_handlers(lambda number, _: stop.append(number)):
            signal.signal(signal.SIGHUP, lambda *_: workers.signal(signal.SIGHUP))
            workers.start()
            while not stop and not workers.ready():
                if (code := workers.failed()) is not None:
                    return code
                time.sleep(0.05)
            if not stop:
                started()
            while not stop:
                time.sleep(POLL_INTERVAL)
                workers.restart_dead()
            workers.stop(settings.limits.shutdown_timeout + 5)
            return 0
    finally:
        workers.kill()


class _Workers:
    """The worker processes."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self._settings, self._folder = settings, folder
        self._context = multiprocessing.get_context("spawn")
        self._running: list[tuple[BaseProcess, Event]] = []

    def start(self) -> None:
        """Start all workers."""
        for _ in range(self._settings.workers):
            self._running.append(self._spawn())

    def _spawn(self) -> tuple[BaseProcess, Event]:
        """Start one worker."""
        ready = self._context.Event()
        process = self._context.Process(target=_worker, args=(self._settings, ready), name="longtail-worker")
        process.start()
        return process, ready

    def ready(self) -> bool:
        """Return whether all workers accept requests."""
        return all(ready.is_set() for _, ready in self._running)

    def failed(self) -> int | None:
        """Return the exit code of a worker that ended, if one did."""
        return next((process.exitcode or 1 for process, _ in self._running if not process.is_alive()), None)

    def restart_dead(self) -> None:
        """Replace dead workers."""
        for slot, (process, _) in enumerate(self._running):
            if not process.is_alive():
                log.error("a worker died (exit code %s); another takes its place", process.exitcode)
                mark_process_dead(process.pid, self._folder)  # type: ignore[no-untyped-call]
                self._running[slot] = self._spawn()

    def signal(self, number: int) -> None:
        """Send a signal to all workers."""
        for process, _ in self._running:
            if process.is_alive() and process.pid:
                os.kill(process.pid, number)

    def stop(self, seconds: float) -> None:
        """Stop all workers gracefully, with a timeout."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for process, _ in self._running:
            process.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """Kill the workers that still run."""
        for process, _ in self._running:
            if process.is_alive():
                process.kill()
