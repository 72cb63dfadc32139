"""The sandbox as an OpenEnv environment, by our own client and by hand."""

import asyncio
from typing import Any

import aiohttp
import pytest
from sandbox_service import Running, service, until

from rstar2.environments.openenv_client import OpenEnvSession, ServerRefusalError
from rstar2.sandbox.http import ServiceSettings

pytestmark = pytest.mark.integration


def url_of(running: Running) -> str:
    return f"{running.url}/openenv"


async def num_sessions(running: Running, http: aiohttp.ClientSession) -> int:
    async with http.get(f"{running.url}/status") as response:
        return int((await response.json())["num_sessions"])


async def test_episodes_are_apart_and_bounded() -> None:
    async with (
        service(settings=ServiceSettings(max_sessions=2)) as running,
        aiohttp.ClientSession() as http,
    ):
        first, second, third = (OpenEnvSession(url_of(running), http) for _ in range(3))
        await first.reset({"seed": 1}, 0.0)
        await second.reset({}, 0.0)
        with pytest.raises(ServerRefusalError, match="over capacity") as refused:
            await third.reset({}, 0.0)
        assert refused.value.code == "CAPACITY_REACHED"
        await first.step({"code": "x = 1"})
        seen = (await second.step({"code": "x"})).observation
        assert (seen["status"], seen["exit_code"], "NameError" in seen["stderr"]) == ("error", 1, True)
        step = await first.step({"code": "print('hello')\nx + 1"})
        shown: Any = {"stdout": "hello\n", "stderr": "", "exit_code": 0, "value": "2", "status": "ok"}
        assert (step.observation, step.reward, step.done) == (shown, None, False)
        await second.close()
        await third.reset({}, 60.0)  # its place is free now
        await asyncio.gather(first.close(), third.close())
        async with asyncio.timeout(240):
            while await num_sessions(running, http):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_client_that_leaves_ends_its_cell() -> None:
    async with service() as running, aiohttp.ClientSession() as http:
        session = OpenEnvSession(url_of(running), http)
        await session.reset({}, 0.0)
        endless = asyncio.create_task(session.step({"code": "while True: pass", "timeout_s": 600}))
        await until(lambda: running.service.num_in_flight == 1)
        endless.cancel()
        await asyncio.gather(endless, return_exceptions=True)
        await until(lambda: running.service.num_in_flight == 0)


async def test_messages_that_are_wrong() -> None:
    async with (
        service() as running,
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url_of(running)}/ws") as socket,
    ):
        for text, code in (
            ("{", "INVALID_JSON"),
            ("[" * 100_000, "INVALID_JSON"),
            ("[]", "VALIDATION_ERROR"),
            ('{"type": "mcp"}', "UNKNOWN_TYPE"),
            ('{"type": "step", "data": {}}', "VALIDATION_ERROR"),
            ('{"type": "step", "data": [1]}', "VALIDATION_ERROR"),
            ('{"type": "step", "data": {"code": "1", "timeout_s": -1}}', "VALIDATION_ERROR"),
        ):
            await socket.send_str(text)
            answer = await socket.receive_json(timeout=240)
            assert (answer["type"], answer["data"]["code"]) == ("error", code)
        await socket.send_json({"type": "state"})
        state = {"episode_id": None, "step_count": 0, "last_exit_code": 0}
        assert await socket.receive_json(timeout=240) == {"type": "state", "data": state}
        async with http.get(f"{url_of(running)}/schema") as response:
            assert (await response.json())["action"]["title"] == "CodeAction"
        await socket.send_json({"type": "close"})
        assert (await socket.receive(timeout=240)).type is aiohttp.WSMsgType.CLOSE


async def test_the_token_is_asked_for() -> None:
    async with service(settings=ServiceSettings(token="secret")) as running, aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(f"{url_of(running)}/ws")
        assert refused.value.status == 401
