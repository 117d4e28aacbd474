"""REQUESTS → ANSWERS: the handlers of all paths."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.responses import Response

from longtail.errors import DataError
from longtail.serve.access import Access
from longtail.serve.batching import Batcher, Options
from longtail.serve.feedback import Feedback
from longtail.serve.messages import (
    Answer,
    HTTPError,
    Receive,
    Schema,
    Scope,
    Send,
    encode,
    error_answer,
    parse,
    read_body,
)
from longtail.serve.openapi import READ_ERRORS, WRITE_ERRORS, documented, parameter
from longtail.serve.protocol import Index
from longtail.serve.registry import Registry
from longtail.serve.schemas import (
    PRINTABLE,
    AddRequest,
    Details,
    ExplainRequest,
    FeedbackRequest,
    LabelsAnswer,
    NearestAnswer,
    NearestRequest,
    PredictAnswer,
    PredictRequest,
    RemoveRequest,
    State,
    UndoRequest,
)
from longtail.serve.settings import Limits
from longtail.stores.shards import PartQuery

MODEL = parameter("model", "Which model, by name.", {"type": "string", "maxLength": 200, "pattern": PRINTABLE})
LABEL = parameter(
    "label", "The id of a label.", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, location="path"
)
DEFAULT_LIMIT = 50  # labels that a search returns by default


class Routes:
    """The handlers, independent of FastAPI."""

    def __init__(
        self, registry: Registry, batcher: Batcher, access: Access, limits: Limits, feedback: Feedback | None = None
    ) -> None:
        self.registry, self.batcher, self.access, self.limits = registry, batcher, access, limits
        self.feedback = feedback

    async def body(self, schema: type[Schema], scope: Scope, receive: Receive) -> Schema:
        """Read and validate a body."""
        return parse(schema, await read_body(scope, receive, self.limits.body, self.limits.timeout))

    async def predict(self, scope: Scope, receive: Receive) -> Answer:
        """Predict the labels of texts."""
        request = await self.body(PredictRequest, scope, receive)
        texts, ids, limits = request.texts, request.ids, self.limits
        if ids is not None and len(ids) != len(texts):
            raise HTTPError(422, f"ids: {len(ids)} ids for {len(texts)} texts; give one each, or none")
        if len(texts) > limits.texts or request.k > limits.k or max(map(len, texts)) > limits.length:
            raise HTTPError(
                422, f"at most {limits.texts} texts of {limits.length} characters and k of {limits.k} at once"
            )
        if request.decide is not None and request.threshold is not None:
            raise HTTPError(422, "threshold and decide: give one of them")
        model = self.registry.find(request.model)
        highest = max([*(request.allow or ()), *(request.deny or ())], default=-1)
        if highest >= len(model.index.labels):  # perhaps another process has just added it
            await self.batcher.call(lambda: _existing(model.index, highest))
        allow, deny = (None if labels is None else tuple(labels) for labels in (request.allow, request.deny))
        threshold = request.threshold if request.decide is None else request.decide
        rows = await self.batcher.predict(
            Options(model.name, request.k, threshold, allow, deny, request.details, request.probabilities), texts
        )
        names = range(len(texts)) if ids is None else ids
        return Answer(encode({"predictions": [{"id": i, "labels": row} for i, row in zip(names, rows, strict=True)]}))

    async def explain(self, scope: Scope, receive: Receive) -> Answer:
        """Explain why a text gets a label."""
        request = await self.body(ExplainRequest, scope, receive)
        model = self.registry.find(request.model)

        def task() -> dict[str, Any]:
            return model.index.explain(request.text, _existing(model.index, request.label))

        return Answer(encode(await self.batcher.call(task)))

    async def nearest(self, scope: Scope, receive: Receive) -> Answer:
        """Find the best labels of vectors in one part of the labels, for a service that shares them."""
        request = await self.body(NearestRequest, scope, receive)
        model = next((one for one in self.registry.models.values() if one.index.hash == request.hash), None)
        if model is None:
            raise HTTPError(404, "no model with this hash is served here")
        if request.part >= request.parts:
            raise HTTPError(422, f"part: {request.part} of {request.parts}; parts are counted from 0")
        asked = PartQuery(request.vectors, request.k, request.part, request.parts, request.allow)

        def task() -> dict[str, Any]:
            labels, scores = model.index.nearest(asked)
            return {"labels": labels, "scores": scores}

        return Answer(encode(await self.batcher.call(task)))

    async def labels(self, scope: Scope, receive: Receive) -> Answer:
        """List or search labels."""
        query = _query(scope, "text", "limit", "offset", "model")
        model, text = self.registry.find(query.get("model")), query.get("text", "")
        limit, offset = _integer(query, "limit", DEFAULT_LIMIT, 1, 1000), _integer(query, "offset", 0, 0, 2**31 - 1)
        if len(text) > self.limits.label_length:
            raise HTTPError(422, f"text: at most {self.limits.label_length} characters")

        def task() -> dict[str, Any]:
            index = model.index
            present = (label for label in range(len(index.labels)) if label not in index.removed)
            if text.strip():
                labels = index.find(text, limit + offset)[offset:]
            else:
                labels = list(islice(present, offset, offset + limit))
            return {"labels": [model.entry(index, label) for label in labels], "count": _count(index)}

        return Answer(encode(await self.batcher.call(task)))

    async def label(self, scope: Scope, receive: Receive) -> Answer:
        """Describe a label: frequency, bin, neighbours, examples."""
        model, label = self.registry.find(_query(scope, "model").get("model")), _label(scope)

        def task() -> dict[str, Any]:
            index = model.index
            _existing(index, label)
            return model.entry(index, label) | index.label(label)

        return Answer(encode(await self.batcher.call(task)))

    async def add(self, scope: Scope, receive: Receive) -> Answer:
        """Add labels."""
        self.access.check_change(scope)
        request = await self.body(AddRequest, scope, receive)
        model, texts = self.registry.find(request.model), [label.text.strip() for label in request.labels]
        ids = [label.raw_id for label in request.labels if label.raw_id is not None]
        if ids and len(ids) != len(texts):
            raise HTTPError(422, "labels: give a raw_id to each of the labels, or to none")

        def task() -> dict[str, Any]:
            index = model.index
            added = index.add(texts, ids or None)
            return {"labels": [model.entry(index, label) for label in added], "count": _count(index)}

        return Answer(encode(await self.batcher.call(task)))

    async def remove(self, scope: Scope, receive: Receive) -> Answer:
        """Remove labels, given in the body or in the path."""
        self.access.check_change(scope)
        if "label" in scope.get("path_params", {}):
            model, labels = self.registry.find(_query(scope, "model").get("model")), [_label(scope)]
        else:
            request = await self.body(RemoveRequest, scope, receive)
            model = self.registry.find(request.model)
            labels = [label if isinstance(label, int) else label.id for label in request.labels]

        def task() -> dict[str, Any]:
            index = model.index
            entries = [model.entry(index, _existing(index, label)) for label in labels]
            index.remove(labels)
            return {"labels": entries, "count": _count(index)}

        return Answer(encode(await self.batcher.call(task)))

    async def undo(self, scope: Scope, receive: Receive) -> Answer:
        """Undo the last change of the labels."""
        self.access.check_change(scope)
        model = self.registry.find((await self.body(UndoRequest, scope, receive)).model)

        def task() -> dict[str, Any]:
            try:
                model.index.undo()
            except DataError as reason:
                raise HTTPError(409, str(reason)) from None
            return {"labels": [], "count": _count(model.index)}

        return Answer(encode(await self.batcher.call(task)))

    async def judge(self, scope: Scope, receive: Receive) -> Answer:
        """Note whether a text has a label: one line of the feedback file."""
        self.access.check_change(scope)
        if self.feedback is None:
            raise HTTPError(404, "feedback is not kept here; start the service with --feedback FILE")
        request = await self.body(FeedbackRequest, scope, receive)
        model, feedback = self.registry.find(request.model), self.feedback
        entry = await self.batcher.call(lambda: model.entry(model.index, _existing(model.index, request.label)))
        await asyncio.to_thread(feedback.note, request.text, entry, model.name, good=request.good)
        return Answer(encode({"status": "noted"}))

    async def model(self, scope: Scope, receive: Receive) -> Answer:
        """Describe a model, and list the names of all models."""
        model = self.registry.find(_query(scope, "model").get("model"))

        def task() -> dict[str, Any]:
            served = {"name": model.name, "models": list(self.registry.models), "feedback": self.feedback is not None}
            return {**model.index.describe(), **served}

        return Answer(encode(await self.batcher.call(task)))

    async def healthy(self, scope: Scope, receive: Receive) -> Answer:
        """Return whether the process is alive."""
        return Answer(encode({"status": "ok"}))

    async def ready(self, scope: Scope, receive: Receive) -> Answer:
        """Return whether requests are accepted."""
        if not self.batcher.accepting:
            raise HTTPError(503, "the service is stopping")
        if self.registry.damage() is not None:
            raise HTTPError(503, "a model is damaged; the log of the service has more")
        return Answer(encode({"status": "ready"}))


def _query(scope: Scope, *known: str) -> dict[str, str]:
    """Read the query string; unknown names, repeated names and control characters are refused."""
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20
        )
    except ValueError:
        raise HTTPError(422, "the query string is not valid UTF-8, or too long") from None
    query = dict(pairs)
    if not set(query) <= set(known) or len(query) != len(pairs):
        raise HTTPError(422, "the query string takes each of these once: " + ", ".join(known))
    if not all(re.fullmatch(PRINTABLE, value) for value in query.values()):
        raise HTTPError(422, "the query string holds control characters")
    return query


def _integer(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """Read an integer from the query string."""
    value = query.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 12 and least <= int(value) <= most):
        raise HTTPError(422, f"{name}: a whole number from {least} to {most} is needed")
    return int(value)


def _label(scope: Scope) -> int:
    """Read the label id from the path."""
    return int(scope["path_params"]["label"])


def _existing(index: Index, label: int) -> int:
    """Return the label if it exists, else raise 404."""
    if label >= len(index.labels):
        raise HTTPError(404, f"label {label} does not exist; labels go from 0 to {len(index.labels) - 1}")
    return label


def _count(index: Index) -> int:
    """Count the labels that can be predicted."""
    return len(index.labels) - len(index.removed)


Handler = Callable[[Scope, Receive], Awaitable[Answer]]


def register(app: FastAPI, routes: Routes) -> None:
    """Add the routes to the app."""
    text = {"type": "string", "maxLength": routes.limits.label_length, "pattern": PRINTABLE}
    limit = {"type": "integer", "minimum": 1, "maximum": 1000, "default": DEFAULT_LIMIT}
    offset = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "default": 0}
    search = (
        parameter("text", "Words that the label's text contains.", text),
        parameter("limit", "At most this many labels.", limit),
        parameter("offset", "Skip this many labels.", offset),
        MODEL,
    )
    single = (LABEL, MODEL)
    table: list[tuple[str, str, Handler, dict[str, Any]]] = [
        ("POST", "/v1/predict", routes.predict, documented(PredictAnswer, READ_ERRORS, body=PredictRequest)),
        ("POST", "/v1/explain", routes.explain, documented(Details, READ_ERRORS, body=ExplainRequest)),
        ("POST", "/v1/nearest", routes.nearest, documented(NearestAnswer, READ_ERRORS, body=NearestRequest)),
        ("GET", "/v1/labels", routes.labels, documented(LabelsAnswer, READ_ERRORS, parameters=search)),
        ("POST", "/v1/labels", routes.add, documented(LabelsAnswer, WRITE_ERRORS, body=AddRequest)),
        ("DELETE", "/v1/labels", routes.remove, documented(LabelsAnswer, WRITE_ERRORS, body=RemoveRequest)),
        ("POST", "/v1/labels/undo", routes.undo, documented(LabelsAnswer, WRITE_ERRORS, body=UndoRequest)),
        ("GET", "/v1/labels/{label:int}", routes.label, documented(Details, READ_ERRORS, parameters=single)),
        ("DELETE", "/v1/labels/{label:int}", routes.remove, documented(LabelsAnswer, WRITE_ERRORS, parameters=single)),
        ("POST", "/v1/feedback", routes.judge, documented(State, WRITE_ERRORS, body=FeedbackRequest)),
        ("GET", "/v1/model", routes.model, documented(Details, READ_ERRORS, parameters=(MODEL,))),
        ("GET", "/healthz", routes.healthy, documented(State)),
        ("GET", "/readyz", routes.ready, documented(State, (503,))),
    ]
    for method, path, handler, options in table:
        name = f"{method.lower()} {path}"
        summary = (handler.__doc__ or "").strip()
        app.add_api_route(
            path, _endpoint(handler), methods=[method], name=name, summary=summary, description=summary,
            operation_id=re.sub(r"\W+", "_", name).strip("_"), **options,
        )  # fmt: skip


class _AnswerResponse(Response):
    """Send an Answer as a FastAPI response."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(status_code=answer.status)
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer.send(receive, send)


def _endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a handler for FastAPI; every error becomes an answer."""

    async def endpoint(request: Request) -> Response:
        try:
            return _AnswerResponse(await handler(request.scope, request.receive))
        except Exception as reason:
            return _AnswerResponse(error_answer(reason))

    return endpoint
