"""HTTP for handlers: reads and validates bodies, and turns failures into answers, even after a stream began."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from rstar2.errors import InfrastructureError, UserError
from rstar2.serve.errors import OpenAIError, unreadable
from rstar2.serve.openapi import Handler
from rstar2.serve.service import EventStream, ModelService, read_body

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def parsed_body(service: ModelService, request: web.Request, adapter: TypeAdapter[T]) -> T:
    """Read the body; OpenAIError if it is invalid."""
    data = await read_body(request, service.settings.transfer_timeout_s)
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        raise unreadable(error) from None


@asynccontextmanager
async def streamed(stream: EventStream) -> AsyncIterator[None]:
    """Send a failure after the first event as an event, because the status was sent already."""
    try:
        yield
    except (OpenAIError, UserError, InfrastructureError, TimeoutError) as error:
        if not stream.has_begun:
            raise
        await stream.send(as_api_error(error).body)


async def answered(handler: Handler, request: web.Request) -> web.StreamResponse:
    """The handler's answer, or its failure in OpenAI's form. ConnectionError if the caller has disconnected."""
    try:
        return await handler(request)
    except (OpenAIError, UserError, InfrastructureError, TimeoutError) as error:
        return as_api_error(error).response
    except web.HTTPException as error:
        return OpenAIError(error.status, _http_message(error)).response
    except ConnectionError:
        raise
    except Exception:
        logger.exception("a handler failed on %s %s", request.method, request.path)
        return OpenAIError(500, "the server failed; its log says how", code="internal").response


def _http_message(error: web.HTTPException) -> str:
    if error.status == 404:
        return "there is no such route; /openapi.json names those that there are"
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return "the body is too large: the operator's limit is --max-body"
    return error.reason


def as_api_error(error: Exception) -> OpenAIError:
    """The OpenAIError for an expected failure of a handler."""
    if isinstance(error, OpenAIError):
        return error
    if isinstance(error, UserError):
        return OpenAIError(400, str(error))
    if isinstance(error, TimeoutError):
        return OpenAIError(504, "the time of the request is up: ask for fewer tokens, or retry later", code="timeout")
    return OpenAIError(503, str(error), code="engine_failed", retry_after_s=1.0)
