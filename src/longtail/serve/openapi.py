"""SCHEMAS → OPENAPI: the document at /openapi.json.

Bodies are checked by `messages.parse`, not by FastAPI, so that hostile JSON takes one short path; this module describes
them to FastAPI.
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
    503: "The service is stopping, or the process that was to answer has ended; see Retry-After.",
    504: "No answer in time.",
    507: "The disk is full; nothing was changed.",
}
READ_ERRORS = (400, 401, 404, 408, 413, 422, 429, 503, 504)
WRITE_ERRORS = (*READ_ERRORS, 403, 409, 415, 507)


def _content(schema: type[BaseModel]) -> dict[str, Any]:
    """Refer to a schema."""
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}}


def documented(
    answer: type[BaseModel],
    errors: tuple[int, ...] = (),
    *,
    body: type[BaseModel] | None = None,
    parameters: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    """Return the keyword arguments that describe a route to FastAPI."""
    responses = {"200": {"description": "Done.", **_content(answer)}}
    for status in sorted(errors):
        responses[str(status)] = {"description": REASONS[status], **_content(Complaint)}
    extra: dict[str, Any] = {"responses": responses}
    if body is not None:
        extra["requestBody"] = {"required": True, **_content(body)}
    if parameters:
        extra["parameters"] = list(parameters)
    if errors:
        extra["security"] = [{}, {"key": []}, {"bearer": []}]
    return {"openapi_extra": extra}


def parameter(name: str, description: str, schema: dict[str, Any], *, location: str = "query") -> dict[str, Any]:
    """Describe a parameter of a path or query."""
    return {"name": name, "in": location, "required": location == "path", "description": description, "schema": schema}


def document(app: FastAPI) -> None:
    """Add the schemas to the OpenAPI document of an app; it is generated once."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None or "securitySchemes" not in app.openapi_schema.get("components", {}):
            schema = generate()
            _, definitions = models_json_schema(
                [(model, "validation") for model in SCHEMAS], ref_template="#/components/schemas/{model}"
            )
            schema.setdefault("components", {})["schemas"] = definitions["$defs"]
            schema["components"]["securitySchemes"] = {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            }
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
