"""`rstar2 serve` and vLLM's server on the same requests, in one run: throughput and latency over HTTP.

    python benchmarks/serve.py --model FOLDER [--shapes NAME ...] [--vllm-python PYTHON] [--in-flight 1 8 32] [--json]

Both servers run at the same time, and their rounds alternate, so that a noisy machine is noisy for both; while one is
measured, the others have nothing to do. A request is a stream of `/v1/completions` with a prompt of token ids, and asks
for as many tokens as it gets (`ignore_eos`). Both servers get the same prompts; each round has new ones, so no prefix
cache helps. At most `--in-flight` run at a time; the next starts when one ends. Time to first token counts from the
sending of a request. The time between two events is divided by the tokens of the second. Throughput is the median of
`--num-repeats` rounds, latencies are those of all their requests; a round before them, of one request for each in
flight, is not counted. Requests have no seed: with seeds, vLLM 0.32 on a CPU fails at a prompt that is prefilled in
chunks.

With `--shapes` the weights are random, in the shapes of these models, and only the tokenizer is the folder's. The
servers of several models start together; when all answer, they are measured one model after the other. On a GPU all of
them share its memory: give rstar2 `--set engine.kv_cache_tokens=N`, and vLLM `--kv-cache-memory-bytes N` with a low
`--gpu-memory-utilization`, since it cannot measure what is free while others start.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Self, TextIO
from urllib.request import urlopen

import aiohttp
from model_shapes import SHAPES

START_S = 900.0
STOP_S = 60.0
REQUEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Request:
    prompt_ids: list[int]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """What one request saw."""

    first_s: float
    between_s: list[float]


@dataclass(frozen=True, slots=True)
class Round:
    tokens_per_s: float
    timings: list[Timings]


@dataclass(frozen=True, slots=True)
class Row:
    tokens_per_s: float
    first_p50_ms: float
    first_p99_ms: float
    between_p50_ms: float
    between_p99_ms: float


def make_requests(options: argparse.Namespace, vocab_size: int, number: int, round_name: str) -> list[Request]:
    rng = random.Random(f"{options.seed}: {round_name}")
    return [
        Request(
            [rng.randrange(3, vocab_size) for _ in range(rng.randint(*options.prompt_tokens))],
            rng.randint(*options.answer_tokens),
        )
        for _ in range(number)
    ]


async def ask(http: aiohttp.ClientSession, url: str, request: Request) -> Timings:
    body = {
        "prompt": request.prompt_ids,
        "max_tokens": request.num_tokens,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    started = last = time.perf_counter()
    first_s, between_s, num_tokens = 0.0, [], 0
    async with http.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "choices" not in event:
                raise RuntimeError(f"{url} failed in the middle of a stream: {event}")
            ids = event["choices"][0].get("token_ids") or []
            now = time.perf_counter()
            if ids and not num_tokens:
                first_s = now - started
            elif ids:
                between_s += [(now - last) / len(ids)] * len(ids)
            if ids:
                num_tokens, last = num_tokens + len(ids), now
    assert num_tokens == request.num_tokens, f"{num_tokens} tokens instead of {request.num_tokens}"
    return Timings(first_s, between_s)


def drive(url: str, requests: Sequence[Request], num_in_flight: int) -> list[Timings]:
    """All requests of one client process."""

    async def run() -> list[Timings]:
        waiting = iter(requests)
        timings: list[Timings] = []
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as http:

            async def worker() -> None:
                for request in waiting:
                    timings.append(await ask(http, url, request))

            await asyncio.gather(*(worker() for _ in range(num_in_flight)))
        return timings

    return asyncio.run(run())


def measure(
    pool: ProcessPoolExecutor, url: str, requests: Sequence[Request], num_in_flight: int, processes: int
) -> Round:
    processes = min(processes, num_in_flight)
    started = time.perf_counter()
    parts = [
        pool.submit(drive, url, requests[index::processes], num_in_flight // processes) for index in range(processes)
    ]
    timings = [timing for part in parts for timing in part.result(REQUEST_S)]
    wall_s = time.perf_counter() - started
    return Round(sum(request.num_tokens for request in requests) / wall_s, timings)


def summary(rounds: Sequence[Round]) -> Row:
    timings = [timing for each in rounds for timing in each.timings]
    firsts = [timing.first_s for timing in timings]
    between = [value for timing in timings for value in timing.between_s]
    return Row(
        statistics.median(each.tokens_per_s for each in rounds),
        *(1e3 * quantile(values, share) for values in (firsts, between) for share in (0.5, 0.99)),
    )


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Server:
    """A server in a process group of its own. It starts at once, and stops at the latest when the block ends."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self._command, self._url, self._log = command, f"http://127.0.0.1:{port}", log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--port", str(port)],
                stdout=output,
                stderr=output,
                env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def await_start(self) -> str:
        """The server's address, once it answers."""
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), urlopen(f"{self._url}/health", timeout=5):
                return self._url
            time.sleep(0.5)
        sys.exit(f"{' '.join(self._command)} did not start: {self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder")
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", help="random weights in these shapes")
    parser.add_argument(
        "--vllm-python", help="the Python of an environment with vLLM; without it only rstar2 is measured"
    )
    parser.add_argument("--vllm-arguments", default="", help="further arguments of `vllm serve`")
    parser.add_argument("--vllm-fronts", type=int, default=1, help="processes of vLLM's HTTP front")
    parser.add_argument("--rstar2-arguments", default="", help="further arguments of `rstar2 serve`")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests-each", type=int, default=3, help="requests of a round for each one in flight")
    parser.add_argument("--least-requests", type=int, default=34, help="requests of a round at least")
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(64, 128))
    parser.add_argument("--answer-tokens", type=int, nargs=2, default=(32, 64))
    parser.add_argument("--num-repeats", type=int, default=3)
    parser.add_argument("--client-processes", type=int, default=1)
    parser.add_argument("--port", type=int, default=8790)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, default=Path())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models = {name: Path(scratch) / name for name in options.shapes or ()}
        with ProcessPoolExecutor(1, get_context("spawn")) as maker:  # a process that ends gives its GPU memory back
            for name, folder in models.items():
                maker.submit(write_random_model, options.model, name, folder).result()
        results = compare(options, models or {Path(options.model).name: Path(options.model)})
    if options.json:
        document = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "options": {key: str(value) for key, value in vars(options).items()},
            "results": results,
        }
        print(json.dumps(document, indent=2, default=asdict))


