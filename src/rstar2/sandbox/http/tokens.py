"""The token of a service that was given none: made at its start, and kept where only its user's clients find it.

One file for each address, `$XDG_STATE_HOME/rstar2/sandbox-tokens/MACHINE-HOST-PORT`, readable by its owner alone. A
home folder may be shared by machines that all have a 127.0.0.1, hence the machine's name.
"""

import contextlib
import ipaddress
import os
import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from rstar2.sandbox.http.browsers import is_loopback

EVERY_ADDRESS = ("0.0.0.0", "::")


def make_token() -> str:
    return secrets.token_urlsafe(32)


def keep_token(address: str, token: str) -> Path:
    """`address` is the URL that the service listens on. OSError if there is no place for it."""
    path = _path(*_host_and_port(address))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    unfinished.replace(path)
    return path


def forget_token(path: Path, token: str) -> None:
    """Unless a later service at the same address has put its own there."""
    with contextlib.suppress(OSError):
        if path.read_text() == token:
            path.unlink()


def find_token(address: str) -> str | None:
    """What a service of this user on this machine keeps for the address, under any name that the loopback has."""
    try:
        host, port = _host_and_port(address)
    except ValueError:  # not a URL
        return None
    names = ["127.0.0.1", "::1"] if host == "localhost" else [host]
    # Only of the loopback is it certain that it leads to a service that listens on all addresses of this machine.
    for name in (*names, *(EVERY_ADDRESS if is_loopback(host) else ())):
        with contextlib.suppress(OSError, ValueError):  # ValueError: no file can have this name
            return _path(name, port).read_text()
    return None


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _path(host: str, port: int) -> Path:
    with contextlib.suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    # The XDG specification tells programs to ignore a relative path here.
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    home = state if state.is_absolute() else _home() / ".local" / "state"
    return home / "rstar2" / "sandbox-tokens" / f"{socket.gethostname()}-{host}-{port}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise OSError(str(error)) from None
