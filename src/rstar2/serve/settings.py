"""What the operator of a model server decides. Every bound on a request is here."""

from dataclasses import dataclass, field

from rstar2.errors import UserError
from rstar2.sandbox.http.connections import affordable_connections

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServeSettings:
    keys: frozenset[str] = frozenset()
    """Callers must send one of them as `Authorization: Bearer KEY`. Empty: any program that reaches the address may
    ask, except pages of other sites."""
    listening_host: str = "127.0.0.1"
    """The address that the server listens on. Without keys it decides which names the server answers to."""
    allows_updates: bool = False
    """Whether callers may pause generation, load adapters and update weights."""
    max_body_bytes: int = 32 * MIB
    max_in_flight: int = 4096
    """Sequences admitted and not yet answered, over all callers. A request for more gets 429 at once."""
    max_tokens: int | None = None
    """The most tokens of one answer. None: as many as the context holds."""
    request_timeout_s: float = 600.0
    """For one request, from its admission to the last token."""
    max_connections: int = field(default_factory=affordable_connections)
    """Open connections, over all callers. Beyond it silent and idle ones close; only `GET /health` is answered."""
    header_timeout_s: float = 10.0
    """For the head of the first request on a connection."""
    keepalive_s: float = 75.0
    """How long a connection may be idle between two requests."""
    transfer_timeout_s: float = 60.0
    """For receiving one body, and for a caller to accept a piece of a streamed answer."""
    retry_after_s: float = 1.0
    """The `Retry-After` of a server that is over capacity or draining."""
    max_sessions: int = 4096
    """Sessions (`X-Session-ID`) whose prefixes are evicted last. Beyond it the least recently used is released."""
    session_idle_s: float = 600.0
    """A session that was not used for this long is released."""

    def __post_init__(self) -> None:
        for key in self.keys:
            if not (key.isascii() and key.isprintable() and key.strip() == key and key):
                raise UserError("key: it must be printable ASCII without spaces around it: it is sent in a header")
        for name in ("max_body_bytes", "max_in_flight", "max_sessions", "max_connections"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        times = ("request_timeout_s", "transfer_timeout_s", "header_timeout_s", "keepalive_s")
        for name in (*times, "retry_after_s", "session_idle_s"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"max_tokens must be at least 1, not {self.max_tokens}")
