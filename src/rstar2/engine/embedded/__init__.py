"""The engine that runs in this process, on the trainer's own parameters: plain PyTorch on Hugging Face weights.

Promise: paged cache, continuous batching, prefix caching; greedy tokens equal `transformers`' own; the
log-probability of each sampled token is that of the distribution it was drawn from; no token is sampled with torn
weights. Llama, Qwen2 and Qwen3 dense models, on CPUs and on one CUDA GPU.
"""

from rstar2.engine.embedded.engine import EmbeddedEngine
from rstar2.engine.embedded.options import EmbeddedOptions

__all__ = ["EmbeddedEngine", "EmbeddedOptions"]
