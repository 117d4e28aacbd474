"""INDEX → ASGI APP: FastAPI with a short cut for predictions, guards in front, the page beside.

A prediction passes no middleware: the key is compared, the body checked in one go, the texts join a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from longtail import __version__
from longtail.serve.access import Access
from longtail.serve.batching import Batcher
from longtail.serve.gauges import Gauges
from longtail.serve.messages import SAFE, Receive, Refusal, Scope, Send, answer_to
from longtail.serve.openapi import document
from longtail.serve.protocol import Index, opener
from longtail.serve.routes import Routes, register
from longtail.serve.settings import Settings
from longtail.serve.shelf import Shelf

PATH = 200  # characters of a path; those of the service are short, and numbers in them
PAGE = Path(__file__).parent / "page"
FILES = {  # path → file, content type
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/details.js": ("details.js", "text/javascript; charset=utf-8"),
    "/page/service.js": ("service.js", "text/javascript; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
GUARDS = [
    *SAFE,
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]


def create_app(settings: Settings, *, indexes: tuple[Index, ...] | None = None) -> Service:
    """Open the models of the settings, or take indexes that are open, and make the app that serves them."""
    gauges = Gauges()
    if indexes is None:
        shelf = Shelf(settings.runs, opener(settings.opener), gauges)
    else:
        held = dict(zip(settings.runs, indexes, strict=True))
        shelf = Shelf(settings.runs, held.__getitem__, gauges)
    return Service(settings, shelf, gauges)


class Service:
    """The ASGI app: guards, the short cut, and FastAPI for the rest."""

    def __init__(self, settings: Settings, shelf: Shelf, gauges: Gauges) -> None:
        self.settings, self.shelf, self.gauges = settings, shelf, gauges
        self.access = Access(settings)
        self.batcher = Batcher(shelf, settings.limits, gauges)
        self.routes = Routes(shelf, self.batcher, self.access, settings.limits)
        self.app = FastAPI(
            title="longtail",
            version=__version__,
            summary="The best few of up to millions of labels for a short text.",
            docs_url=None,  # the pages that FastAPI brings load scripts from elsewhere
            redoc_url=None,
            lifespan=self._lifespan,
            redirect_slashes=False,
        )
        register(self.app, self.routes)
        for path in FILES:
            self.app.add_api_route(path, self._file, include_in_schema=False)
        self.app.add_api_route("/metrics", self._metrics, include_in_schema=False)
        document(self.app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path = time.perf_counter(), scope["path"]
        status = await self._respond(path, scope, receive, send)
        self.gauges.answered(_kind(path), status, time.perf_counter() - began)

    async def _respond(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer a request and return the status."""
        try:
            if len(path) > PATH:
                raise Refusal(414, f"the path is longer than {PATH} characters")
            if path.startswith("/v1/"):
                self.access.check(scope)
            if path != "/v1/predict" or scope["method"] != "POST":
                answer = None
            else:
                answer = await self.routes.predict(scope, receive)
        except Exception as reason:
            answer = answer_to(reason)
        if answer is None:
            return await self._rest(scope, receive, send)
        await answer.send(receive, send)
        return answer.status

    async def _rest(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Let FastAPI answer; add the headers that keep a browser safe."""
        status = 500

        async def guarded(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == 405:
                    message["headers"] = [pair for pair in message["headers"] if pair[0] != b"allow"]
                    message["headers"].append((b"allow", self._allowed(scope["path"])))
                held = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in GUARDS if pair[0] not in held)]
            await send(message)

        await self.app(scope, receive, guarded)
        return status

    def _allowed(self, path: str) -> bytes:
        """List the methods of a path; Starlette names those of one route only."""
        routes = [route for route in self.app.routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
        return ", ".join(sorted({method for route in routes for method in route.methods or ()})).encode()

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Work while the server runs; finish what was accepted when it stops."""
        self.batcher.start()
        watching = asyncio.create_task(self.shelf.watch())
        try:
            yield
        finally:
            watching.cancel()
            await self.batcher.stop()

    async def _file(self, request: Request) -> Response:
        """Send a file of the page."""
        name, kind = FILES[request.url.path]
        return Response((PAGE / name).read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    async def _metrics(self, request: Request) -> Response:
        """Send the numbers for Prometheus."""
        self.shelf.count()
        return Response(self.gauges.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _kind(path: str) -> str:
    """Name one of a few kinds of path, so that the numbers stay few.

    >>> _kind("/v1/labels/17"), _kind("/secret/17")
    ('/v1/labels', 'other')
    """
    if path.startswith("/v1/"):
        kind = "/".join(path.split("/")[:3])
        return kind if kind in ("/v1/predict", "/v1/explain", "/v1/labels", "/v1/model") else "other"
    return path if path in FILES or path in ("/healthz", "/readyz", "/metrics", "/openapi.json") else "other"
