"""INDEX → ASGI APP: FastAPI, with a fast path for predictions, access checks and the web page.

A prediction passes no middleware: the key is checked, the body is validated in one call, the texts join a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from longtail import __version__
from longtail.serve.access import Access
from longtail.serve.access_log import AccessLog
from longtail.serve.batching import Batcher
from longtail.serve.feedback import Feedback
from longtail.serve.gauges import Gauges
from longtail.serve.messages import SAFE_HEADERS, HTTPError, Receive, Scope, Send, error_answer
from longtail.serve.openapi import document
from longtail.serve.protocol import Index, opener
from longtail.serve.registry import Registry
from longtail.serve.routes import Routes, register
from longtail.serve.settings import Settings

GUARDED = ("/metrics", "/openapi.json")  # these tell what the service is asked, and what it can do
CALLS = {f"/v1/{name}" for name in ("predict", "explain", "nearest", "labels", "model", "feedback")}  # in figures
MAX_PATH = 200  # characters; the paths of the service are short
PAGE = Path(__file__).parent / "page"
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
HTML = "text/html; charset=utf-8"
FILES = {  # path → file, content type
    "/": ("index.html", HTML),
    "/docs": ("docs.html", HTML),
    **{f"/page/{file.name}": (file.name, KINDS[file.suffix]) for file in PAGE.iterdir() if file.suffix in KINDS},
}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY_HEADERS = [
    *SAFE_HEADERS,
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]


def create_app(settings: Settings, *, indexes: tuple[Index, ...] | None = None) -> Service:
    """Open the models of the settings, or take open indexes, and create the app that serves them."""
    gauges = Gauges()
    if indexes is None:
        opened = opener(settings.opener)
        registry = Registry(
            settings.runs, partial(opened, trusted=settings.trusted) if settings.trusted else opened, gauges
        )
    else:
        by_folder = dict(zip(settings.runs, indexes, strict=True))
        registry = Registry(settings.runs, by_folder.__getitem__, gauges)
    return Service(settings, registry, gauges)


class Service:
    """The ASGI app: access checks, the fast path for predictions, and FastAPI for the rest."""

    def __init__(self, settings: Settings, registry: Registry, gauges: Gauges) -> None:
        self.settings, self.registry, self.gauges = settings, registry, gauges
        self.access = Access(settings)
        self.log = None if settings.access_log is None else AccessLog(settings.access_log, texts=settings.log_texts)
        self.batcher = Batcher(registry, settings.limits, gauges)
        feedback = None if settings.feedback is None else Feedback(settings.feedback)
        self.routes = Routes(registry, self.batcher, self.access, settings.limits, feedback)
        self.app = FastAPI(
            title="longtail",
            version=__version__,
            summary="The best few of up to millions of labels for a short text.",
            docs_url=None,  # FastAPI's own pages load scripts from other servers; ours is page/docs.html
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
        receive, heard = (receive, bytearray()) if self.log is None else self.log.listening(receive)
        status = await self._respond(path, scope, receive, send)
        seconds = time.perf_counter() - began
        self.gauges.observe(_route(path), status, seconds)
        if self.log is not None:
            self.log.note(scope, _route(path), status, seconds, heard)

    async def _respond(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer a request and return the status."""
        try:
            if len(path) > MAX_PATH:
                raise HTTPError(414, f"the path is longer than {MAX_PATH} characters")
            if path.startswith("/v1/") or (path in GUARDED and not self.settings.public):
                self.access.check(scope)
            if path != "/v1/predict" or scope["method"] != "POST":
                answer = None
            else:
                answer = await self.routes.predict(scope, receive)
        except Exception as reason:
            answer = error_answer(reason)
        if answer is None:
            return await self._fastapi(scope, receive, send)
        await answer.send(receive, send)
        return answer.status

    async def _fastapi(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Let FastAPI answer; add the security headers."""
        status = 500

        async def send_guarded(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == 405:
                    message["headers"] = [pair for pair in message["headers"] if pair[0] != b"allow"]
                    message["headers"].append((b"allow", self._allowed(scope["path"])))
                names = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in SECURITY_HEADERS if pair[0] not in names)]
            await send(message)

        await self.app(scope, receive, send_guarded)
        return status

    def _allowed(self, path: str) -> bytes:
        """List the methods of a path; Starlette lists those of one route only."""
        routes = [route for route in self.app.routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
        return ", ".join(sorted({method for route in routes for method in route.methods or ()})).encode()

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the batcher with the server; finish accepted requests when it stops."""
        self.batcher.start()
        watcher = asyncio.create_task(self.registry.watch())
        try:
            yield
        finally:
            watcher.cancel()
            await self.batcher.stop()

    async def _file(self, request: Request) -> Response:
        """Send a file of the page."""
        name, kind = FILES[request.url.path]
        return Response((PAGE / name).read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    async def _metrics(self, request: Request) -> Response:
        """Send the Prometheus metrics."""
        self.registry.count()
        return Response(self.gauges.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _route(path: str) -> str:
    """Map a path to one of a few names, so that the metrics stay few.

    >>> _route("/v1/labels/17"), _route("/secret/17")
    ('/v1/labels', 'other')
    """
    if path.startswith("/v1/"):
        kind = "/".join(path.split("/")[:3])
        return kind if kind in CALLS else "other"
    return path if path in FILES or path in ("/healthz", "/readyz", "/metrics", "/openapi.json") else "other"
