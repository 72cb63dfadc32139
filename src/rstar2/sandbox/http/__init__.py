"""The sandbox as an HTTP service: its own endpoints, and those of code-judge and SandboxFusion.

Promise: every request is answered, with a result or with a reason; no input makes the service fail or lose state. The
service is written against the `Executor` protocol alone, and its caller owns the executor.
"""

from rstar2.sandbox.http.app import create_app, serve_forever
from rstar2.sandbox.http.server import Server
from rstar2.sandbox.http.service import AnswerGrader, Guarantees, Load, ServiceSettings

__all__ = ["AnswerGrader", "Guarantees", "Load", "Server", "ServiceSettings", "create_app", "serve_forever"]
