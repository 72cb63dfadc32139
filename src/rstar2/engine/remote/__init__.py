"""An engine that works elsewhere: in another process, on another machine.

Promise: what `RemoteEngine` yields is what the engine behind it sampled, in order; one that dies or falls silent, in
whatever way, is an `InfrastructureError` to everyone who waits for it. What carries the frames is a `Channel`.
"""

from rstar2.engine.remote.client import Channel, Peer, RemoteEngine
from rstar2.engine.remote.host import EngineHost

__all__ = ["Channel", "EngineHost", "Peer", "RemoteEngine"]
