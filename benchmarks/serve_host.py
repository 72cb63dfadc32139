"""What `rstar2 serve` costs beside its device: CPU of its HTTP server for tokens that cost nothing to make.

    python benchmarks/serve_host.py [--model FOLDER] [--apart] [--driver-calls 46] [--requests 3072] [--in-flight 1024]
        [--clients 2]

The real server, scheduler and sockets, and the requests of `benchmarks/serve.py`; the engine's runner draws random ids,
16 for each row in the time that a GPU would take. The engine is a thread of the server's process; with `--apart` it has
a process of its own, as beside a GPU. `--driver-calls` is how often a run of steps releases the interpreter, as calls
of a GPU's driver do: a thread beside a busy event loop then waits to get it back. Of the model only the tokenizer is
used. Clients run on the same machine, and take most of its cores where there are few: compare CPU seconds there.
"""

import argparse
import asyncio
import ctypes
import multiprocessing
import socket
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from engine_host import VOCABULARY, Due, FreeRunner, make_engine
from serve import Request, drive, make_requests

from rstar2.agent import load_chat
from rstar2.engine import Engine
from rstar2.engine.embedded import EmbeddedEngine
from rstar2.engine.embedded.runner import DecodeHandle
from rstar2.engine.process.child import make_garbage_collection_rare, spawn
from rstar2.engine.process.host import serve
from rstar2.engine.remote import EngineHost, RemoteEngine
from rstar2.models import resolve
from rstar2.sandbox.http.supervisor import address_of, listen
from rstar2.serve import ServedModel, Server, ServeSettings, create_app

STEPS_AHEAD = 16
STEP_S, ROW_S, PREFILL_TOKEN_S = 8e-4, 3.5e-6, 1.5e-6
"""About what a model of 135M parameters takes on an H200: for a step, for each row of it, for a token of a prompt."""
SWITCH_INTERVAL_S = 2e-4
"""As the engine sets it on a GPU."""
_LIBC = ctypes.CDLL(None)


class TimedRunner(FreeRunner):
    """Ends each row at its full length, after the time that a GPU would take."""

    def __init__(self, engine: EmbeddedEngine, num_driver_calls: int) -> None:
        super().__init__(engine, 0.0)
        self._num_driver_calls = num_driver_calls

    def prefill(self, chunks: Any) -> None:
        num_tokens = sum(chunk.end - chunk.start for chunk in chunks)
        self._done_s = max(self._done_s, time.monotonic()) + num_tokens * PREFILL_TOKEN_S

    def start_decode(self, sequences: Any) -> DecodeHandle:
        for _ in range(self._num_driver_calls):
            _LIBC.usleep(5)
        num_rows = len(sequences)
        self._slots.update(sequences, num_rows)
        output_3AB = np.zeros((3, STEPS_AHEAD, num_rows))
        output_3AB[0] = self._rng.integers(3, VOCABULARY, (STEPS_AHEAD, num_rows))
        for row, sequence in enumerate(sequences):
            num_planned = len(sequence.token_ids) + sequence.num_steps_in_flight - STEPS_AHEAD
            output_3AB[0, max(0, sequence.max_total_tokens - num_planned) :, row] = -1
        run_s = STEPS_AHEAD * (STEP_S + ROW_S * num_rows)
        self._done_s = max(self._done_s, time.monotonic()) + run_s
        return DecodeHandle(num_rows, torch.from_numpy(output_3AB), Due(self._done_s))


def timed_engine(num_in_flight: int, num_driver_calls: int) -> EmbeddedEngine:
    engine = make_engine(num_in_flight, 0.0, STEPS_AHEAD, starts_early=True)
    engine._runner = TimedRunner(engine, num_driver_calls)  # type: ignore[assignment]
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return engine


def serve_engine(connection: socket.socket, num_in_flight: int, num_driver_calls: int) -> None:
    """The engine's own process."""
    make = partial(timed_engine, num_in_flight, num_driver_calls)
    asyncio.run(serve(connection, make, partial(EngineHost, starts_early=True)))


async def open_engine(options: argparse.Namespace) -> Engine:
    if not options.apart:
        return timed_engine(options.in_flight, options.driver_calls)
    channel = await spawn(serve_engine, options.in_flight, options.driver_calls)
    hello = await channel.hello("the engine's process")
    return RemoteEngine(channel, hello["load"], "the engine's process")


def ask(url: str, requests: list[Request], num_in_flight: int) -> None:
    """A client's process."""
    drive(url, requests, num_in_flight)


async def measure(options: argparse.Namespace) -> None:
    chat = await asyncio.to_thread(load_chat, resolve(options.model))
    engine = await open_engine(options)
    listener = listen("127.0.0.1", 0)
    server = Server(
        create_app(ServedModel(engine, chat, "timed", 2048), ServeSettings(max_in_flight=2 * options.in_flight))
    )
    make_garbage_collection_rare()
    await server.start([listener])
    requests = make_requests(options, VOCABULARY, options.requests, "host")
    context = multiprocessing.get_context("spawn")
    clients = [
        context.Process(
            target=ask,
            args=(address_of(listener), requests[index :: options.clients], options.in_flight // options.clients),
        )
        for index in range(options.clients)
    ]
    for client in clients:
        client.start()
    while not engine.load().num_running:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    began_s, began_cpu_s, began_loop_s = time.monotonic(), time.process_time(), time.thread_time()
    while any(client.is_alive() for client in clients):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    wall_s, loop_s = time.monotonic() - began_s, time.thread_time() - began_loop_s
    engine_s = time.process_time() - began_cpu_s - loop_s
    num_tokens = sum(request.num_tokens for request in requests)
    print(f"{num_tokens / wall_s:,.0f} tokens/s, {options.requests / wall_s:,.0f} requests/s")
    print(f"of CPU a request: event loop {1e6 * loop_s / options.requests:.0f} us", end="")
    print("" if options.apart else f", engine's thread {1e6 * engine_s / options.requests:.0f} us")
    await server.drain(5.0)
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a folder, or a name of `rstar2 models list`")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--driver-calls", type=int, default=46)
    parser.add_argument("--requests", type=int, default=3072)
    parser.add_argument("--in-flight", type=int, default=1024)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(64, 128))
    parser.add_argument("--answer-tokens", type=int, nargs=2, default=(32, 64))
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
