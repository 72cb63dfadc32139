"""Training an agent that somebody else wrote: its program talks to an OpenAI base URL, and is recorded there.

Promise: the ids of each recorded segment are those that the engine saw and sampled; every token that the program got is
in exactly one segment, once, to be trained on; a program that asks for more than the limits gets an error of OpenAI's.
May import: records, engine, config, agent, environments, serve.
"""

from rstar2.harness.environment import HARNESS

__all__ = ["HARNESS"]
