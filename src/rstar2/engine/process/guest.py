"""An engine that lives in one process and is owned by another, for a third that its owner gave a socket to."""

import socket

from rstar2.engine.process.pipe import SocketChannel
from rstar2.engine.remote import RemoteEngine
from rstar2.engine.remote.peer import SILENCE_S
from rstar2.engine.remote.wire import decode_load
from rstar2.errors import InfrastructureError


async def join_engine(connection: socket.socket, silence_s: float = SILENCE_S) -> RemoteEngine:
    """Waits until the engine is loaded, for as long as its owner does."""
    channel = await SocketChannel.on(connection)
    hello = await channel.receive()
    if hello is None:
        raise InfrastructureError("the engine's process is gone")
    return RemoteEngine(channel, decode_load(hello["load"]), "the engine's process", silence_s)
