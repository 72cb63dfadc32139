"""The embedded engine in a process of its own: one for each core or GPU, without sharing an interpreter.

Promise: what `EngineProcess` yields is what the engine in the child sampled, in order; a child that dies, in whatever
way, is an `InfrastructureError` to everyone who waits for it; a child never outlives the process that started it.
"""

from rstar2.engine.process.client import EngineProcess

__all__ = ["EngineProcess"]
