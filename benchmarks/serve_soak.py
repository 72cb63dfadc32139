"""A soak of `rstar2 serve`: many requests with disconnects, slow readers and bad bodies, and what is left after them.

    python benchmarks/serve_soak.py --model smollm2-135m --count 10000
    python benchmarks/serve_soak.py --agent --count 10000

Every complete answer is compared with the answer to the same request alone. With `--agent` the server runs the tool
loop of `soak_agent.py`, with programs in the sandbox; some callers leave while their program hangs. Exit code 1 if an
answer is missing or another's, if a request, a task or a program of the sandbox is still there at the end, if memory
grew, or if a process outlives the server.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import soak_agent

NUM_QUESTIONS = 16
MAX_TOKENS = 24
SLOW_READ_BYTES = 16
WARM_UP_SHARE = 0.2
GROWTH_SHARE = 0.10
"""How much the resident memory may differ between the end of the warm-up and the end."""
BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b'{"prompt": 5}',
    b'{"prompt": "x", "max_tokens": "many"}',
    b'{"prompt": [[]]}',
    b'{"prompt": "x", "model": "nobody"}',
    b'{"prompt": "x", "temperature": 1e999}',
    b'{"prompt": "x", "logit_bias": {"5": 1}}',
    b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
    b"\xff\xfe",
]
BAD_CHATS = [
    *(body for body in BAD_BODIES if b"prompt" not in body),
    b'{"messages": []}',
    b'{"messages": "x"}',
    b'{"messages": [{"role": "assistant", "content": "x"}]}',
    b'{"messages": [{"role": "tool", "tool_call_id": "1", "content": "4"}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f"}}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "model": "nobody"}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
]
SETTLE_S = 60.0
"""How long the server may take to be idle again when the last caller has left."""


@dataclass
class Outcome:
    """What happened to the requests."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


Act = Callable[[aiohttp.ClientSession, int], Awaitable[Any]]


