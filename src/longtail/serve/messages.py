"""BYTES ↔ MESSAGES: bodies that are read within limits, and answers."""

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

from longtail.errors import DataError, ModelError, ResourceError

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asked = TypeVar("Asked", bound=BaseModel)

log = logging.getLogger("longtail.serve")
DRAINED = 16  # times the limit that a long body is read and thrown away, so that its sender hears why
MISFIT = "no control characters; and a label is one line, not blank"
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
JSON = b"application/json"
SAFE = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class Refusal(Exception):
    """A request that gets an error status and a message."""

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
    drain: int = 0  # bytes of the request that are still to be read and thrown away

    async def send(self, receive: Receive, send: Send) -> None:
        """Send it; then throw away what is left of a long request, whose sender would not hear us otherwise."""
        head = [(b"content-type", self.type), (b"content-length", b"%d" % len(self.body)), *SAFE, *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": head})
        await send({"type": "http.response.body", "body": self.body, "more_body": self.drain > 0})
        if self.drain:
            with suppress(TimeoutError):  # a slow sender is cut off: it has had its answer
                await asyncio.wait_for(_drain(receive, self.drain), 5)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive, most: int) -> None:
    """Read and forget."""
    while most > 0:
        message = await receive()
        most -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def answer_to(reason: Exception) -> Answer:
    """Turn an error into an answer; what nobody foresaw is logged and told in general words."""
    if isinstance(reason, Refusal):
        return reason.answer
    if isinstance(reason, DataError):
        return Refusal(422, str(reason)).answer
    if isinstance(reason, ResourceError) or (isinstance(reason, OSError) and reason.errno in FULL):
        log.error("no space or memory: %s", reason)
        return Refusal(507, "no space left on the service's side; nothing was changed").answer
    if isinstance(reason, ModelError):
        log.error("%s", reason)
        return Refusal(503, "the model cannot be used; the log of the service has more").answer
    log.error("a request failed", exc_info=reason)
    return Refusal(500, "an unexpected error; the log of the service has more").answer


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
    """Find the first header of a name in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_body(scope: Scope, receive: Receive, limit: int, seconds: float) -> bytes:
    """Read the body, but no more than the limit and no longer than the time."""
    length = header(scope, b"content-length")
    if length is not None and (not length.isdigit() or int(length) > limit):
        raise _too_long(limit)
    message = await _next(receive, seconds)
    if not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise _too_long(limit)
        return body
    parts, held = [message.get("body", b"")], len(message.get("body", b""))
    until = asyncio.get_running_loop().time() + seconds
    while message.get("more_body", False):
        if held > limit:
            raise _too_long(limit)
        message = await _next(receive, until - asyncio.get_running_loop().time())
        parts.append(message.get("body", b""))
        held += len(parts[-1])
    if held > limit:
        raise _too_long(limit)
    return b"".join(parts)


def _too_long(limit: int) -> Refusal:
    """Refuse a body above the limit."""
    text = f"the body is longer than {limit:,} bytes; send less at once"
    return Refusal(413, text, (b"connection", b"close"), drain=limit * DRAINED)


async def _next(receive: Receive, seconds: float) -> MutableMapping[str, Any]:
    """Wait for the next part of the body."""
    try:
        async with asyncio.timeout(seconds):
            message = await receive()
    except TimeoutError:
        raise Refusal(408, "the body did not arrive in time", (b"connection", b"close")) from None
    if message["type"] == "http.disconnect":
        raise Refusal(400, "the connection was closed before the body was complete")
    return message


def parse(schema: type[Asked], body: bytes) -> Asked:
    """Check a JSON body against a schema; the complaint names the fields."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as reason:
        raise Refusal(422, complaint(reason)) from None


def complaint(reason: ValidationError) -> str:
    """Say what is wrong with the first few fields, without repeating what was sent.

    >>> class Query(BaseModel):
    ...     k: int
    >>> try:
    ...     Query.model_validate_json('{"k": []}')
    ... except ValidationError as reason:
    ...     print(complaint(reason))
    k: Input should be a valid integer
    """
    errors = reason.errors(include_url=False, include_input=False, include_context=False)
    said = []
    for error in errors[:3]:
        where = ".".join(str(part)[:40] for part in error["loc"] if "[" not in str(part))  # no names of types
        what = MISFIT if error["type"] == "string_pattern_mismatch" else error["msg"]
        said.append(f"{where}: {what}" if where else what)
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    return ("; ".join(said) + more).encode("utf-8", "replace").decode("utf-8")
