"""Decides which addresses a gateway calls: those that its operator names, and those of machines that ask to join.

A gateway that called any given address would be a way into the network behind it.
"""

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from rstar2.errors import UserError

RESOLVE_DEADLINE_S = 5.0


async def check_node_address(url: str, caller: str) -> None:
    """Raise UserError unless `url` is the bare address of a service on the machine that sent the request."""
    host, port = host_and_port(url)
    try:
        async with asyncio.timeout(RESOLVE_DEADLINE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise UserError(f"url: the gateway cannot find {host}") from None
    if not any(_is_same(str(address[0]), caller) for *_, address in found):
        raise UserError(
            f"url: {host} is not the address that this request came from ({caller}). A node can join only as itself; "
            f"start the gateway with --node {url} to use another address"
        )


def host_and_port(url: str) -> tuple[str, int]:
    """UserError unless the URL is exactly a scheme, a host and maybe a port."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    is_bare = host and parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    if not is_bare or parts.scheme not in ("http", "https") or parts.password or not (host and host.isprintable()):
        raise UserError(f"url: {url!r} is no node's address; write http://HOST:PORT")
    return host, port or (443 if parts.scheme == "https" else 80)


def _is_same(one: str, other: str) -> bool:
    try:
        return _plain(one) == _plain(other)
    except ValueError:
        return False


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address; IPv4 written as IPv6 becomes IPv4, to compare equal."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