class Traffic:
    """Random requests to a server whose engine is deterministic for a seed."""

    path = "/v1/completions"
    bad_bodies = BAD_BODIES

    def __init__(self, root: str, seed: int) -> None:
        self._root = root
        self._url = root + self.path
        self._random = random.Random(seed)
        self._expected: list[str] = []
        self.outcome = Outcome()

    def question(self, number: int, *, stream: bool) -> dict[str, Any]:
        prompt = f"Question {number}: " + "one two three " * (number % 5)
        return {"prompt": prompt, "max_tokens": MAX_TOKENS, "seed": number, "stream": stream}

    def text(self, choice: dict[str, Any]) -> str:
        """What a choice says, or a chunk of it in a stream."""
        return str(choice["text"])

    @property
    def acts(self) -> list[Act]:
        return [
            *(self._check_full, self._check_full, self._check_stream, self._check_stream),
            *(self._leave_early, self._leave_stream, self._read_slowly, self._send_badly, self._send_half),
        ]

    async def run(self, count: int, concurrency: int) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as http:
            if not self._expected:
                self._expected = [await self._full(http, number) or "" for number in range(NUM_QUESTIONS)]
            room = asyncio.Semaphore(concurrency)
            acts = self.acts

            async def one() -> None:
                act, number = self._random.choice(acts), self._random.randrange(NUM_QUESTIONS)
                async with room:
                    self.outcome.kinds[act.__name__.strip("_")] += 1
                    try:
                        await act(http, number)
                    except (aiohttp.ClientError, TimeoutError, OSError) as error:
                        self.outcome.problems.append(f"{act.__name__}: {type(error).__name__}: {error}")

            await asyncio.gather(*(one() for _ in range(count)))

    async def _full(self, http: aiohttp.ClientSession, number: int) -> str | None:
        """The text; None if the server is over capacity."""
        async with http.post(self._url, json=self.question(number, stream=False)) as response:
            self.outcome.statuses[response.status] += 1
            if response.status == 429:
                return None
            document = await response.json()
            if "choices" not in document:
                self.outcome.problems.append(f"question {number}: {response.status}, {document}")
                return None
            return self.text(document["choices"][0])

    async def _check_full(self, http: aiohttp.ClientSession, number: int) -> None:
        self._compare(await self._full(http, number), number)

    async def _check_stream(self, http: aiohttp.ClientSession, number: int, slowly: bool = False) -> None:
        async with http.post(self._url, json=self.question(number, stream=True)) as response:
            self.outcome.statuses[response.status] += 1
            if response.status == 429:
                return
            data = b""
            while piece := await response.content.read(SLOW_READ_BYTES if slowly else -1):
                data += piece
                if slowly:
                    await asyncio.sleep(0)
        events = [line.removeprefix("data: ") for line in data.decode().splitlines() if line.startswith("data: ")]
        if events[-1] != "[DONE]":
            self.outcome.problems.append(f"question {number}: the stream ended in the middle")
        self._compare("".join(self.text(json.loads(event)["choices"][0]) for event in events[:-1]), number)

    async def _read_slowly(self, http: aiohttp.ClientSession, number: int) -> None:
        await self._check_stream(http, number, slowly=True)

    async def _leave_stream(self, http: aiohttp.ClientSession, number: int) -> None:
        """Goes away after the first events."""
        async with http.post(self._url, json=self.question(number, stream=True)) as response:
            await response.content.read(self._random.randrange(1, 400))
            response.close()

    async def _leave_early(self, http: aiohttp.ClientSession, number: int) -> None:
        """Goes away while the server works."""
        asking = asyncio.ensure_future(self._full(http, number))
        for _ in range(self._random.randrange(40)):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def _send_badly(self, http: aiohttp.ClientSession, _: int) -> None:
        body = self._random.choice(self.bad_bodies)
        headers = {"Content-Type": "application/json"}
        async with http.post(self._url, data=body, headers=headers) as response:
            self.outcome.statuses[response.status] += 1
            document = await response.json()
            if response.status not in (400, 404) or "message" not in document["error"]:
                self.outcome.problems.append(f"{body[:40]!r} was answered with {response.status}: {document}")

    async def _send_half(self, _: aiohttp.ClientSession, number: int) -> None:
        """Closes the connection in the middle of a body."""
        host, port = re.fullmatch(r"http://([^:/]+):(\d+)", self._root).groups()  # type: ignore[union-attr]
        body = json.dumps(self.question(number, stream=True)).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
        await writer.drain()
        writer.transport.abort()

    def _compare(self, text: str | None, number: int) -> None:
        if text is not None and text != self._expected[number]:
            self.outcome.problems.append(f"question {number}: {text!r} instead of {self._expected[number]!r}")


class AgentTraffic(Traffic):
    """Chats with an agent whose programs run in the sandbox. Some callers leave while their program hangs."""

    path = "/v1/chat/completions"
    bad_bodies = BAD_CHATS

    def question(self, number: int, *, stream: bool, kind: str = "") -> dict[str, Any]:
        asked = soak_agent.question(number, kind or soak_agent.KINDS[number % len(soak_agent.KINDS)])
        return {"messages": [{"role": "user", "content": asked}], "stream": stream}

    def text(self, choice: dict[str, Any]) -> str:
        return (choice.get("message") or choice["delta"]).get("content") or ""

    @property
    def acts(self) -> list[Act]:
        return [*super().acts, self._leave_program]

    async def _leave_program(self, http: aiohttp.ClientSession, number: int) -> None:
        """Goes away while its program runs, which would never end."""
        body = self.question(number, stream=True, kind=soak_agent.HANGS)
        async with http.post(self._url, json=body) as response:
            self.outcome.statuses[response.status] += 1
            if response.status == 429:
                return
            async for line in response.content:
                if b'"tool_call"' in line:
                    break
            else:
                self.outcome.problems.append(f"question {number}: the stream ended before the program ran")
            response.close()

    def _compare(self, text: str | None, number: int) -> None:
        super()._compare(text, number)
        if text is not None and text != soak_agent.answer(number):
            self.outcome.problems.append(f"question {number}: {text!r}, and its program printed another number")


