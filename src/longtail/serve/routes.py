"""REQUESTS → ANSWERS: what each path of the service does."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.responses import Response

from longtail.errors import DataError
from longtail.serve.access import Access
from longtail.serve.batching import Batcher, Wish
from longtail.serve.messages import Answer, Asked, Receive, Refusal, Scope, Send, answer_to, encode, parse, read_body
from longtail.serve.openapi import ASKING, CHANGING, documented, parameter
from longtail.serve.protocol import Index
from longtail.serve.schemas import (
    PRINTABLE,
    AddRequest,
    Details,
    ExplainRequest,
    LabelsAnswer,
    PredictAnswer,
    PredictRequest,
    RemoveRequest,
    State,
    UndoRequest,
)
from longtail.serve.settings import Limits
from longtail.serve.shelf import Shelf

MODEL = parameter("model", "Which model, by name.", {"type": "string", "maxLength": 200, "pattern": PRINTABLE})
LABEL = parameter("label", "The id of a label.", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, place="path")
FOUND = 50  # labels that a search returns, if not told otherwise


class Routes:
    """The questions that can be asked, whatever transports them."""

    def __init__(self, shelf: Shelf, batcher: Batcher, access: Access, limits: Limits) -> None:
        self.shelf, self.batcher, self.access, self.limits = shelf, batcher, access, limits

    async def body(self, schema: type[Asked], scope: Scope, receive: Receive) -> Asked:
        """Read and check a body."""
        return parse(schema, await read_body(scope, receive, self.limits.body, self.limits.seconds))

    async def predict(self, scope: Scope, receive: Receive) -> Answer:
        """Find the labels of texts: the path that has to be quick."""
        asked = await self.body(PredictRequest, scope, receive)
        texts, ids, limits = asked.texts, asked.ids, self.limits
        if ids is not None and len(ids) != len(texts):
            raise Refusal(422, f"ids: {len(ids)} ids for {len(texts)} texts; give one each, or none")
        if len(texts) > limits.texts or asked.k > limits.k or max(map(len, texts)) > limits.length:
            raise Refusal(
                422, f"at most {limits.texts} texts of {limits.length} characters and k of {limits.k} at once"
            )
        served = self.shelf.find(asked.model)
        named = max([*(asked.allow or ()), *(asked.deny or ())], default=-1)
        if named >= len(served.index.labels):  # unless it has just been added
            await self.batcher.call(lambda: _existing(served.index, named))
        allow, deny = (None if labels is None else tuple(labels) for labels in (asked.allow, asked.deny))
        rows = await self.batcher.predict(
            Wish(served.name, asked.k, asked.threshold, allow, deny, asked.details, asked.probabilities), texts
        )
        own = range(len(texts)) if ids is None else ids
        return Answer(encode({"predictions": [{"id": i, "labels": row} for i, row in zip(own, rows, strict=True)]}))

    async def explain(self, scope: Scope, receive: Receive) -> Answer:
        """Tell why a text gets a label."""
        asked = await self.body(ExplainRequest, scope, receive)
        served = self.shelf.find(asked.model)

        def ask() -> dict[str, Any]:
            return served.index.explain(asked.text, _existing(served.index, asked.label))

        return Answer(encode(await self.batcher.call(ask)))

    async def labels(self, scope: Scope, receive: Receive) -> Answer:
        """List or search labels."""
        query = _query(scope, "text", "limit", "offset", "model")
        served, text = self.shelf.find(query.get("model")), query.get("text", "")
        limit, offset = _whole(query, "limit", FOUND, 1, 1000), _whole(query, "offset", 0, 0, 2**31 - 1)
        if len(text) > self.limits.label_length:
            raise Refusal(422, f"text: at most {self.limits.label_length} characters")

        def ask() -> dict[str, Any]:
            index = served.index
            there = (label for label in range(len(index.labels)) if label not in index.removed)
            found = index.find(text, limit + offset)[offset:] if text.strip() else islice(there, offset, offset + limit)
            return {"labels": [served.entry(index, label) for label in found], "count": _count(index)}

        return Answer(encode(await self.batcher.call(ask)))

    async def label(self, scope: Scope, receive: Receive) -> Answer:
        """Tell what is known of a label."""
        served, label = self.shelf.find(_query(scope, "model").get("model")), _label(scope)

        def ask() -> dict[str, Any]:
            index = served.index
            _existing(index, label)
            return served.entry(index, label) | index.label(label)

        return Answer(encode(await self.batcher.call(ask)))

    async def add(self, scope: Scope, receive: Receive) -> Answer:
        """Add labels."""
        self.access.check_change(scope)
        asked = await self.body(AddRequest, scope, receive)
        served, texts = self.shelf.find(asked.model), [label.text.strip() for label in asked.labels]
        raw = [label.raw_id for label in asked.labels]
        ids = [own for own in raw if own is not None]
        if ids and len(ids) != len(raw):
            raise Refusal(422, "labels: give a raw_id to each of the labels, or to none")

        def ask() -> dict[str, Any]:
            index = served.index
            added = index.add(texts, ids or None)
            return {"labels": [served.entry(index, label) for label in added], "count": _count(index)}

        return Answer(encode(await self.batcher.call(ask)))

    async def remove(self, scope: Scope, receive: Receive) -> Answer:
        """Take labels away, named in the body or in the path."""
        self.access.check_change(scope)
        if "label" in scope.get("path_params", {}):
            served, labels = self.shelf.find(_query(scope, "model").get("model")), [_label(scope)]
        else:
            asked = await self.body(RemoveRequest, scope, receive)
            served = self.shelf.find(asked.model)
            labels = [label if isinstance(label, int) else label.id for label in asked.labels]

        def ask() -> dict[str, Any]:
            index = served.index
            entries = [served.entry(index, _existing(index, label)) for label in labels]
            index.remove(labels)
            return {"labels": entries, "count": _count(index)}

        return Answer(encode(await self.batcher.call(ask)))

    async def undo(self, scope: Scope, receive: Receive) -> Answer:
        """Take back the last change of the labels."""
        self.access.check_change(scope)
        served = self.shelf.find((await self.body(UndoRequest, scope, receive)).model)

        def ask() -> dict[str, Any]:
            try:
                served.index.undo()
            except DataError as reason:
                raise Refusal(409, str(reason)) from None
            return {"labels": [], "count": _count(served.index)}

        return Answer(encode(await self.batcher.call(ask)))

    async def model(self, scope: Scope, receive: Receive) -> Answer:
        """Describe a model, and name all of them."""
        served = self.shelf.find(_query(scope, "model").get("model"))

        def ask() -> dict[str, Any]:
            return {**served.index.describe(), "name": served.name, "models": list(self.shelf.models)}

        return Answer(encode(await self.batcher.call(ask)))

    async def healthy(self, scope: Scope, receive: Receive) -> Answer:
        """Say that the process lives."""
        return Answer(encode({"status": "ok"}))

    async def ready(self, scope: Scope, receive: Receive) -> Answer:
        """Say whether requests are taken."""
        if not self.batcher.accepting:
            raise Refusal(503, "the service is stopping")
        if self.shelf.damage() is not None:
            raise Refusal(503, "a model is damaged; the log of the service has more")
        return Answer(encode({"status": "ready"}))


def _query(scope: Scope, *known: str) -> dict[str, str]:
    """Read the query string; unknown names, repeated names and control characters are refused."""
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20
        )
    except ValueError:
        raise Refusal(422, "the query string is not valid UTF-8, or too long") from None
    found = dict(pairs)
    unknown = sorted(set(found) - set(known))
    if unknown or len(found) != len(pairs):
        raise Refusal(422, "the query string takes each of these once: " + ", ".join(known))
    if not all(re.fullmatch(PRINTABLE, value) for value in found.values()):
        raise Refusal(422, "the query string holds control characters")
    return found


def _whole(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """Read a whole number of the query string."""
    value = query.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 12 and least <= int(value) <= most):
        raise Refusal(422, f"{name}: a whole number from {least} to {most} is needed")
    return int(value)


def _label(scope: Scope) -> int:
    """Read the label of the path."""
    return int(scope["path_params"]["label"])


def _existing(index: Index, label: int) -> int:
    """Return a label that exists, or refuse it."""
    if label >= len(index.labels):
        raise Refusal(404, f"label {label} does not exist; labels go from 0 to {len(index.labels) - 1}")
    return label


def _count(index: Index) -> int:
    """Count the labels that can be predicted."""
    return len(index.labels) - len(index.removed)


Handler = Callable[[Scope, Receive], Awaitable[Answer]]


def register(app: FastAPI, routes: Routes) -> None:
    """Give every question its path."""
    words = {"type": "string", "maxLength": routes.limits.label_length, "pattern": PRINTABLE}
    limit = {"type": "integer", "minimum": 1, "maximum": 1000, "default": FOUND}
    offset = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "default": 0}
    search = (
        parameter("text", "Words that the label's text holds.", words),
        parameter("limit", "At most so many.", limit),
        parameter("offset", "Leave out so many.", offset),
        MODEL,
    )
    one = (LABEL, MODEL)
    table: list[tuple[str, str, Handler, dict[str, Any]]] = [
        ("POST", "/v1/predict", routes.predict, documented(PredictAnswer, ASKING, body=PredictRequest)),
        ("POST", "/v1/explain", routes.explain, documented(Details, ASKING, body=ExplainRequest)),
        ("GET", "/v1/labels", routes.labels, documented(LabelsAnswer, ASKING, parameters=search)),
        ("POST", "/v1/labels", routes.add, documented(LabelsAnswer, CHANGING, body=AddRequest)),
        ("DELETE", "/v1/labels", routes.remove, documented(LabelsAnswer, CHANGING, body=RemoveRequest)),
        ("POST", "/v1/labels/undo", routes.undo, documented(LabelsAnswer, CHANGING, body=UndoRequest)),
        ("GET", "/v1/labels/{label:int}", routes.label, documented(Details, ASKING, parameters=one)),
        ("DELETE", "/v1/labels/{label:int}", routes.remove, documented(LabelsAnswer, CHANGING, parameters=one)),
        ("GET", "/v1/model", routes.model, documented(Details, ASKING, parameters=(MODEL,))),
        ("GET", "/healthz", routes.healthy, documented(State)),
        ("GET", "/readyz", routes.ready, documented(State, (503,))),
    ]
    for method, path, handler, described in table:
        name = f"{method.lower()} {path}"
        summary = (handler.__doc__ or "").strip()
        app.add_api_route(
            path, _endpoint(handler), methods=[method], name=name, summary=summary, description=summary,
            operation_id=re.sub(r"\W+", "_", name).strip("_"), **described,
        )  # fmt: skip


class _Sent(Response):
    """An answer that sends itself."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(status_code=answer.status)
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer.send(receive, send)


def _endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Let FastAPI call a handler; no error leaves it."""

    async def endpoint(request: Request) -> Response:
        try:
            return _Sent(await handler(request.scope, request.receive))
        except Exception as reason:
            return _Sent(answer_to(reason))

    return endpoint
