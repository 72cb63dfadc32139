"""What every test starts from."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

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
            item.add_marker(pytest.mark.flaky(reruns=5, reruns_delay=2))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """More would spin on models as small as those of tests, and longest on a busy machine."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that is only read: a test that changes it makes a copy."""
    from rstar2.models.tiny import TinySizes, build_tiny

    folder = tmp_path_factory.mktemp("tiny-llama")
    build_tiny(folder, "llama", TinySizes(1, 16, 2, 1, 400, 64), ["some words"], seed=0)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """In the user's own data home: it is downloaded once for all tests that use it."""
    from rstar2.models import get_model

    return get_model("smollm2-135m").folder
