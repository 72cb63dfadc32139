"""Run untrusted Python: isolated by Linux itself, within limits, in milliseconds; stateless or as notebook sessions.

Promise: whatever the code does, the caller gets a typed result by its deadline, and the next execution, the service
and the machine are unharmed. Knows nothing of models.
May import: records.
"""

from rstar2.sandbox.execution import Display, Execution, ExecutionStatus, FileInfo, Limits, OnOutput, ProgramError
from rstar2.sandbox.executor import Executor, Overloaded, Request, Session
from rstar2.sandbox.local import LocalConfig, LocalExecutor
from rstar2.sandbox.sandbox import Sandbox

__all__ = [
    "Display",
    "Execution",
    "ExecutionStatus",
    "Executor",
    "FileInfo",
    "Limits",
    "LocalConfig",
    "LocalExecutor",
    "OnOutput",
    "Overloaded",
    "ProgramError",
    "Request",
    "Sandbox",
    "Session",
]
