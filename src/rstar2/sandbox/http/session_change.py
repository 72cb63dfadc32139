"""Makes a change of a session once per idempotency key."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web
from pydantic import TypeAdapter

from rstar2.sandbox.http import schema
from rstar2.sandbox.http.idempotency import KeyConflict
from rstar2.sandbox.http.operations import read_body
from rstar2.sandbox.http.schema import CellRequest, ForkRequest, PutFileRequest, RollbackRequest
from rstar2.sandbox.http.service import Service, conflict
from rstar2.sandbox.http.session_table import HeldSession, SessionTable

T = TypeVar("T", CellRequest, ForkRequest, PutFileRequest, RollbackRequest)
Act = Callable[[HeldSession, T], Awaitable[tuple[bytes, bool]]]
"""Makes the change; returns the answer, and whether to keep it for a repeated request."""


async def change_once(
    service: Service,
    sessions: SessionTable,
    request: web.Request,
    adapter: TypeAdapter[T],
    act: Act[T],
    if_empty: bytes | None = None,
) -> bytes:
    held = sessions.get(request.match_info["session_id"])
    body = await read_body(service, request, adapter, if_empty)
    return await changed(service, held, body, act, request.path)


async def changed(service: Service, held: HeldSession, body: T, act: Act[T], name: str) -> bytes:
    """Make a change, once: with an idempotency key it goes on when its caller disconnects, and a repeated request gets
    its result. `name` is the kind of change."""

    async def start() -> tuple[bytes, bool]:
        with service.admitted():
            return await act(held, body)

    if body.idempotency_key is None:
        return (await start())[0]
    try:
        key = f"{name} {body.idempotency_key}"
        return await held.once.run(key, schema.digest(body), start, cancel_when_alone=False)
    except KeyConflict:
        raise conflict(body.idempotency_key) from None
