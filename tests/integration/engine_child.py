"""An engine in a child process that a test can kill in the middle of its turns: none of them ends."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence

from train_rollouts import CHAT

from rstar2.engine import Chunk, Sampling
from rstar2.engine.process.child import spawn
from rstar2.engine.process.host import serve
from rstar2.engine.remote import RemoteEngine
from rstar2.engine.scripted import ScriptedEngine


class ChildEngine(RemoteEngine):
    """Made by `start_child`."""

    pid: int


async def start_child() -> ChildEngine:
    channel = await spawn(_serve)
    hello = await channel.hello("the engine's process")
    engine = ChildEngine(channel, hello["load"], "the engine's process")
    engine.pid = channel.pid
    return engine


def _serve(connection: socket.socket) -> None:
    asyncio.run(serve(connection, lambda: _Endless(lambda _: "so " * 100, CHAT.tokenizer, CHAT.end_of_turn_id)))


class _Endless(ScriptedEngine):
    """Every turn has a beginning."""

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        async for chunk in super().generate(session, token_ids, sampling, max_tokens):
            yield chunk
            await asyncio.Event().wait()
