"""The one form of every failure, OpenAI's: `{"error": {"message", "type", "param", "code"}}`."""

import math
from typing import Any

from aiohttp import web
from pydantic import ValidationError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class OpenAIError(Exception):
    """An error response that a handler decides on."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> web.Response:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(math.ceil(self.retry_after_s))}
        return web.json_response(self.body, status=self.status, headers=headers)


def unreadable(error: ValidationError) -> OpenAIError:
    """The error for a body that is not JSON, or not the JSON that the route takes; it names the field."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return OpenAIError(400, f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    field = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "function-")))
    return OpenAIError(400, f"{field or 'body'}: {first['msg']}", param=field or None, code="invalid_value")


def unsupported(field: str, reason: str) -> OpenAIError:
    return OpenAIError(400, f"{field}: {reason}", param=field, code="unsupported_parameter")
