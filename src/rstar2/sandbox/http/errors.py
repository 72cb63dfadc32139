"""The one shape of every failure, `ErrorBody`; tracebacks of the service never reach the caller."""

import json
import math
from collections.abc import Sequence

from aiohttp import web
from pydantic import JsonValue, ValidationError

from rstar2.sandbox.http.schema import ERROR, ErrorBody

MAX_DETAILS = 16


class ApiError(Exception):
    """An error response that a handler decides on."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        *,
        detail: Sequence[dict[str, JsonValue]] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(error, message, list(detail))
        self.retry_after_s = retry_after_s


def overloaded(message: str, retry_after_s: float, status: int = 503) -> ApiError:
    return ApiError(status, "overloaded", message, retry_after_s=retry_after_s)


def unreadable(error: ValidationError) -> ApiError:
    """The body is not JSON (400), or not the JSON that the operation takes (422, naming the field)."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "malformed", f"the body is not valid JSON: {first['msg']}")
    field = ".".join(str(part) for part in first["loc"]) or "body"
    detail: list[dict[str, JsonValue]] = [
        {"type": problem["type"], "loc": ["body", *problem["loc"]], "msg": problem["msg"]}
        for problem in problems[:MAX_DETAILS]
    ]
    return ApiError(422, "invalid", f"{field}: {first['msg']}", detail=detail)


def from_http_exception(error: web.HTTPException) -> web.Response:
    """The answer to what aiohttp refuses (unknown path, wrong method, too large), in our shape and with its headers."""
    message = {
        404: "there is nothing at this path; GET /openapi.json lists what there is",
        405: "this path does not take this method",
        413: "the body is larger than the service accepts",
    }.get(error.status, error.reason)
    response = response_to(ApiError(error.status, (error.reason or "error").lower().replace(" ", "_"), message))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def response_to(error: ApiError) -> web.Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=error.status, body=ERROR.dump_json(error.body), content_type="application/json", headers=headers
    )


def json_line(index: int, error: ApiError) -> bytes:
    """The line for a refused run in a batch whose other runs continue."""
    return b'{"index":%d,"error":%s}\n' % (index, json.dumps(ERROR.dump_python(error.body)).encode())
