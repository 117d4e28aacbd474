"""SETTINGS → RUNNING SERVICE: a supervisor, and workers that share one port and one memory-mapped index.

A worker that dies (of memory, or because a mapped file was cut short) is replaced, also when it is the only one; what
it held is answered by a 503 (`held`). Each worker listens at the same port with a socket of its own (SO_REUSEPORT), and
the kernel distributes the connections: of workers that share one socket, whichever wakes first takes most of them. The
supervisor keeps these sockets: connections that nobody has accepted wait for the next worker.
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
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType

import uvicorn
from prometheus_client.multiprocess import mark_process_dead

from longtail.errors import LongtailError, ResourceError
from longtail.limits import is_shortage, shortage
from longtail.serve.app import Service, create_app
from longtail.serve.gauges import SHARED
from longtail.serve.held import POSSIBLE, Held, Notes, refuse
from longtail.serve.settings import Limits, Settings
from longtail.serve.wire import Wire
from longtail.system import allow_open_files, signals
from longtail.whole import temporary

log = logging.getLogger("longtail.serve")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
RELOAD = signals("SIGHUP")
SHARES_PORTS = hasattr(socket, "SO_REUSEPORT")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
POLL_INTERVAL = 0.5  # seconds between two checks of the workers


def configure_logging() -> None:
    """Log to stderr: the service from INFO on, other libraries from WARNING on."""
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)


def listen(settings: Settings, *, shared: bool = False) -> socket.socket:
    """Bind the address of the settings, also `shared` with own workers; port 0 takes any free one."""
    if shared and not SHARES_PORTS:
        raise ResourceError("this system lets one process listen at a port: use --workers 1")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.port and not shared:
            _check_port_free(family, settings)
        if SHARES_PORTS:
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
    allow_open_files()  # each connection takes two, and one here
    with temporary("metrics") as folder:
        os.environ[SHARED] = str(folder)  # what the workers count together
        try:
            return _supervise(settings, listener, started)
        finally:
            del os.environ[SHARED]


def uvicorn_config(service: Service, limits: Limits, notes: Notes | None = None) -> uvicorn.Config:
    """Return the configuration of uvicorn: no access log, no websockets, no extra headers."""
    return uvicorn.Config(
        service,
        http=type("NotedWire", (Wire,), {"notes": notes}),
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

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], reload: Callable[[], None], notes: Notes | None
    ) -> None:
        super().__init__(config)
        self._on_started, self._reload, self._notes = started, reload, notes
        self._tasks: set[asyncio.Task[object]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, handle SIGHUP, then call `started`."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        parent = multiprocessing.parent_process()
        for number in RELOAD:
            loop.add_signal_handler(number, self._reload)
        if RELOAD and parent is not None:  # a worker ends when its supervisor is killed; Windows cannot wait for that
            loop.add_reader(parent.sentinel, self.handle_exit, signal.SIGTERM, None)
        if self._notes is not None:
            loop.add_reader(self._notes.fileno(), self._take_given, self._notes)
        self._on_started()

    def _take_given(self, notes: Notes) -> None:
        """Serve connections that came to a worker that is gone."""
        loop, config = asyncio.get_running_loop(), self.config

        def wire() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )

        for connection in notes.given():
            task: asyncio.Task[object] = loop.create_task(loop.connect_accepted_socket(wire, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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


def _worker(settings: Settings, ready: Event, listener: socket.socket, told: tuple[socket.socket, Path] | None) -> None:
    """Serve in a worker process."""
    configure_logging()
    try:
        code = _serve_in_process(settings, ready.set, listener, None if told is None else Notes(*told))
    except LongtailError as error:
        log.error("error: %s", error)
        code = error.exit_code
    except Exception as error:
        if not is_shortage(error):
            raise
        log.error("error: %s", shortage())
        code = ResourceError.exit_code
    sys.exit(code)


def _serve_in_process(
    settings: Settings, started: Callable[[], None], listener: socket.socket, notes: Notes | None
) -> int:
    """Serve in this process."""
    service = create_app(settings)
    tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.get_running_loop().create_task(service.registry.reload(force=True))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    gc.collect()
    gc.freeze()  # the model lives as long as the process: garbage collection can skip it
    _Server(uvicorn_config(service, settings.limits, notes), started, reload, notes).run([listener])
    return 0


def _supervise(settings: Settings, listener: socket.socket, started: Callable[[], None]) -> int:
    """Start the workers and restart dead ones, until a signal comes."""
    settings = replace(settings, port=listener.getsockname()[1])
    listeners = [listener, *(listen(settings, shared=True) for _ in range(settings.workers - 1))]
    workers = [_Slot(settings, own, Path(os.environ[SHARED]) / f"held{place}") for place, own in enumerate(listeners)]
    stop: list[int] = []
    try:
        with _signal_handlers(lambda number, _: stop.append(number)):
            for number in RELOAD:
                signal.signal(number, lambda number, _: _signal(workers, number))
            for worker in workers:
                worker.start()
            while not stop and not all(worker.ready.is_set() for worker in workers):
                for worker in workers:
                    if (code := worker.failed()) is not None:
                        return code
                time.sleep(0.05)
            if not stop:
                started()
            while not stop:
                able = [worker for worker in workers if worker.able]
                unable = [worker for worker in workers if not worker.able and able]
                wait([*(worker.listener for worker in unable), *_told_by(workers)], POLL_INTERVAL)
                for worker in unable:
                    worker.hand_over(able)
                for worker in workers:
                    worker.tend()
            _stop(workers, settings.limits.shutdown_timeout + 5)
            return 0
    finally:
        for worker in workers:
            worker.kill()


def _told_by(workers: list[_Slot]) -> list[int]:
    """List what tells that there is something to do: the ends of workers, and their connections."""
    held = [worker.held.fileno() for worker in workers if worker.held is not None]
    return [*(worker.process.sentinel for worker in workers), *held]


def _signal(workers: list[_Slot], number: int) -> None:
    """Send a signal to all workers."""
    for worker in workers:
        worker.signal(number)


def _stop(workers: list[_Slot], seconds: float) -> None:
    """Stop all workers gracefully, with a timeout."""
    for worker in workers:
        worker.listener.close()  # nobody waits for a worker any more
    _signal(workers, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))


class _Slot:
    """The place of one worker process: the socket that it listens at, and what it holds."""

    process: BaseProcess
    ready: Event
    held: Held | None

    def __init__(self, settings: Settings, listener: socket.socket, states: Path) -> None:
        self._settings, self.listener, self._states = settings, listener, states
        listener.setblocking(False)
        self._context = multiprocessing.get_context("spawn")

    def start(self) -> None:
        """Start a worker."""
        self.ready, self.held = self._context.Event(), Held(self._states) if POSSIBLE else None
        told = None if self.held is None else (self.held.channel, self.held.states)
        self.process = self._context.Process(
            target=_worker, args=(self._settings, self.ready, self.listener, told), name="longtail-worker"
        )
        self.process.start()
        if self.held is not None:
            self.held.channel.close()  # the worker has its own

    def failed(self) -> int | None:
        """Return the exit code of a worker that ended while it started, if it did; a signal is told."""
        code = None if self.process.is_alive() else self.process.exitcode or 1
        if code is not None and code < 0:
            raise ResourceError(f"a worker was ended by {signal.Signals(-code).name} while it started: {shortage()}")
        return code

    @property
    def able(self) -> bool:
        """Whether the worker answers, and can be given connections."""
        return self.held is not None and self.ready.is_set() and self.process.is_alive()

    def hand_over(self, others: list[_Slot]) -> None:
        """Give connections that nobody accepts here, while a worker starts, to other workers in turn."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # no more
                return
            with connection:
                others.append(others.pop(0))
                if (held := others[-1].held) is None or not held.give(connection):
                    connection.setblocking(False)
                    with suppress(OSError):
                        refuse(connection)

    def tend(self) -> None:
        """Take what the worker tells; replace it if it is dead."""
        if self.process.is_alive():
            if self.held is not None:
                self.held.tend()
            return
        answered = 0 if self.held is None else self.held.answer()
        log.error(
            "a worker died (exit code %s); another takes its place, requests answered by 503: %d",
            self.process.exitcode, answered,
        )  # fmt: skip
        mark_process_dead(self.process.pid, str(self._states.parent))  # type: ignore[no-untyped-call]
        self.start()

    def signal(self, number: int) -> None:
        """Send a signal to the worker."""
        if self.process.is_alive() and self.process.pid:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kill the worker if it still runs."""
        if self.process.is_alive():
            self.process.kill()
