"""Whether the Hugging Face hub can be reached, asked within a deadline that also covers name resolution."""

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from rstar2.doctor.check import Check, State

SECTION = "optional"
NAME = "Hugging Face hub"
DEADLINE_S = 2.5
FIX = (
    "`rstar2 models get` has another source for the default model; for others, copy a Hugging Face folder here and "
    "name its path in the recipe"
)


def begin_hub_check() -> Callable[[], Check]:
    """Start the request; the returned function gives the finding within the deadline."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return lambda: Check(SECTION, NAME, State.LIMITED, "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE")
    failures: SimpleQueue[str | None] = SimpleQueue()
    # A daemon, because a resolver without an answer can hang for far longer than the report may take.
    threading.Thread(target=lambda: failures.put(_why_unreachable(endpoint)), name="hub-check", daemon=True).start()

    def finding() -> Check:
        try:
            why = failures.get(timeout=DEADLINE_S)
        except Empty:
            why = f"no answer within {DEADLINE_S:g} s"
        if why is None:
            return Check(SECTION, NAME, State.OK, f"{endpoint} answers")
        return Check(SECTION, NAME, State.LIMITED, f"{endpoint} cannot be used: {why}", FIX)

    return finding


def _why_unreachable(endpoint: str) -> str | None:
    """Why the hub is unreachable; None if it answers a plain request with success."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=DEADLINE_S):
            return None
    except HTTPError as error:
        return f"it answers {error.code} {error.reason}"
    except URLError as error:
        return str(error.reason)
    except (OSError, ValueError) as error:
        return str(error)
