"""An engine in another process or on another machine.

Promise: a `RemoteEngine` yields what the engine behind it sampled, in order; an engine that dies or falls silent raises
an `InfrastructureError` in everything that awaits it. A `Channel` carries the frames.
"""

from rstar2.engine.remote.client import Channel, Peer, RemoteEngine
from rstar2.engine.remote.host import EngineHost

__all__ = ["Channel", "EngineHost", "Peer", "RemoteEngine"]
