"""No input, valid or not, makes the model server answer 500 or anything that its OpenAPI document does not announce."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rstar2.agent import ChatFormat
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine
from rstar2.serve import ServedModel, Server, create_app
from rstar2.serve.app import DOCUMENT

pytestmark = pytest.mark.integration

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def scripted_app() -> web.Application:
    chat = ChatFormat.of(PlainTextTokenizer())
    engine = ScriptedEngine(lambda prompt: f"{len(prompt.text)} characters", chat.tokenizer, chat.end_of_turn_id)
    return create_app(ServedModel(engine, chat, "scripted"))


schema = schemathesis.openapi.from_dict(scripted_app()[DOCUMENT])


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        server = Server(scripted_app())
        await server.start([listener])
        ready.set()
        await stop.wait()
        await server.drain(0.0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    assert not thread.is_alive()
    loop.close()


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_route_as_documented(root: str, case: schemathesis.Case[Any]) -> None:
    response = case.call(base_url=root, timeout=240)
    case.validate_response(response, checks=CHECKS)
