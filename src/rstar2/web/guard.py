"""Who may ask the viewer, and what every answer says to the browser.

A page of another site can send requests to a server on loopback, and by rebinding its own name to 127.0.0.1 it can even
read the answers. It cannot choose the Host header, though: that says the name it was loaded from. So a request is
answered only if it names this server by an address, by localhost or by the name that it was told to listen on; and one
that does something, only if it also comes from a page of this server.
"""

import ipaddress
import logging
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rstar2.errors import InfrastructureError, UserError

logger = logging.getLogger(__name__)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Trusted types without a policy: even our own script could not turn a text into HTML."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def may_ask(host_header: str, listening_host: str) -> bool:
    """Whether the name in a Host header is one that only this server can have."""
    try:
        name = urlsplit(f"//{host_header}").hostname or ""
        if is_loopback(name) or name == listening_host.lower():
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    # A literal address cannot be rebound; but a server on loopback is never asked by another one.
    return not is_loopback(listening_host)


def guard(listening_host: str) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        if not may_ask(request.host, listening_host):
            response = refusal(403, f"this viewer is not called {request.host!r}: open it by its address")
        elif request.method == "POST" and request.headers.get("Origin") not in (None, f"http://{request.host}"):
            response = refusal(403, "this was asked for by a page of another site")
        else:
            response = await _answer(request, handler)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    return guarded


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except UserError as error:
        return refusal(404, str(error))
    except InfrastructureError as error:
        return refusal(503, str(error))
    except web.HTTPException as error:
        return refusal(error.status, error.reason)
    except ConnectionError:
        raise
    except Exception:
        logger.exception("a handler failed on %s", request.path)
        return refusal(500, "the viewer failed; its log says how")


def refusal(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)
