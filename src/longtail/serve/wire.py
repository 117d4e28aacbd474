"""CONNECTION → REQUESTS: uvicorn's parser, with a limit on the size of headers and on the time they take.

uvicorn waits for the end of the headers without a timeout and keeps all of them; a few idle or endless clients would
use up its connections or its memory. What each connection waits for is noted for the supervisor (`held`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from longtail.serve.held import BUSY, IDLE, STARTED, Notes
from longtail.serve.messages import Receive, Scope, Send

MAX_HEADER_BYTES = 64 * 1024  # bytes of the headers of a request
HEADER_TIMEOUT = 20.0  # for all headers of a request to arrive
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Wire(HttpToolsProtocol):
    """One connection, with a limit and a timeout for headers."""

    notes: ClassVar[Notes | None] = None  # for the supervisor, where there is one

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first headers."""
        super().connection_made(transport)
        self._copy: socket.socket | None = None
        self._note: Callable[[int], None] = lambda _: None
        if self.notes is not None:
            with suppress(OSError):  # this process may open no more files
                self._copy = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
                self._note = self.notes.opened(self._copy)
            self._answer, self.app = self.app, self._noted
        self._state = IDLE
        self._in_headers, self._header_bytes = False, 0
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(HEADER_TIMEOUT, self._close_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout; shut the connection down for all who have a copy of it."""
        self._cancel_timer()
        super().connection_lost(exc)
        if self._copy is not None:
            with suppress(OSError):  # the client was quicker
                self._copy.shutdown(socket.SHUT_RDWR)
            self._copy.close()
            self._copy, self._note = None, lambda _: None

    def _mark(self, state: int) -> None:
        """Note what the connection waits for."""
        if state != self._state:
            self._state = state
            self._note(state)

    async def _noted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer, and note when the answer begins."""

        async def begun(message: Scope) -> None:
            self._mark(STARTED)
            await send(message)

        await self._answer(scope, receive, begun)

    def on_response_complete(self) -> None:
        """Note that nothing is asked any more, or that another request waits behind this one."""
        self._mark(BUSY if self.pipeline else IDLE)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Parse data; refuse headers above the limit."""
        was_in_headers = self._in_headers
        super().data_received(data)
        if was_in_headers and self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                self.transport.write(TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        """Start to count header bytes, with a timeout."""
        if self._state == IDLE:
            self._mark(BUSY)
        self._in_headers, self._header_bytes = True, 0
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_TIMEOUT, self._close_late)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop counting, and the timeout."""
        self._in_headers = False
        self._cancel_timer()
        super().on_headers_complete()

    def _cancel_timer(self) -> None:
        """Cancel the timeout."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_late(self) -> None:
        """Close a connection whose headers did not arrive in time."""
        self._timer = None
        self.transport.close()
