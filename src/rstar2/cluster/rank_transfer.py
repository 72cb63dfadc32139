"""One rank's part in sending weights to vLLM engines.

Invariants: the rank iterates over all weights whether the engines take them or not, since the other ranks do. An
engine's failure is returned; a rank's is raised. The first rank calls all engines at once; an engine that fails, dies
or is late is reported by name, at once or at the deadline, whatever the others do.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

from rstar2.engine.vllm.transfer import (
    STEP_S,
    Backend,
    Link,
    Rendezvous,
    Sender,
    ServedWeights,
    TransferError,
    WeightStream,
    with_head,
)

SENDER = 1
"""The number of ranks that send, counted before the workers in vLLM's world."""


class EngineLink:
    """Satisfies `Link`, over Ray. `engines` are handles of `EngineActor`s by name."""

    def __init__(self, engines: Mapping[str, Any], num_workers_each: int, deadline_s: float = STEP_S) -> None:
        self._engines = engines
        self._num_workers_each = num_workers_each
        self._deadline_s = deadline_s
        self.version = 0
        """The version of the weights that are being sent."""

    def check(self) -> None:
        """Fails at once if an engine is dead, instead of waiting for it at the rendezvous."""
        self._ask("is_there")

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._ask("open_transfer", lambda number: worker_init_info(init_info, number, self._num_workers_each))

    def start_weight_update(self) -> None:
        self._ask("begin_transfer")

    def update_weights(self, update_info: Any) -> None:
        self._ask("receive", lambda _: update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:  # noqa: ARG002
        self._ask("end_transfer", lambda _: self.version)

    def _ask(self, method: str, argument: Callable[[int], Any] | None = None) -> None:
        calls: dict[Future[Any], str] = {}
        for number, (name, actor) in enumerate(self._engines.items()):
            arguments = () if argument is None else (argument(number),)
            calls[getattr(actor, method).remote(*arguments).future()] = name
        done, late = wait(calls, self._deadline_s, FIRST_EXCEPTION)
        for call in done:
            if (error := call.exception()) is not None:
                said = str(error).strip().splitlines() or [type(error).__name__]
                raise TransferError(f"{calls[call]} failed in {method}: {said[-1]}") from error
        if late:
            names = ", ".join(sorted(calls[call] for call in late))
            raise TransferError(f"{names} did not end {method} within {self._deadline_s:g} s")


def worker_init_info(init_info: dict[str, Any], engine: int, num_workers_each: int) -> dict[str, Any]:
    """The init info for the workers of one engine. vLLM counts them from `rank_offset` on, as if there were no other
    engine."""
    if "rank_offset" not in init_info:
        return init_info
    return {**init_info, "rank_offset": SENDER + engine * num_workers_each}


OpenSender = Callable[[Backend, int, ServedWeights, Link, Rendezvous], Sender]


class RankTransfer:
    """One rank's transfers. `meet` finds a free host and port for the first rank and the workers."""

    def __init__(
        self,
        backend: Backend,
        rank: int,
        weights: ServedWeights,
        num_workers_each: int,
        open_sender: OpenSender,
        meet: Callable[[], tuple[str, int]],
    ) -> None:
        self._backend: Backend = backend
        self._rank = rank
        self._weights = with_head(weights) if backend == "gloo" else weights
        self._num_workers_each = num_workers_each
        self._open_sender = open_sender
        self._meet = meet
        self._names: tuple[str, ...] = ()
        self._link: EngineLink | None = None
        self._sender: Sender | None = None

    def send(self, engines: Mapping[str, Any], version: int) -> str | None:
        """Sends the weights to these engines. Returns why one of them failed, if one did, which only the first rank can
        know."""
        running = WeightStream(self._weights)
        try:
            link, sender = self._opened(engines)
            link.version = version
            sender.send(running)
        except Exception as error:
            self.close()
            running.finish()
            if self._rank != 0 or running.error is not None:
                raise
            return str(error) or type(error).__name__
        return None

    def close(self) -> None:
        sender, self._sender, self._names = self._sender, None, ()
        if sender is not None:
            sender.close()

    def _opened(self, engines: Mapping[str, Any]) -> tuple[EngineLink, Sender]:
        """The link and the sender, which are reused while the engines are the same, because connecting takes
        seconds."""
        if self._sender is None or self._link is None or self._names != tuple(engines):
            self.close()
            self._link = EngineLink(engines, self._num_workers_each)
            if self._rank == 0:
                self._link.check()
            meeting = Rendezvous(*self._meet(), num_workers=len(engines) * self._num_workers_each)
            self._sender = self._open_sender(self._backend, self._rank, self._weights, self._link, meeting)
            self._names = tuple(engines)
        return self._link, self._sender
