"""COMMAND → ITS PROCESSES: start them on this machine, and end all of them when one ends badly."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Find a port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
