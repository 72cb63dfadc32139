"""Routes as data: the router and the OpenAPI 3.1 document are made from the same list, so they cannot differ."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

import rstar2

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_REFUSALS = {
    400: "The request is not what the route takes; the message names the field.",
    401: "The key is missing or wrong.",
    403: "The request came from a page of another site, or used a name that the server does not have.",
    404: "There is no such model, adapter or route.",
    408: "The body did not arrive in time.",
    409: "The request contradicts the current state.",
    413: "The body is too large.",
    415: "The body is not sent as application/json.",
    429: "Over capacity. Nothing was started; `Retry-After` says when to retry.",
    501: "The engine of this server cannot do it.",
    503: "Shutting down, or the engine failed; `Retry-After` says when to retry.",
    504: "The time of the request is up.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_OF_BODIES = (400, 408, 413, 415)


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    summary: str
    body: TypeAdapter[Any] | None = None
    refusals: tuple[int, ...] = ()
    """Status codes of error responses, besides those that every route of the same kind may give."""
    content_types: tuple[str, ...] = ("application/json",)
    is_open: bool = False
    """Whether callers need no key."""
    query: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Query parameters, and their values."""

    @property
    def documented_path(self) -> str:
        """The path without the patterns of its parameters."""
        return re.sub(r":[^}]*", "", self.path)

    def codes(self, *, has_keys: bool) -> list[int]:
        codes = {403, *self.refusals, *(_OF_BODIES if self.body is not None else ())}
        return sorted(codes | ({401} if has_keys and not self.is_open else set()))


def openapi_document(routes: Sequence[Route], *, has_keys: bool) -> dict[str, Any]:
    inputs = {id(route.body): route.body for route in routes if route.body is not None}
    by_key, definitions = TypeAdapter.json_schemas(
        [(key, "validation", adapter) for key, adapter in inputs.items()], ref_template="#/components/schemas/{model}"
    )
    schemas = {key: schema for (key, _), schema in by_key.items()}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        described = _described(route, schemas, has_keys=has_keys)
        paths.setdefault(route.documented_path, {})[route.method.lower()] = described
    components: dict[str, Any] = {"schemas": {**definitions.get("$defs", {}), "Error": _ERROR}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "rstar2 serve", "version": rstar2.__version__, "description": "A model server."},
        "paths": paths,
        "components": components,
    }
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _described(route: Route, schemas: dict[Any, Any], *, has_keys: bool) -> dict[str, Any]:
    responses: dict[str, Any] = {
        "200": {"description": "Success.", "content": {kind: {} for kind in route.content_types}}
    }
    for code in route.codes(has_keys=has_keys):
        responses[str(code)] = {
            "description": _REFUSALS[code],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string", "enum": list(values)}}
        for name, values in route.query
    ]
    parameters += [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in route.documented_path.split("/")
        if part.startswith("{")
    ]
    described: dict[str, Any] = {
        "operationId": "_".join(
            [route.method.lower(), *(part.strip("{}") for part in route.documented_path.split("/") if part)]
        ),
        "summary": route.summary,
        "responses": responses,
    }
    if parameters:
        described["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schemas[id(route.body)]}}
        described["requestBody"] = {"required": True, "content": content}
    if route.is_open:
        described["security"] = []
    return described
