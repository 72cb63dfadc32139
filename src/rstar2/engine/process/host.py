"""Serves one engine from a child process over inherited sockets; a guest process joins it over one of them."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from rstar2.engine.process.child import SocketChannel, make_garbage_collection_rare, read_frames, write_frames
from rstar2.engine.protocol import Engine
from rstar2.engine.remote import EngineHost, RemoteEngine
from rstar2.engine.remote.client import SILENCE_S
from rstar2.engine.remote.wire import encode_error
from rstar2.errors import InfrastructureError, UserError

ServedEngine = TypeVar("ServedEngine", bound=Engine)


async def serve(
    connection: socket.socket,
    load_engine: Callable[[], ServedEngine],
    make_host: Callable[[ServedEngine], EngineHost] = EngineHost,
    guests: Sequence[socket.socket] = (),
) -> None:
    """Reports whether the engine could be loaded, then serves it to its owner and the guests until the owner
    disconnects. The process must do nothing else."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        engine = load_engine()
    except UserError as error:
        write_frames(writer, [{"error": encode_error(error)}])
        await writer.drain()
        return
    make_garbage_collection_rare()
    visits = [asyncio.create_task(serve_guest(engine, guest)) for guest in guests]
    # A connection that breaks during a write means that the owner has disconnected.
    with suppress(ConnectionError):
        await _serve(make_host(engine), reader, writer)
    for visit in visits:
        visit.cancel()
    await asyncio.gather(*visits, return_exceptions=True)
    await engine.close()


async def serve_guest(engine: Engine, connection: socket.socket) -> None:
    await _serve(EngineHost(engine), *await asyncio.open_connection(sock=connection))


async def _serve(host: EngineHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve until the other side disconnects or this is cancelled. Closes the connection at the end."""
    write_frames(writer, [{"error": None, "load": host.load}])

    async def keep_sending() -> None:
        while True:
            write_frames(writer, [await host.next_frame()])
            await writer.drain()

    sender = asyncio.create_task(keep_sending())
    try:
        while (frames := await read_frames(reader)) is not None:
            for frame in frames:
                host.act(frame)
    finally:
        sender.cancel()
        await asyncio.gather(sender, host.close(), return_exceptions=True)
        writer.close()


async def join_engine(connection: socket.socket, silence_s: float = SILENCE_S) -> RemoteEngine:
    """The engine at the other end of a guest's socket. Waits until it is loaded, as long as its owner waits."""
    channel = await SocketChannel.on(connection)
    hello = await channel.receive()
    if hello is None:
        raise InfrastructureError("the engine's process has ended")
    return RemoteEngine(channel, hello["load"], "the engine's process", silence_s)
