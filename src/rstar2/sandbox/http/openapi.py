"""The OpenAPI 3.1 document, made from the operations that the router was made from."""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

import rstar2
from rstar2.sandbox.http.operation import Operation
from rstar2.sandbox.http.schema import ERROR

REFUSALS = {
    400: "The body is not JSON.",
    401: "The bearer token is missing or wrong.",
    403: "A page of another site asked for it, or it was asked for by a name that the service does not have.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    409: "It contradicts what was asked before, or the state as it is.",
    413: "The body is too large.",
    415: "The body is not sent as application/json.",
    422: "The body is JSON, but not what this operation takes; `detail` names the fields.",
    503: "Over capacity, or shutting down. Nothing was started; `Retry-After` says when to come back.",
    504: "Over capacity, or shutting down, said as SandboxFusion's callers understand it.",
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
REF = "#/components/schemas/{model}"


def document(operations: Sequence[Operation], *, has_token: bool) -> dict[str, Any]:
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas, has_token)
    found: dict[str, Any] = {
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
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def refusals_of(operation: Operation, has_token: bool) -> list[int]:
    """Every code with an `ErrorBody` that the operation may answer with."""
    codes = {403, *operation.refusals}
    if operation.body is not None:
        codes |= {400, 408, 413, 415, 422}
        if 504 not in codes:
            codes.add(503)
    if has_token and operation.extra.get("security") != []:
        codes.add(401)
    return sorted(codes - operation.answers.keys())


def _schemas(operations: Sequence[Operation]) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """The JSON schema of each adapter, by its identity, and the components that they refer to."""
    inputs = {id(op.body): ("validation", op.body) for op in operations if op.body is not None}
    answers = [answer.schema for op in operations for answer in op.answers.values() if answer.schema is not None]
    outputs = {id(adapter): ("serialization", adapter) for adapter in [*answers, ERROR]}
    wanted: list[tuple[int, Any, TypeAdapter[Any]]] = [
        (key, mode, adapter) for key, (mode, adapter) in {**inputs, **outputs}.items()
    ]
    by_key, definitions = TypeAdapter.json_schemas(wanted, ref_template=REF)
    return {key: schema for (key, _), schema in by_key.items()}, definitions.get("$defs", {})


def _operation(operation: Operation, schemas: dict[int, dict[str, Any]], has_token: bool) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for code, answer in operation.answers.items():
        responses[str(code)] = {"description": answer.description}
        if answer.schema is not None:
            responses[str(code)]["content"] = {answer.content_type: {"schema": schemas[id(answer.schema)]}}
    for code in refusals_of(operation, has_token):
        responses[str(code)] = {
            "description": REFUSALS[code],
            "content": {"application/json": {"schema": schemas[id(ERROR)]}},
            **({"headers": RETRY_AFTER} if code in (503, 504) else {}),
        }
    found: dict[str, Any] = {
        "operationId": operation.operation_id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": responses,
        **operation.extra,
    }
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if operation.body is not None:
        content = {"application/json": {"schema": schemas[id(operation.body)]}}
        found["requestBody"] = {"required": operation.body_required, "content": content}
    return found
