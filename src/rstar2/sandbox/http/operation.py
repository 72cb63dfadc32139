"""An endpoint as data: the router and the OpenAPI document are both made from the same list, so they cannot differ."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from rstar2.sandbox.http.errors import ApiError, unreadable
from rstar2.sandbox.http.service import Service

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Answer:
    description: str
    schema: TypeAdapter[Any] | None = None
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[int, Answer]
    body: TypeAdapter[Any] | None = None
    body_required: bool = True
    refusals: tuple[int, ...] = ()
    """Codes of the answers with an `ErrorBody`, besides those that every operation of its kind may give."""
    tag: str = "native"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members of the OpenAPI operation object that the rest does not say."""

    @property
    def operation_id(self) -> str:
        words = [word.strip("{}").replace("-", "_").replace(".", "_") for word in self.path.split("/") if word]
        return "_".join([self.method.lower(), *words])


async def read_body(
    service: Service, request: web.Request, adapter: TypeAdapter[T], if_empty: bytes | None = None
) -> T:
    """The request's body, received in time, within its size and valid; else the ApiError that says what is wrong."""
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
