"""The client of the real openenv package plays the sandbox's environment: `python openenv_real_client.py URL TOKEN N`.
N episodes at a time, each with state of its own; then one that goes wrong. Prints what it saw as JSON."""

import asyncio
import json
import sys
from typing import Any

from openenv.core.generic_client import GenericEnvClient


async def episode(url: str, token: str, number: int) -> dict[str, Any]:
    async with GenericEnvClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as env:
        first = await env.reset(episode_id=f"episode-{number}")
        assert (first.done, first.observation["exit_code"]) == (False, 0)
        await env.step({"code": f"total = {number}"})
        # All are open here: none of them is closed before its last step.
        for _ in range(3):
            step = await env.step({"code": "total += 1\ntotal"})
        return {"value": step.observation["value"], "state": await env.state()}


async def mistakes(url: str, token: str) -> dict[str, Any]:
    async with GenericEnvClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as env:
        await env.reset()
        raised = await env.step({"code": "import math\nprint(math.pi)\n1 / 0"})
        stopped = await env.step({"code": "while True: pass", "timeout_s": 0.5})
        kept = await env.step({"code": "math.tau"})
        try:
            refused = str(await env.step({"text": "?"}))
        except Exception as error:
            refused = str(error)
        await env.reset()
        forgotten = await env.step({"code": "math"})
    return {
        "raised": raised.observation,
        "stopped": stopped.observation["status"],
        "kept": kept.observation["value"],
        "refused": refused,
        "forgotten": forgotten.observation["stderr"],
    }


async def main() -> None:
    url, token, count = sys.argv[1:]
    episodes = await asyncio.gather(*(episode(url, token, number) for number in range(int(count))))
    print(json.dumps({"episodes": episodes, "mistakes": await mistakes(url, token)}))


asyncio.run(main())
