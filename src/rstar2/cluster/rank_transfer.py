"""One rank's part in sending weights to vLLM engines.

Invariant: the rank goes through all weights whether the engines take them or not, since the other ranks do. What went
wrong with an engine is returned; what went wrong with a rank is raised.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rstar2.cluster.engine_links import EngineLink
from rstar2.engine.vllm.transfer import Backend, Link, Meeting, Pass, Sender, ServedWeights, with_head

OpenSender = Callable[[Backend, int, ServedWeights, Link, Meeting], Sender]


class RankTransfer:
    """`meet` finds a place for the first rank and the workers: host and port."""

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
        """To these engines alone. Why they did not all get them, if so; only the first rank can know."""
        running = Pass(self._weights)
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
        """The same as last time, as long as the engines are: meeting takes seconds."""
        if self._sender is None or self._link is None or self._names != tuple(engines):
            self.close()
            self._link = EngineLink(engines, self._num_workers_each)
            if self._rank == 0:
                self._link.check()
            meeting = Meeting(*self._meet(), num_workers=len(engines) * self._num_workers_each)
            self._sender = self._open_sender(self._backend, self._rank, self._weights, self._link, meeting)
            self._names = tuple(engines)
        return self._link, self._sender
