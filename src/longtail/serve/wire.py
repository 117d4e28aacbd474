"""CONNECTION → REQUESTS: uvicorn's parser, with a limit on the size of headers and on the time they take.

uvicorn waits for the end of the headers for ever and keeps all of them; a handful of idle or endless senders would
take its connections or its memory.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST = 64 * 1024  # bytes of the headers of a request
SECONDS = 20.0  # that they may take
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Wire(HttpToolsProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect headers."""
        super().connection_made(transport)
        self._heading, self._head = False, 0
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; cut off headers that do not end."""
        before = self._heading
        super().data_received(data)
        if before and self._heading:
            self._head += len(data)
            if self._head > LARGEST and not self.transport.is_closing():
                self.transport.write(TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to count and to wait."""
        self._heading, self._head = True, 0
        if self._timer is None:
            self._timer = self.loop.call_later(SECONDS, self._give_up)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop counting and waiting."""
        self._heading = False
        self._calm()
        super().on_headers_complete()

    def _calm(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        """Close a connection whose headers did not come."""
        self._timer = None
        self.transport.close()
