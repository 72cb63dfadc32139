"""What the operator of the service decides. Every bound is here, so that nothing a caller sends can exceed memory."""

from dataclasses import dataclass

from rstar2.errors import UserError
from rstar2.sandbox.execution import MIB


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    token: str | None = None
    """Callers must send it as `Authorization: Bearer ...`; None: whoever reaches the address may use the service, but
    for pages of other sites."""
    listening_host: str = "127.0.0.1"
    """The address that it is listened on. Without a token it decides which names the service answers to."""
    max_request_bytes: int = 64 * MIB
    max_in_flight: int = 65_536
    """Executions admitted and not yet answered, over all callers. Beyond it the answer is 503, at once."""
    max_sessions: int = 4_096
    session_idle_s: float = 3600.0
    """A session that nobody used for this long is closed: its caller has most likely died."""
    transfer_timeout_s: float = 60.0
    """For receiving one request body, and for a caller to accept a piece of a streamed answer."""
    retry_after_s: float = 1.0
    """What a caller is told to wait when the service is over capacity or is draining."""
    retention_s: float = 600.0
    """How long the result of an execution with an idempotency key is kept for a caller that asks again."""
    max_retained: int = 100_000
    max_retained_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise UserError("token: it must be printable ASCII, and not empty: it is sent in a header")
