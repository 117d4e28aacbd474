"""CONNECTION → REQUESTS: uvicorn's parser, with a limit on the size of headers and on the time they take.

uvicorn waits for the end of the headers without a timeout and keeps all of them; a few idle or endless clients would
use up its connections or its memory.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024  # bytes of the headers of a request
HEADER_TIMEOUT = 20.0  # for all headers of a request to arrive
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Wire(HttpToolsProtocol):
    """One connection, with a limit and a timeout for headers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first headers."""
        super().connection_made(transport)
        self._in_headers, self._header_bytes = False, 0
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(HEADER_TIMEOUT, self._close_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._cancel_timer()
        super().connection_lost(exc)

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
