"""The sandbox service that tests share: one for a module, since starting one takes longer than most tests."""

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from sandbox_service import Running, service_on_thread

from rstar2.sandbox import Executor
from rstar2.sandbox.client import RemoteExecutor


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
