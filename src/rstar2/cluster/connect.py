"""Connects to the Ray that the value of `--cluster` names.

Invariant: a Ray that is started here listens on the loopback address alone and requires a token that only this process
and its children have. Ray reads its settings from the environment when it is imported, so they are set before.
"""

import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rstar2.errors import InfrastructureError, UserError

LOCAL = "local"
AUTO = "auto"
ANSWER_S = 10.0
_PRIVATE = {
    "RAY_AUTH_MODE": "token",
    # On Linux, too, this setting makes Ray use the loopback address throughout.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connects inside it. `local` starts a Ray on this machine, `auto` finds the one that runs here or that RAY_ADDRESS
    names; anything else is an address, `HOST:PORT` or `ray://HOST:PORT`."""
    if address == LOCAL:
        make_private()
    else:
        _require_listener(address)
    ray = _import_ray()
    try:
        more = {"include_dashboard": False} if address == LOCAL else {}
        ray.init(address=address, log_to_driver=False, logging_level="WARNING", **more)
    except ConnectionError as error:
        if address == AUTO:
            raise UserError(
                "--cluster auto found no Ray: start one with `ray start --head`, name it in RAY_ADDRESS, or use "
                "`--cluster local`"
            ) from error
        raise UserError(f"--cluster {address}: no Ray answers there ({error})") from error
    except Exception as error:
        if type(error).__name__ == "AuthenticationError":
            raise UserError(f"--cluster {address}: that Ray wants another token; set RAY_AUTH_TOKEN") from error
        raise InfrastructureError(f"Ray could not be started or reached: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def make_private() -> None:
    """Makes the settings of a Ray for this machine alone. Call it before anything imports `ray`."""
    if "ray" in sys.modules and "RAY_AUTH_TOKEN" not in os.environ:
        raise UserError("`ray` was imported before the cluster was made private: call this first")
    os.environ |= _PRIVATE
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _require_listener(address: str) -> None:
    """Raises UserError if nothing listens at the address, which Ray itself reports only after minutes. `auto` leaves
    the search to Ray."""
    named, said = (os.environ.get("RAY_ADDRESS", AUTO), "RAY_ADDRESS") if address == AUTO else (address, "--cluster")
    if named in (AUTO, LOCAL):
        return
    host, _, port = named.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"{said} is {named!r}: give auto, local, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except OSError as error:
        raise UserError(f"{said} is {named}, but nothing answers there ({error}): is that Ray running?") from None


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("a cluster needs ray: run `pip install 'rstar2[cluster]'`") from None
    return ray
