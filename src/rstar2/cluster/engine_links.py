"""The first rank's line to the engines that it sends weights to: all are asked at once.

Invariant: one that fails, dies or is late is known by name, at once or at the deadline, whatever the others do.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

from rstar2.engine.vllm.transfer import STEP_S, TransferError

SENDER = 1
"""Who meets the workers, and is counted before them."""


class EngineLink:
    """Satisfies `Link`, over Ray. `engines` are handles of `EngineActor`s by name."""

    def __init__(self, engines: Mapping[str, Any], num_workers_each: int, deadline_s: float = STEP_S) -> None:
        self._engines = engines
        self._num_workers_each = num_workers_each
        self._deadline_s = deadline_s
        self.version = 0
        """Of the weights that are being sent."""

    def check(self) -> None:
        """Nobody is waited for at a meeting who is known to be gone."""
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
    """For the workers of one engine. vLLM counts them from `rank_offset` on, as if there were no other engine."""
    if "rank_offset" not in init_info:
        return init_info
    return {**init_info, "rank_offset": SENDER + engine * num_workers_each}
