"""Endpoints as data: the router and the OpenAPI 3.1 document are made from the same list, so they cannot differ."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

import rstar2
from rstar2.sandbox.http.errors import ApiError, unreadable
from rstar2.sandbox.http.schema import ERROR
from rstar2.sandbox.http.service import Service

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REFUSALS = {
    400: "The body is not JSON.",
    401: "The bearer token is missing or wrong.",
    403: "The request came from a page of another site, or used a name that the service does not have.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    409: "The request contradicts an earlier one, or the current state.",
    413: "The body is too large.",
    415: "The body is not sent as application/json.",
    422: "The body is JSON, but not what this operation takes; `detail` names the fields.",
    503: "Over capacity, or shutting down. Nothing was started; `Retry-After` says when to retry.",
    504: "The same, with the status code on which SandboxFusion's clients retry.",
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    description: str
    schema: TypeAdapter[Any] | None = None
    code: int = 200
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    handler: Handler
    summary: str
    answers: tuple[ApiAnswer, ...]
    body: TypeAdapter[Any] | None = None
    body_required: bool = True
    refusals: tuple[int, ...] = ()
    """Status codes of error responses, besides those that every operation of the same kind may give."""
    tag: str = "native"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further members of the OpenAPI operation object."""

    @property
    def operation_id(self) -> str:
        parts = [part.strip("{}").replace("-", "_").replace(".", "_") for part in self.path.split("/") if part]
        return "_".join([self.method.lower(), *parts])


async def read_body(
    service: Service, request: web.Request, adapter: TypeAdapter[T], if_empty: bytes | None = None
) -> T:
    """Read and validate the request's body; ApiError if it is late, too large or invalid."""
    timeout_s = service.settings.transfer_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            data = await request.read()
    except TimeoutError:
        raise ApiError(408, "timeout", f"the body did not arrive within {timeout_s:g} s") from None
    except web.RequestPayloadError as error:
        raise ApiError(400, "malformed", f"the body cannot be read: {error}") from None
    try:
        return adapter.validate_json(data or if_empty or b"")
    except ValidationError as error:
        raise unreadable(error) from None


def json_response(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def openapi_document(operations: Sequence[Operation], *, has_token: bool) -> dict[str, Any]:
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _describe(operation, schemas, has_token)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "rstar2 sandbox",
            "version": rstar2.__version__,
            "description": "Runs untrusted Python, isolated and within limits.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if has_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def refusals_of(operation: Operation, has_token: bool) -> list[int]:
    """Every code with an `ErrorBody` that the operation may answer with."""
    codes = {403, *operation.refusals}
    if operation.body is not None:
        codes |= {400, 408, 413, 415, 422}
        if 504 not in codes:
            codes.add(503)
    if has_token and operation.extra.get("security") != []:
        codes.add(401)
    return sorted(codes - {answer.code for answer in operation.answers})


def _schemas(operations: Sequence[Operation]) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """The JSON schema of each adapter, keyed by `id(adapter)`, and the components that the schemas refer to."""
    inputs = {id(op.body): ("validation", op.body) for op in operations if op.body is not None}
    answers = [answer.schema for op in operations for answer in op.answers if answer.schema is not None]
    outputs = {id(adapter): ("serialization", adapter) for adapter in [*answers, ERROR]}
    wanted: list[tuple[int, Any, TypeAdapter[Any]]] = [
        (key, mode, adapter) for key, (mode, adapter) in {**inputs, **outputs}.items()
    ]
    by_key, definitions = TypeAdapter.json_schemas(wanted, ref_template="#/components/schemas/{model}")
    return {key: schema for (key, _), schema in by_key.items()}, definitions.get("$defs", {})


def _describe(operation: Operation, schemas: dict[int, dict[str, Any]], has_token: bool) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for answer in operation.answers:
        responses[str(answer.code)] = {"description": answer.description}
        if answer.schema is not None:
            responses[str(answer.code)]["content"] = {answer.content_type: {"schema": schemas[id(answer.schema)]}}
    for code in refusals_of(operation, has_token):
        responses[str(code)] = {
            "description": REFUSALS[code],
            "content": {"application/json": {"schema": schemas[id(ERROR)]}},
            **({"headers": RETRY_AFTER} if code in (503, 504) else {}),
        }
    described: dict[str, Any] = {
        "operationId": operation.operation_id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": responses,
        **operation.extra,
    }
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if operation.body is not None:
        content = {"application/json": {"schema": schemas[id(operation.body)]}}
        described["requestBody"] = {"required": operation.body_required, "content": content}
    return described
