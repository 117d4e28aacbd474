"""COMMAND → ITS PROCESSES: start them on this machine, or on a Ray cluster, and end all of them when one ends badly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from types import FrameType
from typing import IO

from longtail.cli.console import say
from longtail.errors import ResourceError
from longtail.machine import cores, need
from longtail.shards import PARENT
from longtail.system import signals


class Launcher(StrEnum):
    """Who starts the processes of a training."""

    local = "local"
    ray = "ray"


EVERY = 0.05  # seconds between looks at the processes
GRACE = 20.0  # seconds in which the other processes end by themselves once one has
LAST = 2000  # characters that are shown of what a process has said


def free_port() -> int:
    """Find a port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launch(processes: int, launcher: str) -> int:
    """Run this command as so many processes; returns the exit code."""
    command = [sys.executable, "-m", "longtail", *sys.argv[1:]]
    if launcher == "ray":
        return _on_ray(processes, command)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
    shared |= {"LOCAL_WORLD_SIZE": str(processes), "OMP_NUM_THREADS": str(max(1, cores() // processes))}
    return run_together(command, [shared | {"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(processes)])


def run_together(command: Sequence[str], each: Sequence[Mapping[str, str]]) -> int:
    """Run a command with the variables of each process; the first one speaks. Returns the exit code of what failed."""
    started, own = list[subprocess.Popen[bytes]](), {**os.environ, PARENT: str(os.getpid())}
    with ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in each]
        stack.callback(_end, started)
        stack.enter_context(_passed_on(started))
        for variables, words in zip(each, said, strict=True):
            quiet = subprocess.DEVNULL if started else None
            told = words if started else None
            started.append(subprocess.Popen(command, env={**own, **variables}, stdout=quiet, stderr=told))
        return _watched(started, said)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what is still running."""
    for process in started:
        process.kill()
        process.wait()


@contextmanager
def _passed_on(started: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass signals on to all processes; Ctrl-C reaches them from the terminal."""

    def pass_on(number: int, _: FrameType | None) -> None:
        for process in started if number != signal.SIGINT else ():
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in signals("SIGTERM", "SIGHUP", "SIGINT")}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watched(started: Sequence[subprocess.Popen[bytes]], said: Sequence[IO[bytes]]) -> int:
    """Wait for all processes; once one fails, the others have a while to say so, and are ended."""
    failed, count = None, len(started)
    while failed is None:
        codes = [process.poll() for process in started]
        if all(code == 0 for code in codes):
            return 0
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        time.sleep(EVERY)
    until = time.monotonic() + GRACE
    while time.monotonic() < until and any(process.poll() is None for process in started):
        time.sleep(EVERY)
    code = started[failed].returncode
    if -code in signals("SIGTERM", "SIGHUP", "SIGINT"):
        return 128 - code
    if code < 0:
        say(
            f"error: process {failed + 1} of {count} was ended by {signal.Signals(-code).name}, probably for lack of "
            "memory, and the others ended with it; the same command continues from the last checkpoint, with any "
            "number of --processes"
        )
        return ResourceError.exit_code
    if failed:  # the first one has spoken for itself
        said[failed].seek(0)
        say(f"process {failed + 1} of {count}: {said[failed].read().decode(errors='replace')[-LAST:].strip()}")
    return code


def _on_ray(processes: int, command: Sequence[str]) -> int:
    """Run a command as so many tasks of a Ray cluster, which Ray places; returns the exit code of what failed."""
    need("ray", "ray")
    import ray

    ray.init(ignore_reinit_error=True, log_to_driver=True)

    class Worker:
        """A process of the training, on whichever machine Ray finds room."""

        def address(self) -> tuple[str, int]:
            """Say where the others find this one."""
            host = str(ray.util.get_node_ip_address())
            with socket.socket() as found:
                found.bind((host, 0))
                return host, int(found.getsockname()[1])

        def run(self, variables: dict[str, str]) -> int:
            """Run the command."""
            return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode

    remote = ray.remote(num_cpus=1)(Worker)
    workers = [remote.remote() for _ in range(processes)]
    host, port = ray.get(workers[0].address.remote())
    shared = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    ends = [worker.run.remote(shared | {"RANK": str(rank)}) for rank, worker in enumerate(workers)]
    try:
        codes = [int(code) for code in ray.get(ends)]
    except ray.exceptions.RayError as reason:
        what = str(reason).splitlines()[0]
        say(f"error: a worker of the Ray cluster has ended ({what}); the same command continues")
        return ResourceError.exit_code
    finally:
        ray.shutdown()
    return next((code if code > 0 else ResourceError.exit_code for code in codes if code), 0)
