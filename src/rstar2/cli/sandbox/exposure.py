"""Who can reach an address, and what that asks for."""

import ipaddress

from rstar2.errors import UserError


def check_exposure(host: str, token: str | None) -> None:
    if token is None and not _is_loopback(host):
        raise UserError(f"--host {host} can be reached from other machines: set --token (or RSTAR2_SANDBOX_TOKEN) too")
    if token is not None and not token.strip():
        raise UserError("--token (or RSTAR2_SANDBOX_TOKEN) is empty: give a secret, or leave it out on loopback")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_every_address(host: str) -> bool:
    """Such an address can be listened on, and not be called."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
