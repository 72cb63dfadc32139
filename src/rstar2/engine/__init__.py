"""Tokens in, tokens and log-probabilities out: the embedded engine, vLLM, any OpenAI-compatible server, scripts.

Promise: the ids that an engine reports are the ids that it sampled, each with the log-probability it was sampled with.
May import: records, config.
"""

from rstar2.engine.protocol import Chunk, Engine, EngineLoad, Sampling

__all__ = ["Chunk", "Engine", "EngineLoad", "Sampling"]
