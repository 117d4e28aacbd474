"""SCHEMAS → OPENAPI: the document at /openapi.json.

Bodies are checked by `messages.parse`, not by FastAPI, so that hostile JSON meets one short path; this module tells
FastAPI what they look like.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from longtail.serve.schemas import SCHEMAS, Complaint

REASONS = {
    400: "The request is not complete.",
    401: "The API key is missing or wrong.",
    403: "Sent by another web page.",
    404: "No such model or label.",
    408: "The body did not arrive in time.",
    409: "There is nothing to take back.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    422: "A field is wrong; the message says which.",
    429: "Too many requests are waiting; see Retry-After.",
    503: "The service is stopping.",
    504: "No answer in time.",
    507: "The disk is full; nothing was changed.",
}
ASKING = (400, 401, 404, 408, 413, 422, 429, 503, 504)
CHANGING = (*ASKING, 403, 409, 415, 507)


def _content(schema: type[BaseModel]) -> dict[str, Any]:
    """Refer to a schema."""
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}}


def documented(
    answer: type[BaseModel],
    refusals: tuple[int, ...] = (),
    *,
    body: type[BaseModel] | None = None,
    parameters: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    """Describe a route: arguments for FastAPI's decorators."""
    answers = {"200": {"description": "Done.", **_content(answer)}}
    for status in sorted(refusals):
        answers[str(status)] = {"description": REASONS[status], **_content(Complaint)}
    extra: dict[str, Any] = {"responses": answers}
    if body is not None:
        extra["requestBody"] = {"required": True, **_content(body)}
    if parameters:
        extra["parameters"] = list(parameters)
    if refusals:
        extra["security"] = [{}, {"key": []}, {"bearer": []}]
    return {"openapi_extra": extra}


def parameter(name: str, description: str, schema: dict[str, Any], *, place: str = "query") -> dict[str, Any]:
    """Describe a parameter of a path or query."""
    return {"name": name, "in": place, "required": place == "path", "description": description, "schema": schema}


def document(app: FastAPI) -> None:
    """Put the schemas into the document of an app and keep it."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None or "securitySchemes" not in app.openapi_schema.get("components", {}):
            made = plain()
            _, held = models_json_schema(
                [(schema, "validation") for schema in SCHEMAS], ref_template="#/components/schemas/{model}"
            )
            made.setdefault("components", {})["schemas"] = held["$defs"]
            made["components"]["securitySchemes"] = {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            }
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
