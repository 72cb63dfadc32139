"""What every use of the Hugging Face hub here shares: one error, one deadline, no bars of the client's own."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rstar2.errors import InfrastructureError

HUB_ANSWER_DEADLINE_S = 6.0
"""A hub that is there lists a repository in well under a second. The client's own limits are per attempt and per
address and do not cover name resolution, so together they can reach minutes."""

Answer = TypeVar("Answer")


class HubUnavailableError(InfrastructureError):
    """The hub did not serve what was asked for; the message says why in a few words."""


def answer_within(deadline_s: float, ask: Callable[[], Answer]) -> Answer:
    """What `ask` returns; HubUnavailableError if the hub is switched off, fails, or the deadline has passed."""
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        raise HubUnavailableError("HF_HUB_OFFLINE is set")
    answers: list[Answer] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            failures.append(error)

    # A daemon: a name lookup cannot be cancelled, and must not keep the process from ending either.
    asking = threading.Thread(target=run, daemon=True, name="asking the hub")
    asking.start()
    asking.join(deadline_s)
    if asking.is_alive():
        raise HubUnavailableError(f"no answer within {deadline_s:g} s")
    if failures:
        raise HubUnavailableError(reason(failures[0])) from failures[0]
    return answers[0]


def hidden_bar() -> Any:
    """A class of progress bar that draws nothing: the client always draws, and our own bar shows the same bytes."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class HiddenBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

    return HiddenBar


def reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
