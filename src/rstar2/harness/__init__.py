"""Trains an agent that somebody else wrote: its program talks to an OpenAI base URL, and is recorded there.

Promise: each recorded segment has exactly the ids that the engine saw and sampled; every token that the program got is
trained on in exactly one segment; a request beyond the limits gets OpenAI's error.
May import: records, engine, config, agent, environments, serve.
"""

from rstar2.harness.environment import HARNESS

__all__ = ["HARNESS"]