def write_random_model(tokenizer_folder: str, shapes_name: str, folder: Path, seed: int = 0) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    shapes = {"max_position_embeddings": 4096, "tie_word_embeddings": True, **SHAPES[shapes_name]}
    config = AutoConfig.for_model(
        shapes.pop("model_type"), **shapes, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id
    )
    torch.manual_seed(seed)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def commands_for(options: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    most = str(max(1024, *options.in_flight))
    serve = [sys.executable, "-m", "rstar2", "serve", str(folder), "--max-in-flight", most]
    commands = {"rstar2": [*serve, *shlex.split(options.rstar2_arguments)]}
    if options.vllm_python:
        entry = ["vllm.entrypoints.openai.api_server", "--model", str(folder)]
        if options.vllm_fronts > 1:
            entry = ["vllm.entrypoints.cli.main", "serve", str(folder), "--api-server-count", str(options.vllm_fronts)]
        commands["vllm"] = [options.vllm_python, "-m", *entry, *shlex.split(options.vllm_arguments)]
    return commands


def compare(options: argparse.Namespace, models: dict[str, Path]) -> dict[str, dict[str, dict[int, Row]]]:
    """By model, server and number in flight."""
    results: dict[str, dict[str, dict[int, Row]]] = {}
    with ExitStack() as stack:
        servers: dict[str, dict[str, Server]] = {}
        ports = count(options.port)
        for model, folder in models.items():
            servers[model] = {
                name: stack.enter_context(Server(command, next(ports), options.logs / f"{name}-{folder.name}.log"))
                for name, command in commands_for(options, folder).items()
            }
        pool = stack.enter_context(ProcessPoolExecutor(options.client_processes, get_context("spawn")))
        addresses = {
            model: {name: server.await_start() for name, server in started.items()}
            for model, started in servers.items()
        }
        for model, folder in models.items():
            urls = addresses[model]
            vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
            results[model] = {name: {} for name in urls}
            for num_in_flight in options.in_flight:
                found = alternate(options, pool, urls, vocab_size, num_in_flight)
                for name, rounds in found.items():
                    results[model][name][num_in_flight] = summary(rounds)
                show(model, results[model], num_in_flight, sys.stderr if options.json else sys.stdout)
            for server in servers[model].values():
                server.stop()
    return results


def alternate(
    options: argparse.Namespace, pool: ProcessPoolExecutor, urls: dict[str, str], vocab_size: int, num_in_flight: int
) -> dict[str, list[Round]]:
    """The rounds of each server, after one that is not counted."""
    num_requests = max(options.least_requests, options.requests_each * num_in_flight)
    rounds: dict[str, list[Round]] = {name: [] for name in urls}
    for repeat in range(options.num_repeats + 1):
        number = num_requests if repeat else num_in_flight
        requests = make_requests(options, vocab_size, number, f"{num_in_flight} in flight, round {repeat}")
        for name, url in urls.items():
            found = measure(pool, url, requests, num_in_flight, options.client_processes)
            if repeat:
                rounds[name].append(found)
    return rounds


def show(model: str, results: dict[str, dict[int, Row]], num_in_flight: int, file: TextIO) -> None:
    for name, rows in results.items():
        row = rows[num_in_flight]
        print(
            f"{model}  {num_in_flight:5d} in flight  {name:8s} {row.tokens_per_s:9.1f} tokens/s   "
            f"first token {row.first_p50_ms:8.1f} / {row.first_p99_ms:8.1f} ms   "
            f"between {row.between_p50_ms:7.2f} / {row.between_p99_ms:7.2f} ms",
            file=file,
            flush=True,
        )


if __name__ == "__main__":
    main()
