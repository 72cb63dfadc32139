"""Decides who may call a service: no page of another site in a user's browser, and only callers with the service's
token.

A page of another site can send requests to a server on loopback, and by rebinding its own name to 127.0.0.1 it can even
read the answers. It cannot choose two headers: Host is the name that the page was loaded from, and Origin, which every
browser sends with all but a plain GET, names the page's site. So a request whose Host is an address, localhost or the
name that the server listens on was not rebound, and one without a foreign Origin was not sent by another site's page.

A service that is given no token makes one and stores it for this user's clients, in one file per address:
`$XDG_STATE_HOME/rstar2/sandbox-tokens/MACHINE-HOST-PORT`, readable by its owner alone. The file name includes the
machine because machines that share a home folder all have a 127.0.0.1.
"""

import contextlib
import ipaddress
import os
import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

EVERY_ADDRESS = ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def may_ask(host_header: str, listening_host: str) -> bool:
    """Whether the name in the Host header can belong only to this server."""
    try:
        name = urlsplit(f"//{host_header}").hostname or ""
        if is_loopback(name) or name == listening_host.lower():
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    # A literal address cannot be rebound; but nobody calls a server on loopback by another address.
    return not is_loopback(listening_host)


def is_of_another_site(origin: str | None, host_header: str) -> bool:
    """Whether the Origin header shows that a page of another server sent the request."""
    return origin is not None and origin != f"http://{host_header}"


def make_token() -> str:
    return secrets.token_urlsafe(32)


def keep_token(address: str, token: str) -> Path:
    """Store the token for the URL that the service listens on. OSError if it cannot be written."""
    path = _token_path(*_host_and_port(address))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    unfinished.replace(path)
    return path


def forget_token(path: Path, token: str) -> None:
    """Delete the token, unless a later service at the same address replaced it."""
    with contextlib.suppress(OSError):
        if path.read_text() == token:
            path.unlink()


def find_token(address: str) -> str | None:
    """Find the token that a service of this user on this machine stored for the address, under any name of the
    loopback."""
    try:
        host, port = _host_and_port(address)
    except ValueError:  # not a URL
        return None
    names = ["127.0.0.1", "::1"] if host == "localhost" else [host]
    # Only a loopback address certainly leads to a service that listens on all addresses of this machine.
    for name in (*names, *(EVERY_ADDRESS if is_loopback(host) else ())):
        with contextlib.suppress(OSError, ValueError):  # ValueError: no file can have this name
            return _token_path(name, port).read_text()
    return None


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _token_path(host: str, port: int) -> Path:
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
