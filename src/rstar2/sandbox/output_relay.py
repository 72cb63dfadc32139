"""Passes the output of a running program on to its caller, each character once.

A program may be rerun (its worker or its machine was lost): output that the caller has is not passed on again. Output
that differs in a rerun is only in the result, which always has all of it.
"""

import codecs
import logging

from rstar2.sandbox.execution import Execution, OnOutput

logger = logging.getLogger(__name__)
_STREAMS = ("stdout", "stderr")


class OutputRelay:
    def __init__(self, on_output: OnOutput) -> None:
        self._on_output: OnOutput | None = on_output
        self._num_passed_on = dict.fromkeys(_STREAMS, 0)
        self.restart()

    def restart(self) -> None:
        """Start from the program's beginning, for its first run or a rerun."""
        self._num_seen = dict.fromkeys(_STREAMS, 0)
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: make("replace") for stream in _STREAMS}

    def restarted(self) -> OnOutput:
        """Restart, and return the callback for an executor that passes on output itself."""
        self.restart()
        return self.receive_text

    def receive(self, stdout: bytes, stderr: bytes) -> None:
        for stream, data in zip(_STREAMS, (stdout, stderr), strict=True):
            self.receive_text(stream, self._decoders[stream].decode(data))

    def receive_text(self, stream: str, text: str) -> None:
        """Pass on the new part of the next piece."""
        start = self._num_seen[stream]
        self._num_seen[stream] = start + len(text)
        if new := text[max(0, self._num_passed_on[stream] - start) :]:
            self._num_passed_on[stream] += len(new)
            self._pass_on(stream, new)

    def finish(self, execution: Execution) -> Execution:
        """Pass on the rest of the result's output."""
        for stream, text in zip(_STREAMS, (execution.stdout, execution.stderr), strict=True):
            if rest := text[self._num_passed_on[stream] :]:
                self._num_passed_on[stream] += len(rest)
                self._pass_on(stream, rest)
        return execution

    def _pass_on(self, stream: str, text: str) -> None:
        if self._on_output is not None:
            try:
                self._on_output(stream, text)
            except Exception:  # a caller's callback must not end what is shared with other callers
                logger.exception("a caller's on_output raised, and is not called again")
                self._on_output = None
