"""A Ray of two machines on this one, private to the tests. Its settings are made before anything imports `ray`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))

from rstar2.cluster.connect import make_private

make_private()

from collections.abc import Iterator  # noqa: E402

import pytest  # noqa: E402

ray = pytest.importorskip("ray", reason="needs the cluster extra")
from ray.cluster_utils import Cluster  # noqa: E402

STORE_BYTES = 100 << 20


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Of two machines, with a driver connected to them."""
    machine = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**machine, "include_dashboard": False})
    cluster.add_node(**machine)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield str(cluster.address)
    ray.shutdown()
    cluster.shutdown()
