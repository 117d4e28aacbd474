"""COMMAND LINE → COMMAND, under a limit of memory in a process of its own.

Libraries that get no memory end a process in their own ways: abort, exit, or a signal of the kernel that nothing can
catch. So where a limit is set, a small process waits for the command, and says in one line what ended it.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from longtail.errors import ResourceError
from longtail.limits import LEAST, few_threads, in_words, is_shortage, shortage
from longtail.system import FORKS, address_space, end_with, signals

PASSED_ON = signals("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
STOPPED = signals("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE")  # by somebody else than memory
GRACE = 60  # seconds after SIGTERM until a command that hears nothing is killed


def main() -> None:
    """Run the command line."""
    if not in_words() or not FORKS:
        _run()
        return
    space = address_space()
    if space is not None and space < LEAST:
        _stop(f"{in_words()} are too little: the libraries alone take {LEAST >> 20} MB; allow more")
    few_threads()
    ended, note = os.pipe()
    os.set_blocking(ended, False)
    own = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until somebody can hear them
    child = os.fork()
    if child:
        os.close(note)
        sys.exit(_waited(child, ended))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    os.close(ended)
    end_with(own)
    try:
        _run()
    finally:
        os.write(note, b".")  # it ends in its own way, with its own words


def _run() -> None:
    """Import the commands and run one."""
    try:
        from longtail.cli import main as run  # noqa: PLC0415  (takes memory)
    except Exception as reason:
        if is_shortage(reason):
            _stop(shortage())
        raise
    run()


def _waited(child: int, ended: int) -> int:
    """Wait for the command, pass signals on, and return the exit code; say what ended it if it could not."""

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(child, number)
        if number == signal.SIGTERM:
            signal.alarm(GRACE)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to both
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0 and _has_note(ended):
        return code
    if -code in STOPPED:
        return 128 - code
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"a library, code {code}"
    return _told(f"the command was ended by {how}, probably {shortage()}")


def _has_note(ended: int) -> bool:
    """Return whether the command said that it ends in its own way."""
    try:
        return bool(os.read(ended, 1))
    except BlockingIOError:
        return False


def _told(message: str) -> int:
    """Print an error and return its exit code."""
    sys.stderr.write(f"error: {message}\n")
    return ResourceError.exit_code


def _stop(message: str) -> None:
    """Print an error and exit."""
    sys.exit(_told(message))
