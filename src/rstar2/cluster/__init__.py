"""The same run on many machines: engines, trainer ranks and sandbox nodes as Ray actors, one driver over them.

Promise: the recipe, the run directory and the numbers are those of a single machine; an engine, a sandbox node, a rank
or the driver that is killed costs time, but no finished rollout and no training step.
May import: records, sandbox, engine, grading, config, agent, environments, rollout, train. Needs the `cluster` extra;
vLLM engines need the `vllm` extra too.

Nothing is imported here: Ray reads its settings when it is imported, so `connect` must set them first.
"""
