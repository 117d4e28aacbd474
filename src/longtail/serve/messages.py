"""BYTES ↔ MESSAGES: read bodies within limits, write answers and errors."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from longtail.errors import DataError, ModelError, ResourceError, StoreDown

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Schema = TypeVar("Schema", bound=BaseModel)

log = logging.getLogger("longtail.serve")
DRAIN_FACTOR = 16  # times the limit: how much of a long body is read and discarded, so that the client gets the answer
PATTERN_HELP = "no control characters; and a label is one line, not blank"
NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
JSON = b"application/json"
BUSY = (b"retry-after", b"1")
SAFE_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class HTTPError(Exception):
    """An error status with a message, as the answer to a request."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes], drain: int = 0) -> None:
        super().__init__(message)
        self.answer = Answer(encode({"detail": message}), status, headers=headers, drain=drain)


@dataclass(frozen=True)
class Answer:
    """A response with all its bytes."""

    body: bytes
    status: int = 200
    type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    drain: int = 0  # bytes of the request that are still to be read and discarded

    async def send(self, receive: Receive, send: Send) -> None:
        """Send it; then discard the rest of a long request, whose client would not read the answer otherwise."""
        head = [(b"content-type", self.type), (b"content-length", b"%d" % len(self.body)), *SAFE_HEADERS, *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": head})
        await send({"type": "http.response.body", "body": self.body, "more_body": self.drain > 0})
        if self.drain:
            with suppress(TimeoutError):  # a slow client is cut off: the answer was sent
                await asyncio.wait_for(_drain(receive, self.drain), 5)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive, limit: int) -> None:
    """Read and discard up to `limit` bytes."""
    while limit > 0:
        message = await receive()
        limit -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def error_answer(reason: Exception) -> Answer:
    """Turn an error into an answer; an unexpected one is logged and its details are left out."""
    if isinstance(reason, HTTPError):
        return reason.answer
    if isinstance(reason, DataError):
        return HTTPError(422, str(reason)).answer
    if isinstance(reason, StoreDown):
        log.error("%s", reason)
        return HTTPError(503, "the store of label vectors does not answer; ask again in a moment", BUSY).answer
    if isinstance(reason, ResourceError) or (isinstance(reason, OSError) and reason.errno in NO_SPACE):
        log.error("no space or memory: %s", reason)
        return HTTPError(507, "no space left on the service's side; nothing was changed").answer
    if isinstance(reason, ModelError):
        log.error("%s", reason)
        return HTTPError(503, "the model cannot be used; the log of the service has more").answer
    log.error("a request failed", exc_info=reason)
    return HTTPError(500, "an unexpected error; the log of the service has more").answer


def encode(value: object) -> bytes:
    """Write JSON; numbers that JSON cannot hold become null.

    >>> encode({"score": np.float32(0.5), "worst": float("-inf")})
    b'{"score":0.5,"worst":null}'
    """
    return to_json(value, inf_nan_mode="null", fallback=_plain)


def _plain(value: object) -> object:
    """Turn numpy values into Python values."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of a name, given in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def only_header(scope: Scope, name: bytes) -> bytes | None:
    """Return the header of a name; refuse several, of which another program might read another one."""
    found = [bytes(value) for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise HTTPError(400, f"several headers are called {name.decode()}; send one")
    return found[0] if found else None


async def read_body(scope: Scope, receive: Receive, limit: int, seconds: float) -> bytes:
    """Read the body, at most `limit` bytes in `seconds`."""
    length = header(scope, b"content-length")
    if length is not None and (not length.isdigit() or int(length) > limit):
        raise _too_long(limit)
    message = await _next_message(receive, seconds)
    if not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise _too_long(limit)
        return body
    parts, size = [message.get("body", b"")], len(message.get("body", b""))
    deadline = asyncio.get_running_loop().time() + seconds
    while message.get("more_body", False):
        if size > limit:
            raise _too_long(limit)
        message = await _next_message(receive, deadline - asyncio.get_running_loop().time())
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if size > limit:
        raise _too_long(limit)
    return b"".join(parts)


def _too_long(limit: int) -> HTTPError:
    """Refuse a body above the limit."""
    text = f"the body is longer than {limit:,} bytes; send less at once"
    return HTTPError(413, text, (b"connection", b"close"), drain=limit * DRAIN_FACTOR)


async def _next_message(receive: Receive, seconds: float) -> MutableMapping[str, Any]:
    """Wait for the next part of the body."""
    try:
        async with asyncio.timeout(seconds):
            message = await receive()
    except TimeoutError:
        raise HTTPError(408, "the body did not arrive in time", (b"connection", b"close")) from None
    if message["type"] == "http.disconnect":
        raise HTTPError(400, "the connection was closed before the body was complete")
    return message


def parse(schema: type[Schema], body: bytes) -> Schema:
    """Validate a JSON body against a schema; the error names the fields."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as reason:
        raise HTTPError(422, validation_message(reason)) from None


def validation_message(reason: ValidationError) -> str:
    """Say what is wrong with the first few fields, without repeating what was sent.

    >>> class Query(BaseModel):
    ...     k: int
    >>> try:
    ...     Query.model_validate_json('{"k": []}')
    ... except ValidationError as reason:
    ...     print(validation_message(reason))
    k: Input should be a valid integer
    """
    errors = reason.errors(include_url=False, include_input=False, include_context=False)
    messages = []
    for error in errors[:3]:
        where = ".".join(str(part)[:40] for part in error["loc"] if "[" not in str(part))  # without type names
        what = PATTERN_HELP if error["type"] == "string_pattern_mismatch" else error["msg"]
        messages.append(f"{where}: {what}" if where else what)
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    return ("; ".join(messages) + more).encode("utf-8", "replace").decode("utf-8")
