"""The sandbox as an OpenEnv environment, played by the real openenv client. `make test-environments` runs this."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from openenv_real_servers import PYTHON_ENV
from sandbox_service import service

from rstar2.sandbox.http import ServiceSettings

pytestmark = [
    pytest.mark.environments,
    pytest.mark.skipif(PYTHON_ENV not in os.environ, reason="openenv is not here: `make test-environments` runs these"),
]
NUM_EPISODES = 40


async def test_many_episodes_of_the_real_client() -> None:
    async with service(settings=ServiceSettings(token="secret")) as running:
        script = Path(__file__).with_name("openenv_real_client.py")
        arguments = [f"{running.url}/openenv", "secret", str(NUM_EPISODES)]
        python = os.environ[PYTHON_ENV]
        client = await asyncio.create_subprocess_exec(python, str(script), *arguments, stdout=asyncio.subprocess.PIPE)
        out, _ = await client.communicate()
        assert client.returncode == 0
    seen = json.loads(out)
    for number, episode in enumerate(seen["episodes"]):
        state = {"episode_id": f"episode-{number}", "step_count": 4, "last_exit_code": 0}
        assert episode == {"value": str(number + 3), "state": state}
    mistakes = seen["mistakes"]
    assert (mistakes["raised"]["stdout"][:6], mistakes["raised"]["exit_code"]) == ("3.1415", 1)
    assert "ZeroDivisionError" in mistakes["raised"]["stderr"]
    assert (mistakes["stopped"], mistakes["kept"][:4]) == ("timeout", "6.28")
    assert "VALIDATION_ERROR" in mistakes["refused"]
    assert "NameError" in mistakes["forgotten"]
