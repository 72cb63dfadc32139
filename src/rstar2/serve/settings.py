"""The settings of a model server. Every bound on a request is here."""

from dataclasses import dataclass, field

from rstar2.errors import UserError
from rstar2.sandbox.http.connections import affordable_connections

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServeSettings:
    keys: frozenset[str] = frozenset()
    """Callers must send one of these as `Authorization: Bearer KEY`. If empty, any program that reaches the address may
    call, except pages of other sites."""
    listening_host: str = "127.0.0.1"
    """The address that the server listens on. Without keys it decides which Host headers are accepted."""
    allows_updates: bool = False
    """Whether callers may pause generation, load adapters and update weights."""
    max_body_bytes: int = 32 * MIB
    max_in_flight: int = 4096
    """The maximum number of sequences in flight, over all callers. Beyond it the answer is 429 at once."""
    max_tokens: int | None = None
    """The maximum number of tokens of one answer. None: as many as the context holds."""
    request_timeout_s: float = 600.0
    """The time limit of a request, from its admission to the last token."""
    max_connections: int = field(default_factory=affordable_connections)
    """The maximum number of open connections. Beyond it, idle ones are closed, or new ones may only `GET /health`."""
    header_timeout_s: float = 10.0
    """The timeout for the first request's head on a connection."""
    keepalive_s: float = 75.0
    """The keep-alive timeout: the idle time between two requests."""
    transfer_timeout_s: float = 60.0
    """The timeout for receiving one body, and for a caller to accept a piece of a streamed answer."""
    retry_after_s: float = 1.0
    """The `Retry-After` value of a server that is over capacity or draining."""
    max_sessions: int = 4096
    """The maximum number of sessions (`X-Session-ID`) evicted last. Beyond it the least recently used is released."""
    session_idle_s: float = 600.0
    """A session that was unused for this long is released."""

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
