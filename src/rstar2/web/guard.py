"""Checks who calls the viewer, and sets the headers of every answer.

A request is answered only if its Host can belong only to this server, and no page of another site sent it
(`rstar2.sandbox.http.access`).
"""

import logging

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.http.access import is_of_another_site, may_ask

logger = logging.getLogger(__name__)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Trusted types without a policy: not even our own script can turn text into HTML."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def guard(listening_host: str) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not may_ask(request.host, listening_host):
            return refusal(403, f"this viewer is not called {request.host!r}: open it by its address")
        if is_of_another_site(request.headers.get("Origin"), request.host):
            return refusal(403, "this was asked for by a page of another site")
        return await _answer(request, handler)

    return guarded


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


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
