"""What every test starts from."""

import os
import signal

import hypothesis
import pytest

# A property holds however long an example takes: timings are measured in benchmarks/.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Workers of OpenMP that spin while they wait take the cores that the others need: on a busy machine tests of the engine
# would take three times as long. Before anything imports PyTorch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: tests that interrupt what
# they have started would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What measures real time may be late once. What waits for an event may not: a race is a defect."""
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))
