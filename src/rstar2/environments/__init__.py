"""Tasks: the opening of an episode, its tools, the world's replies, and the reward at the end.

Promise: an environment never blames its own failure on the model. If its code raises, hangs or returns an invalid
value, that is an infrastructure fault that names the file and the line; the episode is left out and counted, never
scored 0.
May import: records, sandbox, engine, grading, config, agent.
"""

from rstar2.environments.protocol import Environment, Episode, Judgement, Opening, Services
from rstar2.environments.task import Task, tool_call

__all__ = ["Environment", "Episode", "Judgement", "Opening", "Services", "Task", "tool_call"]
