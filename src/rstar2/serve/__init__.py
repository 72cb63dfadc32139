"""A model, or an agent, as an HTTP server: OpenAI's chat and text completions, token ids in and out, adapters and
weight updates.

Promise: the token ids in an answer are the ids that the engine sampled; every request is answered, with a result or
with a reason in OpenAI's form; a request is cancelled when its caller disconnects; nothing that a caller sends exceeds
the limits.
May import: records, sandbox, engine, grading, models, agent, environments.
"""

from rstar2.sandbox.http.server import Server
from rstar2.serve.app import create_app
from rstar2.serve.episode import ServedAgent
from rstar2.serve.served_model import ServedModel
from rstar2.serve.settings import ServeSettings

__all__ = ["ServeSettings", "ServedAgent", "ServedModel", "Server", "create_app"]
