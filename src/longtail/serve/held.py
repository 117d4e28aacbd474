"""CONNECTIONS OF A WORKER THAT DIED → 503: the supervisor holds a copy of each, and answers where the worker cannot.

A worker sends a copy of every connection that it accepts to the supervisor, and notes in shared memory whether a
request on it waits for its answer. When the worker is gone its connections are still open: what waited gets a 503, what
was idle is closed. The other way, workers are given the connections that came to the socket of a dead one. Linux only;
elsewhere a connection ends with its worker.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from longtail.serve.messages import JSON, SAFE_HEADERS, encode

POSSIBLE = hasattr(select, "epoll")
IDLE, BUSY, STARTED = 0, 1, 2  # nothing is asked; a request waits; its answer has begun
NUMBERS = 65536  # connections of a worker whose state is noted
DETAIL = "the process that was to answer this has ended; ask again (see first whether a change of labels was made)"
BODY = encode({"detail": DETAIL})
HEADERS = [
    (b"content-type", JSON), (b"content-length", b"%d" % len(BODY)), (b"retry-after", b"1"), (b"connection", b"close"),
    *SAFE_HEADERS,
]  # fmt: skip
ANSWER = b"HTTP/1.1 503 Service Unavailable\r\n" + b"".join(b"%s: %s\r\n" % pair for pair in HEADERS) + b"\r\n" + BODY


class Notes:
    """What a worker tells of its connections."""

    def __init__(self, channel: socket.socket, states: Path) -> None:
        self._channel, self._states = channel, _mapped(states)
        channel.setblocking(False)

    def opened(self, connection: socket.socket) -> Callable[[int], None]:
        """Send a copy of a connection; return what notes its state. A supervisor that does not listen holds nothing."""
        number, states = connection.fileno(), self._states
        if number >= NUMBERS:
            return lambda _: None
        states[number] = IDLE
        with suppress(OSError):
            socket.send_fds(self._channel, [number.to_bytes(4, "little")], [number])
        return lambda state: states.__setitem__(number, state)

    def fileno(self) -> int:
        """Return what can be waited for: connections that the supervisor gives."""
        return self._channel.fileno()

    def given(self) -> list[socket.socket]:
        """Take the connections that the supervisor gives; never waits."""
        return [connection for _, connection in _received(self._channel)]


class Held:
    """The copies that a supervisor holds of the connections of one worker."""

    def __init__(self, states: Path) -> None:
        self.states = states
        self.states.write_bytes(bytes(NUMBERS))
        self._noted = _mapped(states)
        self._own, self.channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        self._poll = select.epoll()
        self._poll.register(self._own, select.EPOLLIN)
        self._copies: dict[int, socket.socket] = {}  # by the worker's numbers
        self._numbers: dict[int, int] = {}  # the worker's, by our own

    def fileno(self) -> int:
        """Return what can be waited for."""
        return self._poll.fileno()

    def tend(self) -> None:
        """Take new connections, and let closed ones go; never waits."""
        for handle, _ in self._poll.poll(0):
            if handle == self._own.fileno():
                self._take()
            elif handle in self._numbers:
                self._drop(self._numbers[handle])  # the worker has shut it down, or the client is gone

    def _take(self) -> None:
        """Receive copies of connections."""
        for number, copy in _received(self._own):
            self._drop(number)
            self._copies[number], self._numbers[copy.fileno()] = copy, number
            self._poll.register(copy, 0)  # its end is always told

    def give(self, connection: socket.socket) -> bool:
        """Give the worker a connection; return whether it can take it."""
        try:
            socket.send_fds(self._own, [bytes(4)], [connection.fileno()])
        except OSError:
            return False
        return True

    def _drop(self, number: int) -> None:
        """Close a copy."""
        copy = self._copies.pop(number, None)
        if copy is not None:
            del self._numbers[copy.fileno()]
            copy.close()

    def answer(self) -> int:
        """Answer what waited when the worker died, close the other connections, and return how many were answered."""
        self.tend()
        answered = 0
        for number, copy in self._copies.items():
            with suppress(OSError):  # the client is gone
                if self._noted[number] == BUSY or (self._noted[number] == IDLE and _has_bytes(copy)):
                    refuse(copy)
                    answered += 1
                else:
                    copy.shutdown(socket.SHUT_RDWR)
        self.close()
        return answered

    def close(self) -> None:
        """Let everything go."""
        for number in [*self._copies]:
            self._drop(number)
        for one in (self._poll, self._own, self.channel):
            one.close()


def refuse(connection: socket.socket) -> None:
    """Answer a connection by 503 and end it."""
    connection.send(ANSWER)
    connection.shutdown(socket.SHUT_WR)
    with suppress(BlockingIOError):  # that is all
        while connection.recv(2**16):  # or the system would take the answer back
            pass


def _received(channel: socket.socket) -> Iterator[tuple[int, socket.socket]]:
    """Receive connections and what they are called; ends where there are no more for now."""
    while True:
        try:
            message, handles, _, _ = socket.recv_fds(channel, 4, 1)
        except OSError:  # no more for now, or the other side is gone
            return
        if not message:
            return
        if handles:  # none where this process may open no more files
            connection = socket.socket(fileno=handles[0])
            connection.setblocking(False)
            yield int.from_bytes(message, "little"), connection


def _has_bytes(connection: socket.socket) -> bool:
    """Return whether bytes of a request wait that nobody has read."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def _mapped(path: Path) -> mmap.mmap:
    """Map a file of states."""
    handle = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(handle, NUMBERS)
    finally:
        os.close(handle)
