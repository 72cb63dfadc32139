"""Many sandboxes behind one `Executor`: calls go to the node with room, and come back once, whatever dies.

Promise: exactly one answer for each call; a node that is killed, hangs or leaves costs its callers time and nothing
else; a bounded queue that says so at once when it is full. Starts no nodes and knows of no cluster: whoever starts
nodes adds them.
"""

from rstar2.sandbox.pool.executor import PoolExecutor
from rstar2.sandbox.pool.node import HealthConfig, NodeReport, NodeState
from rstar2.sandbox.pool.pool_session import PoolSession
from rstar2.sandbox.pool.remote_node import RemoteNode

__all__ = ["HealthConfig", "NodeReport", "NodeState", "PoolExecutor", "PoolSession", "RemoteNode"]
