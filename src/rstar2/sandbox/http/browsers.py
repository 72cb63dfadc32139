"""What a page in somebody's browser can ask of a server on the same machine, and how to tell that it was a page.

A page of another site can send requests to a server on loopback, and by rebinding its own name to 127.0.0.1 it can even
read the answers. Two headers it cannot choose: Host says the name that it was loaded from, and Origin, which every
browser sends with what is not a plain GET, says whose page it is. A request that names the server by an address, by
localhost or by the name that it listens on was not rebound; one without a foreign Origin was not sent by another site.
"""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def may_ask(host_header: str, listening_host: str) -> bool:
    """Whether the name in a Host header is one that only this server can have."""
    try:
        name = urlsplit(f"//{host_header}").hostname or ""
        if is_loopback(name) or name == listening_host.lower():
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    # A literal address cannot be rebound; but a server on loopback is never asked by another one.
    return not is_loopback(listening_host)


def is_of_another_site(origin: str | None, host_header: str) -> bool:
    """Whether the Origin header says that a page of another server sent this."""
    return origin is not None and origin != f"http://{host_header}"
