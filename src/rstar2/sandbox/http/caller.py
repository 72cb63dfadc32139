"""The check of the caller, shared by every server of the sandbox."""

import base64
import contextlib
import hmac
from collections.abc import Mapping

from rstar2.sandbox.http.access import is_of_another_site, may_ask
from rstar2.sandbox.http.errors import ApiError


def check_caller(headers: Mapping[str, str], *, token: str | None, listening_host: str) -> None:
    """Refuse pages of other sites and callers without the token. If there is no token, refuse Host headers with a name
    that others may have too; with a token any name will do, such as a proxy's or a cluster's. `headers` must look names
    up in any case."""
    host = headers.get("Host", "")
    if is_of_another_site(headers.get("Origin"), host):
        raise ApiError(403, "forbidden", "this was asked for by a page of another site")
    if token is not None:
        if not hmac.compare_digest(_token_in(headers.get("Authorization", "")), token.encode()):
            raise ApiError(401, "unauthorized", "send the service's token as `Authorization: Bearer <token>`")
    elif not may_ask(host, listening_host):
        raise ApiError(403, "forbidden", f"this service is not called {host!r}: ask it by its address")


def _token_in(authorization: str) -> bytes:
    """The Bearer token, or the Basic password, for clients that take only a URL: http://:TOKEN@host:port."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.encode(errors="surrogateescape")
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            return base64.b64decode(value).partition(b":")[2]
    return b""
