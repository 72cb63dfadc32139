"""vLLM as an engine, in two forms with one interface: a server at an address, and in this process.

Promise: token ids in and out, with the log-probability of the distribution that each was drawn from, or with none;
`load()` is live; new weights go through vLLM's own interface. It uses nothing private of vLLM.
"""

from rstar2.engine.vllm.in_process import VllmInProcessEngine, VllmOptions
from rstar2.engine.vllm.server import VllmServerEngine, root_of

__all__ = ["VllmInProcessEngine", "VllmOptions", "VllmServerEngine", "root_of"]
