"""The token of a service: where it comes from, where it is stored, and where none is needed."""

import ipaddress
import os
from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.output import note
from rstar2.errors import UserError

TOKEN_ENV = "RSTAR2_SANDBOX_TOKEN"
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help=f"A file that holds the token of the service, or set {TOKEN_ENV}. Given neither, one is made.",
        show_default=False,
    ),
]


class ServiceToken:
    """The token of a service while it runs. One made here is shown once, and stored for this user's clients."""

    def __init__(self, value: str | None, *, is_made: bool = False) -> None:
        self.value = value
        self._is_made = is_made
        self._kept: Path | None = None

    def publish(self, address: str) -> None:
        from rstar2.sandbox.http.access import keep_token

        if not self._is_made or self.value is None:
            return
        try:
            self._kept = keep_token(address, self.value)
            where = f"kept in {self._kept}, where clients of this user on this machine find it"
        except OSError as error:
            where = f"not kept, so clients must be given it: {error}"
        note(f"token: {self.value} ({where})")

    def withdraw(self) -> None:
        from rstar2.sandbox.http.access import forget_token

        if self._kept is not None and self.value is not None:
            forget_token(self._kept, self.value)


def with_token(given: str | None) -> ServiceToken:
    from rstar2.sandbox.http.access import make_token

    return ServiceToken(given) if given is not None else ServiceToken(make_token(), is_made=True)


def of_node(given: str | None, gateway_url: str) -> ServiceToken:
    """A node has its gateway's token, which is found if the gateway runs here and made it."""
    from rstar2.sandbox.http.access import find_token

    token = given or find_token(gateway_url)
    if token is None:
        raise UserError(f"--join {gateway_url}: give the gateway's token with --token-file or {TOKEN_ENV}")
    return ServiceToken(token)


def without_token(given: str | None, host: str, *, is_isolated: bool, gateway_url: str | None) -> ServiceToken:
    """UserError where others than this machine's users could call, or where programs are not isolated."""
    from rstar2.sandbox.http.access import is_loopback

    if given is not None:
        raise UserError(f"--no-token: one is given, with --token-file or {TOKEN_ENV}; leave one of them out")
    if not is_loopback(host):
        raise UserError(f"--no-token: --host {host} can be reached from other machines; leave one of them out")
    if not is_isolated:
        raise UserError("--no-token: where programs are not isolated a caller could do anything here; leave it out")
    if gateway_url is not None:
        raise UserError("--no-token: a node has the token of its gateway; leave it out")
    return ServiceToken(None)


def given_token(file: Path | None) -> str | None:
    """What the user chose. It is taken out of the environment, so that no child process inherits it."""
    text, source = os.environ.pop(TOKEN_ENV, None), TOKEN_ENV
    if file is not None:
        source = f"--token-file {file}"
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{source}: it cannot be read: {error}") from None
    if text is not None and not text.strip():
        raise UserError(f"{source} is empty: put a secret there, or leave it out and one is made")
    return text.strip() if text is not None else None


def is_every_address(host: str) -> bool:
    """Whether it stands for all addresses: a service can listen on it, but nobody can call it."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