async def levels(root: str) -> dict[str, float]:
    """What the server still has, by its metrics: sequences, episodes, tasks, programs."""
    async with aiohttp.ClientSession() as http, http.get(f"{root}/metrics") as response:
        page = await response.text()
    names = r"vllm:num_requests_running|vllm:num_requests_waiting|rstar2_serve_(?!responses)\w+"
    found = re.findall(rf"^({names})(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


async def left_over(root: str, num_idle_tasks: float | None) -> dict[str, float]:
    """What is not 0 when the server has had time to be idle; tasks count beyond those of an idle server."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        found = await levels(root)
        found["rstar2_serve_tasks"] -= found["rstar2_serve_tasks"] if num_idle_tasks is None else num_idle_tasks
        left = {name: value for name, value in found.items() if value > 0}
        if not left or time.monotonic() > deadline_s:
            return left
        await asyncio.sleep(0.1)


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def descendants(pid: int) -> set[int]:
    try:
        children = set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return set()
    return children.union(*map(descendants, children))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


async def left_running(pids: set[int]) -> list[int]:
    """Processes that outlive the server."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        left = [pid for pid in pids if is_running(pid)]
        if not left or time.monotonic() > deadline_s:
            return left
        await asyncio.sleep(0.1)


def server_command(arguments: argparse.Namespace) -> list[str]:
    served = ["--agent", "--engine", "soak_agent:open_policy"] if arguments.agent else [arguments.model]
    return [sys.executable, "-m", "rstar2", "serve", *served, "--port", "0"]


async def soak(arguments: argparse.Namespace) -> int:
    # The server finds the agent's policy beside this file.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path[1:]))}
    process = await asyncio.create_subprocess_exec(
        *server_command(arguments), stderr=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stderr is not None
    started_s = time.monotonic()
    try:
        while b"serving" not in (line := await process.stderr.readline()):
            if not line:
                sys.exit("the server did not start")
        root = re.search(r"on (http://\S+)/v1", line.decode())[1]  # type: ignore[index]
        traffic = (AgentTraffic if arguments.agent else Traffic)(root, arguments.seed)
        num_warm_up = int(arguments.count * WARM_UP_SHARE)
        await traffic.run(num_warm_up, arguments.concurrency)
        left = {"after the warm-up": await left_over(root, None)}
        num_idle_tasks, before = (await levels(root))["rstar2_serve_tasks"], resident_mib(process.pid)
        num_processes = [len(descendants(process.pid))]
        await traffic.run(arguments.count - num_warm_up, arguments.concurrency)
        left["at the end"] = await left_over(root, num_idle_tasks)
        after, children = resident_mib(process.pid), descendants(process.pid)
        num_processes.append(len(children))
        process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 60)
        outliving = await left_running(children)
    finally:
        if process.returncode is None:
            process.kill()
    outcome = traffic.outcome
    report = {
        "requests": sum(outcome.kinds.values()),
        "seconds": round(time.monotonic() - started_s),
        "kinds": outcome.kinds,
        "statuses": outcome.statuses,
        "problems": outcome.problems[:10],
        "num_problems": len(outcome.problems),
        "left_over": left,
        "resident_mib": [round(before), round(after)],
        "child_processes": num_processes,
        "outliving_processes": outliving,
        "exit_code": code,
    }
    print(json.dumps(report, indent=2))
    has_grown = after > before * (1 + GROWTH_SHARE)
    return int(bool(outcome.problems or any(left.values()) or outliving or has_grown or code))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--agent", action="store_true", help="serve an agent whose programs run in the sandbox")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(asyncio.run(soak(parser.parse_args())))
