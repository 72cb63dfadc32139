"""Many requests with disconnects, slow readers and bad bodies: none is lost or mixed up, and nothing is left."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_app import python_agent
from sandbox_service import cold
from served_app import running, until
from train_rollouts import CHAT

from model_server import tiny_model

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serve_soak.py"
NUM_REQUESTS, NUM_EPISODES = 1000, 150


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("serve_soak", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "serve_soak", module)  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


async def test_a_thousand_requests_leave_nothing_behind(tmp_path: Path, script: Any) -> None:
    async with running(tiny_model(tmp_path / "tiny")) as found:
        num_tasks = len(asyncio.all_tasks())
        traffic = script.Traffic(found.root, seed=1)
        await traffic.run(NUM_REQUESTS, concurrency=48)
        outcome = traffic.outcome
        assert not outcome.problems, outcome.problems[:5]
        assert sum(outcome.kinds.values()) == NUM_REQUESTS and len(outcome.kinds) == 7
        assert outcome.statuses.keys() == {200, 400, 404}
        await until(lambda: found.service.admission.num_in_flight == 0)
        await until(lambda: (found.engine.load().num_running, found.engine.load().num_waiting) == (0, 0))
        await until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        assert found.engine.load().num_free_blocks == found.engine.load().num_blocks
        assert not found.service.sessions and not found.service.gate.num_waiting


async def test_requests_to_an_agent_leave_nothing_in_the_sandbox(script: Any) -> None:
    from soak_agent import reply  # beside the script

    async with cold() as executor, python_agent(CHAT, executor, reply) as found:
        num_tasks = len(asyncio.all_tasks())
        traffic = script.AgentTraffic(found.root, seed=1)
        await traffic.run(NUM_EPISODES, concurrency=24)
        outcome = traffic.outcome
        assert not outcome.problems, outcome.problems[:5]
        assert sum(outcome.kinds.values()) == NUM_EPISODES and len(outcome.kinds) == 8
        await until(lambda: found.service.admission.num_in_flight == 0)
        await until(lambda: executor.status()["running"] == executor.status()["queued"] == 0)
        await until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        levels = await script.levels(found.root)
        assert levels["rstar2_serve_in_flight"] == levels["vllm:num_requests_running"] == 0
