"""Many sandboxes behind one `Executor`: each call goes to a node with room and gets one answer, whichever nodes die.

Promise: exactly one answer for each call; a node that is killed, hangs or leaves costs its callers only time; calls
beyond a full queue are refused at once. The caller starts the nodes and adds them.
"""

from rstar2.sandbox.pool.executor import PoolExecutor
from rstar2.sandbox.pool.node import HealthConfig, NodeReport, NodeState
from rstar2.sandbox.pool.pool_session import PoolSession
from rstar2.sandbox.pool.remote_node import RemoteNode

__all__ = ["HealthConfig", "NodeReport", "NodeState", "PoolExecutor", "PoolSession", "RemoteNode"]
