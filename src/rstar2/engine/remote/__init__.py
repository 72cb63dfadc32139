"""An engine in another process or on another machine.

Promise: what `RemoteEngine` yields is what the engine behind it sampled, in order; one that dies or falls silent
raises an `InfrastructureError` in everything that awaits it. A `Channel` carries the frames.
"""

from rstar2.engine.remote.client import Channel, Peer, RemoteEngine
from rstar2.engine.remote.host import EngineHost

__all__ = ["Channel", "EngineHost", "Peer", "RemoteEngine"]
