"""Many problems, many engines: the pure scheduler, its policies and the simulator.

Promise: a scheduler turns facts into decisions, without a clock or I/O; every rollout that was submitted ends exactly
once, also when engines die or join; the simulator runs the same policies as a live run.
May import: records, sandbox, engine, grading, algo, config, models, analysis, agent, environments.
"""

from rstar2.rollout.policies import POLICIES, make_policy
from rstar2.rollout.scheduler import Decision, EngineSpeed, Fact, RolloutSpec, Scheduler

__all__ = ["POLICIES", "Decision", "EngineSpeed", "Fact", "RolloutSpec", "Scheduler", "make_policy"]
