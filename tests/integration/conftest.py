"""What many files start: a sandbox, as a service and in the process, and a tiny model for servers."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from sandbox_service import Running, cold, service_on_thread

from model_server import tiny_model
from rstar2.sandbox import Executor, LocalExecutor
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.slots import slot_factory


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with service_on_thread() as found:
        yield found


@pytest.fixture(scope="module")
def sandbox_url(running: Running) -> str:
    return running.url


@pytest.fixture
async def remote(running: Running) -> AsyncIterator[Executor]:
    async with RemoteExecutor(running.url) as executor:
        yield executor


@pytest.fixture
async def http(running: Running) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(running.url) as session:
        yield session


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor() -> AsyncIterator[LocalExecutor]:
    """For files whose tests run in the loop of their module."""
    async with cold() as executor:
        yield executor


@pytest.fixture
def cold_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what makes a sandbox with the default settings in this process, a run or a command, and whose programs need
    no libraries, or import them themselves: loading them takes two seconds of each start."""
    plain = slot_factory.template_config
    monkeypatch.setattr(
        slot_factory, "template_config", lambda config, *more: plain(replace(config, warm=False), *more)
    )


@pytest.fixture(scope="session")
def tiny_served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder for servers. It is only read."""
    return tiny_model(tmp_path_factory.mktemp("served") / "tiny")
