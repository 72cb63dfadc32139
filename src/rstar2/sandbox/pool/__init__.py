"""Many sandboxes behind one `Executor`: calls go to a node with room and are answered once, whatever dies.

Promise: exactly one answer for each call; a node that is killed, hangs or leaves costs its callers time and nothing
else; a full queue is refused at once. It starts no nodes; the caller starts nodes and adds them.
"""

from rstar2.sandbox.pool.executor import PoolExecutor
from rstar2.sandbox.pool.node import HealthConfig, NodeReport, NodeState
from rstar2.sandbox.pool.pool_session import PoolSession
from rstar2.sandbox.pool.remote_node import RemoteNode

__all__ = ["HealthConfig", "NodeReport", "NodeState", "PoolExecutor", "PoolSession", "RemoteNode"]
