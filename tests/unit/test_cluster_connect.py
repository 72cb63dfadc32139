"""From the word after `--cluster` to an address: what cannot be one is said before Ray waits for it."""

import socket

import pytest

from rstar2.cluster.connect import connected
from rstar2.errors import UserError

pytestmark = [pytest.mark.unit, pytest.mark.timeout(300)]


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nobody_listens_there(scheme: str) -> None:
    address = f"{scheme}127.0.0.1:{closed_port()}"
    with pytest.raises(UserError, match=f"--cluster is {address}, but nothing answers"), connected(address):
        pass


def test_nobody_listens_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port()}")
    with pytest.raises(UserError, match=r"RAY_ADDRESS is 127\.0\.0\.1:"), connected("auto"):
        pass


@pytest.mark.parametrize("address", ["10.0.0.1", "somewhere", ":6379", "ray://head"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UserError, match="give auto, local, HOST:PORT or ray://HOST:PORT"), connected(address):
        pass
