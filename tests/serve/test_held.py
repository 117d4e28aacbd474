"""Connections of a worker that died: what waited is answered by 503, the rest is closed; others are handed over."""

from __future__ import annotations

import os
import socket

import pytest

from longtail.serve.held import BUSY, IDLE, POSSIBLE, STARTED, Held, Notes

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="this system cannot hand connections over")


@pytest.fixture
def pair(tmp_path):
    """What the supervisor has and what its worker has."""
    held = Held(tmp_path / "held0")
    channel = socket.socket(fileno=held.channel.detach())
    yield held, Notes(channel, held.states)
    channel.close()


@pytest.fixture
def connected():
    """A client, and its connection at the worker."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=10)
        connection, _ = listener.accept()
        yield client, connection
        client.close()
        connection.close()


def told(client) -> bytes:
    """Read until the other side closes."""
    received = b""
    while piece := client.recv(65536):
        received += piece
    return received


@pytest.mark.parametrize(
    ("state", "sent", "answered"), [(BUSY, b"", 1), (IDLE, b"GET / HTTP/1.1\r\n", 1), (IDLE, b"", 0), (STARTED, b"", 0)]
)
def test_what_waits_is_answered_and_the_rest_is_closed(pair, connected, state, sent, answered):
    (held, notes), (client, connection) = pair, connected
    notes.opened(connection)(state)
    connection.close()  # as the system does when the worker dies
    client.sendall(sent)
    assert held.answer() == answered
    answer = told(client)
    assert answer.startswith(b"HTTP/1.1 503 ") == bool(answered) and (answered or answer == b"")
    if answered:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(body) in head + b"\r\n" and b"retry-after: 1" in head


def test_a_connection_that_the_worker_ends_is_let_go(pair, connected):
    (held, notes), (client, connection) = pair, connected
    notes.opened(connection)
    held.tend()
    assert len(held._copies) == 1
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    assert told(client) == b""  # it hears so although there is a copy
    held.tend()
    assert held._copies == {} == held._numbers
    held.close()


def test_a_number_that_is_used_again_is_another_connection(pair, connected):
    (held, notes), (client, connection) = pair, connected
    number = connection.fileno()
    notes.opened(connection)
    held.tend()
    connection.shutdown(socket.SHUT_RDWR)
    first, second = socket.socketpair()
    with first, second:
        os.dup2(second.fileno(), number)  # before the supervisor has heard that the first one ended
        notes.opened(connection)(BUSY)
        connection.close()
        second.close()
        assert held.answer() == 1
        assert told(first).startswith(b"HTTP/1.1 503 ") and told(client) == b""


def test_a_worker_is_given_connections(pair, connected):
    (held, notes), (client, connection) = pair, connected
    assert notes.given() == []
    assert held.give(connection)
    connection.close()
    (taken,) = notes.given()
    taken.send(b"hello")
    assert client.recv(5) == b"hello"
    taken.close()
    held.close()
