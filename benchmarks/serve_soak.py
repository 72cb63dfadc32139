"""A soak of `rstar2 serve`: many requests with disconnects, slow readers and bad bodies, and what is left after them.

    python benchmarks/serve_soak.py --model smollm2-135m --count 10000

Every complete answer is compared with the answer to the same request alone. Exit code 1 if an answer is missing or
another's, if a request is still in flight at the end, or if memory grew.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

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


@dataclass
class Outcome:
    """What happened to the requests."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Traffic:
    """Random requests to a server whose engine is deterministic for a seed."""

    def __init__(self, root: str, seed: int) -> None:
        self._root = root
        self._random = random.Random(seed)
        self._expected: list[str] = []
        self.outcome = Outcome()

    def question(self, number: int, *, stream: bool) -> dict[str, Any]:
        prompt = f"Question {number}: " + "one two three " * (number % 5)
        return {"prompt": prompt, "max_tokens": MAX_TOKENS, "seed": number, "stream": stream}

    async def run(self, count: int, concurrency: int) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as http:
            if not self._expected:
                self._expected = [await self._full(http, number) or "" for number in range(NUM_QUESTIONS)]
            room = asyncio.Semaphore(concurrency)
            acts: list[Callable[[aiohttp.ClientSession, int], Awaitable[Any]]] = [
                *(self._check_full, self._check_full, self._check_stream, self._check_stream),
                *(self._leave_early, self._leave_stream, self._read_slowly, self._send_badly, self._send_half),
            ]

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
        async with http.post(f"{self._root}/v1/completions", json=self.question(number, stream=False)) as response:
            self.outcome.statuses[response.status] += 1
            if response.status == 429:
                return None
            return str((await response.json())["choices"][0]["text"])

    async def _check_full(self, http: aiohttp.ClientSession, number: int) -> None:
        self._compare(await self._full(http, number), number)

    async def _check_stream(self, http: aiohttp.ClientSession, number: int, slowly: bool = False) -> None:
        async with http.post(f"{self._root}/v1/completions", json=self.question(number, stream=True)) as response:
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
        self._compare("".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]), number)

    async def _read_slowly(self, http: aiohttp.ClientSession, number: int) -> None:
        await self._check_stream(http, number, slowly=True)

    async def _leave_stream(self, http: aiohttp.ClientSession, number: int) -> None:
        """Goes away after the first events."""
        async with http.post(f"{self._root}/v1/completions", json=self.question(number, stream=True)) as response:
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
        body = self._random.choice(BAD_BODIES)
        headers = {"Content-Type": "application/json"}
        async with http.post(f"{self._root}/v1/completions", data=body, headers=headers) as response:
            self.outcome.statuses[response.status] += 1
            document = await response.json()
            if response.status not in (400, 404) or "message" not in document["error"]:
                self.outcome.problems.append(f"{body[:40]!r} was answered with {response.status}: {document}")

    async def _send_half(self, _: aiohttp.ClientSession, number: int) -> None:
        """Closes the connection in the middle of a body."""
        host, port = re.fullmatch(r"http://([^:/]+):(\d+)", self._root).groups()  # type: ignore[union-attr]
        body = json.dumps(self.question(number, stream=True)).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
        await writer.drain()
        writer.transport.abort()

    def _compare(self, text: str | None, number: int) -> None:
        if text is not None and text != self._expected[number]:
            self.outcome.problems.append(f"question {number}: {text!r} instead of {self._expected[number]!r}")


async def in_flight(root: str) -> float:
    """Sequences that the server runs or keeps waiting, by its metrics."""
    async with aiohttp.ClientSession() as http, http.get(f"{root}/metrics") as response:
        page = await response.text()
    found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", page, re.MULTILINE)
    return sum(map(float, found))


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


async def soak(arguments: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "rstar2.cli.main", "serve", arguments.model, "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while b"serving" not in (line := await process.stderr.readline()):
            if not line:
                sys.exit("the server did not start")
        root = re.search(r"on (http://\S+)/v1", line.decode())[1]  # type: ignore[index]
        traffic = Traffic(root, arguments.seed)
        await traffic.run(int(arguments.count * WARM_UP_SHARE), arguments.concurrency)
        before = resident_mib(process.pid)
        await traffic.run(arguments.count - int(arguments.count * WARM_UP_SHARE), arguments.concurrency)
        after = resident_mib(process.pid)
        for _ in range(100):
            if not (left := await in_flight(root)):
                break
            await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    outcome = traffic.outcome
    report = {
        "requests": sum(outcome.kinds.values()),
        "kinds": outcome.kinds,
        "statuses": outcome.statuses,
        "problems": outcome.problems[:10],
        "num_problems": len(outcome.problems),
        "left_in_flight": left,
        "resident_mib": [round(before), round(after)],
        "exit_code": code,
    }
    print(json.dumps(report, indent=2))
    has_grown = after > before * (1 + GROWTH_SHARE)
    return int(bool(outcome.problems) or bool(left) or has_grown or code != 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(asyncio.run(soak(parser.parse_args())))
