"""The child: one engine, served over an inherited socket until its other end is closed."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from rstar2.engine.process.framing import read_frames, write_frames
from rstar2.engine.process.garbage_collection import look_rarely_for_cycles
from rstar2.engine.protocol import Engine
from rstar2.engine.remote import EngineHost
from rstar2.engine.remote.wire import encode_error, encode_load
from rstar2.errors import UserError

ServedEngine = TypeVar("ServedEngine", bound=Engine)


async def serve(
    connection: socket.socket,
    load_engine: Callable[[], ServedEngine],
    make_host: Callable[[ServedEngine], EngineHost] = EngineHost,
    guests: Sequence[socket.socket] = (),
) -> None:
    """Says whether the engine could be loaded, then serves it to its owner and his guests until he is gone. The process
    is taken to be the engine's alone."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        engine = load_engine()
    except UserError as error:
        write_frames(writer, [{"error": encode_error(error)}])
        await writer.drain()
        return
    look_rarely_for_cycles()
    visits = [asyncio.create_task(serve_guest(engine, guest)) for guest in guests]
    # A connection that breaks while something is written to it is an owner that is gone.
    with suppress(ConnectionError):
        await _serve(make_host(engine), reader, writer)
    for visit in visits:
        visit.cancel()
    await asyncio.gather(*visits, return_exceptions=True)
    await engine.close()


async def serve_guest(engine: Engine, connection: socket.socket) -> None:
    await _serve(EngineHost(engine), *await asyncio.open_connection(sock=connection))


async def _serve(host: EngineHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the other side is gone."""
    write_frames(writer, [{"error": None, "load": encode_load(host.load)}])

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
